//! Every name that a span, an attribute, an event or a log field bears. Names only: what they are used for is said where they are used
//! (`traces` for spans). Where OpenTelemetry has a name for a thing, it is that one; ours begin with `orchestra.`.
//!
//! In a macro, a constant stands in braces where a field name is expected:
//!
//! ```
//! use orchestra_telemetry::names::field;
//! tracing::warn!({ field::DEVICE } = "cuda:0", { field::BATCH } = 7, "batch failed in its worker");
//! ```

/// What an exported trace calls the program, unless `OTEL_SERVICE_NAME` says otherwise.
pub const SERVICE: &str = "orchestra";

/// Names of spans.
pub mod span {
    /// One start of a run, to its end.
    pub const RUN: &str = "workflow.run";
    /// A worker process, from its start until its model is loaded and warm.
    pub const WORKER_LOAD: &str = "worker.load";
    /// Rows that were sent to a worker, until they are done, failed or lost. Each attempt is a batch of its own.
    pub const BATCH: &str = "batch";
    /// The worker's part of a batch.
    pub const WORKER_RUN: &str = "worker.run";
    /// A batch on its way, and behind the one before it.
    pub const WORKER_QUEUE: &str = "worker.queue";
    /// Binding the rows to the session, and copies before it runs.
    pub const WORKER_COPY_IN: &str = "worker.copy_in";
    /// The session's run.
    pub const WORKER_COMPUTE: &str = "worker.compute";
    /// Copies of outputs after the run.
    pub const WORKER_COPY_OUT: &str = "worker.copy_out";
    /// One item, from the loader that took it to its record or failure in the journal.
    pub const ITEM: &str = "item";
    /// Reading the file.
    pub const ITEM_READ: &str = "item.read";
    /// Decoding it.
    pub const ITEM_DECODE: &str = "item.decode";
    /// Waiting for a free row of a stage, and writing the picture into it.
    pub const ITEM_ROW: &str = "item.row";
    /// From the row, or from an attempt that failed, until its batch is sent.
    pub const ITEM_QUEUE: &str = "item.queue";
    /// Its batch is with a worker.
    pub const ITEM_INFER: &str = "item.infer";
    /// Results become records, or rows of the next stage.
    pub const ITEM_POST: &str = "item.post";
    /// From the hand-over to the committer until it is in the journal.
    pub const ITEM_WRITE: &str = "item.write";
}

