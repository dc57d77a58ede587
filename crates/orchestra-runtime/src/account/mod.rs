//! What is counted, and how it is shown: counters, and the status of a run made of them. Nothing in a run depends on it.

pub mod counter;
pub mod histogram;
pub mod history;
pub mod history_line;
pub mod left_out;
pub mod meter;
pub mod outcome;
pub mod pace;
pub mod stage_status;
pub mod stats;
pub mod status;
