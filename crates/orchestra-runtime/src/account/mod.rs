//! What is counted, and how it is shown: counters, snapshots, the report of a run. Nothing in a run depends on it.

pub mod counter;
pub mod histogram;
pub mod left_out;
pub mod meter;
pub mod report;
pub mod snapshot;
pub mod stats;