/// Attributes of spans, events and links.
pub mod attribute {
    /// Id of the run: text. On every span.
    pub const RUN_ID: &str = "orchestra.run.id";
    /// Name of the workflow: text.
    pub const WORKFLOW: &str = "orchestra.workflow";
    /// Name of the pipeline: text.
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
    /// Number of the worker whose place another one takes: integer.
    pub const REPLACES: &str = "orchestra.worker.replaces";
    /// The worker was started to stand by: true or false.
    pub const WORKER_SPARE: &str = "orchestra.worker.spare";
    /// The worker had come to the batch: true or false.
    pub const WORKER_BEGUN: &str = "orchestra.worker.begun";
    /// How a worker ended: text.
    pub const WORKER_EXIT: &str = "orchestra.worker.exit";
    /// What a worker said last on stderr: text.
    pub const LAST_WORDS: &str = "orchestra.worker.last_words";
    /// Places for workers that are left on the device: integer.
    pub const PLACES_LEFT: &str = "orchestra.places.left";
    /// Bytes of a GPU that one worker takes: integer.
    pub const WORKER_BYTES: &str = "orchestra.worker.gpu_memory";
    /// Workers that are started beside those that are there: integer.
    pub const WORKERS_MORE: &str = "orchestra.workers.more";
    /// Process id of a worker, or of the run: integer.
    pub const PID: &str = "process.pid";
    /// Name of the item: text.
    pub const ITEM: &str = "orchestra.item";
    /// Place of the item in its source, from 0: integer.
    pub const ITEM_INDEX: &str = "orchestra.item.index";
    /// How the item ended: `done`, `failed` or `not_written`.
    pub const ITEM_OUTCOME: &str = "orchestra.item.outcome";
    /// Why the item is traced: `ratio`, `parent`, `failed`, `retried` or `slow`.
    pub const ITEM_KEPT: &str = "orchestra.item.kept";
    /// Name of the stage at which the item failed: text.
    pub const FAILURE_STAGE: &str = "orchestra.failure.stage";
    /// Number of the batch, per stage, as in the log: integer.
    pub const BATCH_ID: &str = "orchestra.batch.id";
    /// Number of the batch that holds the same rows next: integer.
    pub const BATCH_NEXT: &str = "orchestra.batch.next";
    /// Items in the batch: integer.
    pub const BATCH_SIZE: &str = "orchestra.batch.size";
    /// Why the batch left: `full`, `timer`, `drain`, `idle`, `split` or `retry`.
    pub const BATCH_REASON: &str = "orchestra.batch.reason";
    /// The batch size that the batch is padded to: integer.
    pub const BATCH_PADDED_SIZE: &str = "orchestra.batch.padded_size";
    /// From the claim of its first row until all rows were there, in milliseconds: number.
    pub const BATCH_FILLING: &str = "orchestra.batch.filling_ms";
    /// From then until it was sent, in milliseconds: number.
    pub const BATCH_WAITING: &str = "orchestra.batch.waiting_ms";
    /// How the batch ended: `done`, `failed`, `worker_lost` or `given_up`.
    pub const BATCH_OUTCOME: &str = "orchestra.batch.outcome";
    /// Items of the batch that are traced: integer. At most 128 of them are linked.
    pub const BATCH_KEPT: &str = "orchestra.batch.items.kept";
    /// Which try this is, from 1: integer.
    pub const ATTEMPT: &str = "orchestra.attempt";
    /// Most items that a batch on the device held before: integer.
    pub const CEILING_FROM: &str = "orchestra.ceiling.from";
    /// Most items that a batch on the device holds from now on: integer.
    pub const CEILING_TO: &str = "orchestra.ceiling.to";
    /// Items that the sources name: integer.
    pub const TOTAL: &str = "orchestra.items.total";
    /// Items done: integer.
    pub const DONE: &str = "orchestra.items.done";
    /// Items failed: integer.
    pub const FAILED: &str = "orchestra.items.failed";
    /// Items that earlier starts of the run had finished: integer.
    pub const RESUMED: &str = "orchestra.items.resumed";
    /// Items that are traced: integer.
    pub const ITEMS_KEPT: &str = "orchestra.items.kept";
    /// Batches sent: integer.
    pub const BATCHES: &str = "orchestra.batches";
    /// Exit code of the command: integer.
    pub const EXIT_CODE: &str = "orchestra.exit_code";
    /// Events for which there was no room: integer.
    pub const EVENTS_DROPPED: &str = "orchestra.events.dropped";
    /// What a link leads to: `run`, `batch`, `item`, `previous` or `next`.
    pub const LINK: &str = "orchestra.link";
    /// Why something was done: text.
    pub const REASON: &str = "orchestra.reason";
    /// The kind of an error, from a small set: text.
    pub const ERROR_TYPE: &str = "error.type";
    /// The kind of an error, in an `exception` event: text.
    pub const EXCEPTION_TYPE: &str = "exception.type";
    /// An error in words: text.
    pub const EXCEPTION_MESSAGE: &str = "exception.message";
}

/// Events of spans.
pub mod event {
    /// An error, on the span that it ended.
    pub const EXCEPTION: &str = "exception";
    /// The rows of a batch wait again, whole.
    pub const BATCH_REQUEUED: &str = "batch.requeued";
    /// The rows of a batch wait again, in halves.
    pub const BATCH_SPLIT: &str = "batch.split";
    /// The one item of a batch is failed.
    pub const BATCH_ITEM_FAILED: &str = "batch.item_failed";
    /// The device gets smaller batches from now on.
    pub const CEILING_LOWERED: &str = "ceiling.lowered";
    /// The device gets larger batches again.
    pub const CEILING_RAISED: &str = "ceiling.raised";
    /// A worker died.
    pub const WORKER_LOST: &str = "worker.lost";
    /// A worker is started in the place of another one.
    pub const WORKER_RESTARTED: &str = "worker.restarted";
    /// A worker that stood by takes the place of another one.
    pub const WORKER_PROMOTED: &str = "worker.promoted";
    /// The place of a worker is given up.
    pub const PLACE_PARKED: &str = "place.parked";
    /// The last place of a stage on a device is given up, and with it the device for the stage.
    pub const DEVICE_PARKED: &str = "device.parked";
    /// No further spare is started.
    pub const SPARES_GIVEN_UP: &str = "spares.given_up";
    /// A GPU is not there any more.
    pub const DEVICE_LOST: &str = "device.lost";
    /// What one worker takes of a GPU was measured, or could not be.
    pub const MEMORY_MEASURED: &str = "memory.measured";
    /// More workers are started on a GPU, because they fit.
    pub const WORKERS_ADDED: &str = "workers.added";
}

/// Fields of log lines.
pub mod field {
    /// Id of the run.
    pub const RUN: &str = "run";
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
