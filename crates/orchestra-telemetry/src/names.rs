//! Every name that a span, an attribute, an event or a log field bears. Names only: `docs/tracing.md` says what each means. Where
//! OpenTelemetry has a name for a thing, it is that one; ours begin with `orchestra.`.
//!
//! In a macro, a constant stands in braces where a field name is expected:
//!
//! ```
//! use orchestra_telemetry::names::field;
//! tracing::warn!({ field::PIPELINE } = "scans", "batch failed in its worker");
//! ```

/// What an exported trace calls the program, unless `OTEL_SERVICE_NAME` says otherwise.
pub const SERVICE: &str = "orchestra";

pub mod span {
    pub const RUN: &str = "workflow.run";
    pub const WORKER_LOAD: &str = "worker.load";
    pub const LOADER: &str = "loader";
    pub const BATCH: &str = "batch";
    pub const WORKER_RUN: &str = "worker.run";
    pub const WORKER_QUEUE: &str = "worker.queue";
    pub const WORKER_COPY_IN: &str = "worker.copy_in";
    pub const WORKER_COMPUTE: &str = "worker.compute";
    pub const WORKER_COPY_OUT: &str = "worker.copy_out";
    pub const TASK: &str = "task";
    pub const ITEM: &str = "item";
    pub const ITEM_READ: &str = "item.read";
    pub const ITEM_DECODE: &str = "item.decode";
    pub const ITEM_ROW: &str = "item.row";
    pub const ITEM_QUEUE: &str = "item.queue";
    pub const ITEM_BATCH: &str = "item.infer";
    pub const ITEM_POST: &str = "item.post";
    pub const ITEM_WRITE: &str = "item.write";
}

/// Attributes of spans, events and links.
pub mod attribute {
    pub const RUN_ID: &str = "orchestra.run.id";
    pub const WORKFLOW: &str = "orchestra.workflow";
    pub const PIPELINE: &str = "orchestra.pipeline";
    pub const SOURCE: &str = "orchestra.source";
    pub const STAGE: &str = "orchestra.stage";
    pub const MODEL: &str = "orchestra.model";
    pub const DEVICE: &str = "orchestra.device";
    pub const WORKER: &str = "orchestra.worker";
    pub const REPLACES: &str = "orchestra.worker.replaces";
    pub const WORKER_BEGUN: &str = "orchestra.worker.begun";
    pub const WORKER_EXIT: &str = "orchestra.worker.exit";
    pub const LAST_WORDS: &str = "orchestra.worker.last_words";
    pub const PLACES_LEFT: &str = "orchestra.places.left";
    pub const WORKER_BYTES: &str = "orchestra.worker.gpu_memory";
    pub const WORKERS_MORE: &str = "orchestra.workers.more";
    pub const PID: &str = "process.pid";
    pub const ITEM: &str = "orchestra.item";
    pub const ITEM_INDEX: &str = "orchestra.item.index";
    pub const ITEM_OUTCOME: &str = "orchestra.item.outcome";
    pub const ITEM_KEPT: &str = "orchestra.item.kept";
    pub const FAILURE_STAGE: &str = "orchestra.failure.stage";
    pub const BATCH_ID: &str = "orchestra.batch.id";
    pub const BATCH_NEXT: &str = "orchestra.batch.next";
    pub const BATCH_SIZE: &str = "orchestra.batch.size";
    pub const BATCH_REASON: &str = "orchestra.batch.reason";
    pub const BATCH_PADDED_SIZE: &str = "orchestra.batch.padded_size";
    pub const BATCH_FILLING: &str = "orchestra.batch.filling_ms";
    pub const BATCH_WAITING: &str = "orchestra.batch.waiting_ms";
    pub const BATCH_OUTCOME: &str = "orchestra.batch.outcome";
    pub const ATTEMPT: &str = "orchestra.attempt";
    pub const TASK: &str = "orchestra.task";
    pub const TASK_PLACE: &str = "orchestra.task.place";
    pub const TASK_END: &str = "orchestra.task.end";
    pub const TASK_PEAK_MEMORY: &str = "orchestra.task.peak_memory";
    /// The name of a metric follows, after a dot.
    pub const TASK_METRIC: &str = "orchestra.task.metric";
    pub const CEILING_FROM: &str = "orchestra.ceiling.from";
    pub const CEILING_TO: &str = "orchestra.ceiling.to";
    pub const TOTAL: &str = "orchestra.items.total";
    pub const DONE: &str = "orchestra.items.done";
    pub const FAILED: &str = "orchestra.items.failed";
    pub const RESUMED: &str = "orchestra.items.resumed";
    pub const ITEMS_KEPT: &str = "orchestra.items.kept";
    pub const BATCHES: &str = "orchestra.batches";
    pub const EXIT_CODE: &str = "orchestra.exit_code";
    pub const EVENTS_DROPPED: &str = "orchestra.events.dropped";
    pub const LINK: &str = "orchestra.link";
    pub const REASON: &str = "orchestra.reason";
    pub const ERROR_TYPE: &str = "error.type";
    pub const EXCEPTION_TYPE: &str = "exception.type";
    pub const EXCEPTION_MESSAGE: &str = "exception.message";
}

pub mod event {
    pub const EXCEPTION: &str = "exception";
    pub const BATCH_REQUEUED: &str = "batch.requeued";
    pub const BATCH_SPLIT: &str = "batch.split";
    pub const BATCH_ITEM_FAILED: &str = "batch.item_failed";
    pub const CEILING_LOWERED: &str = "ceiling.lowered";
    pub const CEILING_RAISED: &str = "ceiling.raised";
    pub const WORKER_LOST: &str = "worker.lost";
    pub const WORKER_RESTARTED: &str = "worker.restarted";
    pub const PLACE_PARKED: &str = "place.parked";
    pub const DEVICE_PARKED: &str = "device.parked";
    pub const DEVICE_LOST: &str = "device.lost";
    pub const MEMORY_MEASURED: &str = "memory.measured";
    pub const WORKERS_ADDED: &str = "workers.added";
}

/// Fields of log lines that decide something.
pub mod field {
    pub const RUN: &str = "run";
    /// Name of the pipeline. Decides the log file.
    pub const PIPELINE: &str = "pipeline";
}
