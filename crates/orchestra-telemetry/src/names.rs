//! Every name that a span, an attribute or a log field bears. Names only: what they are used for is said where they are used.
//!
//! In a macro, a constant stands in braces where a field name is expected:
//!
//! ```
//! use orchestra_telemetry::names::{attribute, field, span};
//! let batch = tracing::info_span!(span::BATCH, { attribute::STAGE } = "classify", { attribute::BATCH_SIZE } = 64);
//! batch.in_scope(|| tracing::warn!({ field::DEVICE } = "cuda:0", "worker died and is replaced"));
//! ```

/// What an exported trace calls the program, unless `OTEL_SERVICE_NAME` says otherwise.
pub const SERVICE: &str = "orchestra";

/// Names of spans.
pub mod span {
    /// A run, from the plan to the last record. The root of its trace.
    pub const RUN: &str = "workflow.run";
    /// One connected graph of the file.
    pub const PIPELINE: &str = "pipeline";
    /// One item, from its source to its record or failure.
    pub const ITEM: &str = "item";
    /// Reading, decoding and laying out one item.
    pub const LOAD: &str = "item.load";
    /// One batch, from its dispatch until it is done or lost.
    pub const BATCH: &str = "batch";
    /// Everything that follows inference for the items of one batch.
    pub const POST: &str = "batch.post";
    /// Writing records.
    pub const COMMIT: &str = "sink.commit";
    /// A worker process, from its start to its exit.
    pub const WORKER: &str = "worker";
    /// From the start of a worker until its model is loaded and warm.
    pub const WORKER_LOAD: &str = "worker.load";
    /// A batch behind the one before it, inside the worker.
    pub const WORKER_QUEUE: &str = "worker.queue";
    /// Binding the slot to the session.
    pub const WORKER_BIND: &str = "worker.bind";
    /// The session's run.
    pub const WORKER_RUN: &str = "worker.run";
    /// Copies of outputs after the run.
    pub const WORKER_COPY_OUT: &str = "worker.copy_out";
}

/// Attributes of spans. Their log lines show them without `orchestra.`.
pub mod attribute {
    /// Id of the run: text.
    pub const RUN_ID: &str = "orchestra.run.id";
    /// Name of the workflow: text.
    pub const WORKFLOW: &str = "orchestra.workflow";
    /// Name of the pipeline: text. Decides the log file.
    pub const PIPELINE: &str = "orchestra.pipeline";
    /// Name of the source: text.
    pub const SOURCE: &str = "orchestra.source";
    /// Name of the stage: text.
    pub const STAGE: &str = "orchestra.stage";
    /// Name of the model: text.
    pub const MODEL: &str = "orchestra.model";
    /// Name of the device: text.
    pub const DEVICE: &str = "orchestra.device";
    /// Number of the worker: integer.
    pub const WORKER: &str = "orchestra.worker";
    /// Name of the item: text.
    pub const ITEM: &str = "orchestra.item";
    /// Place of the item in its source: integer.
    pub const ITEM_INDEX: &str = "orchestra.item.index";
    /// Number of the batch: integer.
    pub const BATCH_ID: &str = "orchestra.batch.id";
    /// Items in the batch: integer.
    pub const BATCH_SIZE: &str = "orchestra.batch.size";
    /// Why the batch left: `full`, `timer`, `drain`, `idle`, `split` or `retry`.
    pub const BATCH_REASON: &str = "orchestra.batch.reason";
    /// Which try this is, from 1: integer.
    pub const ATTEMPT: &str = "orchestra.attempt";
    /// Items done: integer.
    pub const DONE: &str = "orchestra.items.done";
    /// Items failed: integer.
    pub const FAILED: &str = "orchestra.items.failed";
    /// How a worker ended: text.
    pub const WORKER_EXIT: &str = "orchestra.worker.exit";
}

/// Fields of log lines.
pub mod field {
    /// Name of the pipeline. Decides the log file.
    pub const PIPELINE: &str = "pipeline";
    /// Name of the source.
    pub const SOURCE: &str = "source";
    /// Name of the stage.
    pub const STAGE: &str = "stage";
    /// Name of the model.
    pub const MODEL: &str = "model";
    /// Name of the sink.
    pub const SINK: &str = "sink";
    /// Name of the device.
    pub const DEVICE: &str = "device";
    /// Number of the worker.
    pub const WORKER: &str = "worker";
    /// Process id.
    pub const PID: &str = "pid";
    /// Name of the item.
    pub const ITEM: &str = "item";
    /// Number of the batch.
    pub const BATCH: &str = "batch";
    /// Items in the batch.
    pub const ROWS: &str = "rows";
    /// Which try this is, from 1.
    pub const ATTEMPT: &str = "attempt";
    /// Why something was done.
    pub const REASON: &str = "reason";
    /// How a worker ended.
    pub const EXIT: &str = "exit";
    /// An error's text.
    pub const ERROR: &str = "error";
    /// A file.
    pub const PATH: &str = "path";
}
