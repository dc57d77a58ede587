//! What batches of each size are worth in a bare loop. Data only.

use serde::Serialize;

/// All infer stages of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RungReport {
    /// The workflow's name.
    pub workflow: String,
    /// By stage, then by size, then by device.
    pub rungs: Vec<Rung>,
}

/// One size of batches of one stage on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rung {
    /// The infer stage.
    pub stage: String,
    /// The device.
    pub device: String,
    /// Worker processes.
    pub workers: usize,
    /// Threads of each one's session.
    pub threads: usize,
    /// Items of a batch.
    pub batch: usize,
    /// Items per second of all of these workers, as many batches on the way to each as in a run.
    pub items_per_second: f64,
    /// CPU time of the workers per item.
    pub cpu_seconds_per_item: f64,
    /// What the first batch of this size took in a worker that had done its warm-up; of several workers the longest.
    pub first_batch_seconds: f64,
    /// What a batch of this size took in a worker, as a median; of several workers the longest.
    pub median_batch_seconds: f64,
    /// What a batch of this size took right behind one of another size, as a median; of several workers the longest. `None`: there is one
    /// size.
    pub switched_batch_seconds: Option<f64>,
}
