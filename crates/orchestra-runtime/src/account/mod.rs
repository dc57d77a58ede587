//! What is counted, and how it is shown: counters, snapshots, the report of a run. Nothing in a run depends on it.

pub mod histogram;
pub mod meter;
pub mod passed_over;
pub mod pipeline_use;
pub mod report;
pub mod snapshot;
pub mod stats;
