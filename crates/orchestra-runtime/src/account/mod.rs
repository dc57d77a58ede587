//! What is counted, and how it is shown: counters, snapshots, the report of a run. Nothing in a run depends on it.

pub mod histogram;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod meter;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod pipeline_use;
pub mod report;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod snapshot;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod stats;
