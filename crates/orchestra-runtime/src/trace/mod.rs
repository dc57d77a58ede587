//! What a run tells its tracer, as plain data and after the fact: a record per batch, per commit, per step of a worker's life. It
//! knows no tracing backend, makes no span and decides nothing about what is kept.
//!
//! All times are durations on the clock of the run; [`RunBegan::zero`] says when that was. Without a tracer none of this exists, and no
//! clock is read for it.

pub(crate) mod ended;
pub(crate) mod timeline;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use orchestra_core::batching::LeaveReason;
use orchestra_core::tasks::EndClass;
use orchestra_core::{
    BatchId, DeviceId, Failure, FailureKind, ItemId, SourceId, StageId, WorkerExit, WorkerId,
};
use orchestra_plan::Plan;
use orchestra_store::TaskEnded;
pub use orchestra_worker::frames::{RunErrorKind, RunTiming};

pub use ended::{DoneRows, EndedItem, EndedItems, MaybeFailed, SlotTokens, Ticket, Token};
pub use timeline::{Loading, Steps, Timeline};

/// Follows runs. One tracer may follow several at once.
pub trait Tracer: Send + Sync {
    /// A run begins. What is returned is told everything about it, and is dropped when nothing of the run is left.
    fn begin(&self, run: RunBegan) -> Arc<dyn RunTracer>;
}

/// Follows one run. Called right when things happen, by the threads that did them, so it must not block or take long: it is there to put
/// the record somewhere. Several threads may call it at once.
pub trait RunTracer: Send + Sync {
    /// A batch is about to be sent. The numbers of the batches of a run are 0, 1, 2, ...
    fn number_batch(&self) -> BatchNumber;
    /// The trace that an item which has failed is found in, for the line about it in the log. `None`: it is not known, or there is none.
    fn trace_of_failed(&self, _: ItemId) -> Option<TraceContext> {
        None
    }
    /// A batch that was sent has ended. Told once for each number, before any item that was in it.
    fn batch_ended(&self, _: Arc<BatchTrace>) {}
    /// These items have ended: told once for each that is in the journal, and for those that could not be written. Called by the thread
    /// that writes the journal, for hundreds of items at a time: what is wanted of them is copied with [`EndedItem::trace`].
    fn items_ended(&self, _: &[EndedItems]) {}
    /// Something happened to a worker or its place.
    fn worker(&self, _: WorkerTrace) {}
    /// Something happened to a device, or was found out about it.
    fn device(&self, _: DeviceTrace) {}
    /// A process that reads and decodes items has ended.
    fn loader(&self, _: LoaderTrace) {}
    fn task(&self, _: TaskTrace) {}
    /// The run is over. Records of what is still being cleared away may follow.
    fn ended(&self, _: RunEnded) {}
}

/// A W3C trace context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: [u8; 16],
    /// Id of the span that is the parent of what the receiver does.
    pub span_id: [u8; 8],
    /// Trace flags; bit 0 is "sampled".
    pub flags: u8,
}

#[derive(Debug, Clone)]
pub struct RunBegan {
    /// What runs: names of stages, devices, models, pipelines and sources.
    pub plan: Arc<Plan>,
    /// Id of the run, the same each time that it is continued.
    pub run_id: String,
    /// The start of the run's clock.
    pub zero: SystemTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnded {
    pub at: Duration,
    /// Items that the sources name, if that was known.
    pub total: Option<u64>,
    /// Of these, finished by the runs that it continues.
    pub resumed: u64,
    /// Items with records, and those that failed, in this run and those that it continues.
    pub done: u64,
    pub failed: u64,
    /// Exit code of the command; `None` if the run was given up by its holder.
    pub exit_code: Option<i32>,
    /// What stopped it, in words, where it is not complete.
    pub problems: Vec<String>,
}

/// What a batch is called in traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNumber {
    /// Its place in the order in which batches were sent. Unlike a [`BatchId`] it is never used twice in a run.
    pub number: u64,
    /// The span that the worker's part belongs to.
    pub context: Option<TraceContext>,
}

/// A batch that was sent to a worker, from its first row to its end. Each attempt at the same rows is a batch of its own.
#[derive(Debug)]
pub struct BatchTrace {
    pub number: BatchNumber,
    /// What the log calls it.
    pub batch: BatchId,
    pub stage: StageId,
    pub device: DeviceId,
    pub worker: WorkerId,
    /// How often a worker has begun these rows, this time included; from 1.
    pub attempt: u32,
    pub reason: LeaveReason,
    /// Rows of the batch, holes included.
    pub rows: usize,
    pub items: usize,
    /// When the first row of its slot was claimed.
    pub opened: Duration,
    /// When its slot was full or closed, and all rows were there.
    pub filled: Duration,
    pub sent: Duration,
    pub ran: WorkerTimes,
    pub ended: Duration,
    pub end: BatchEnd,
    /// The most rows that the device takes of this stage, before and after, where this batch changed it.
    pub ceiling: Option<(usize, usize)>,
    /// Post-processing of its rows, once that is over: from, to.
    pub processed: OnceLock<(Duration, Duration)>,
}

/// What is known of a batch from its worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// When it was the next for the worker: it was there, and the one before it was answered. `None`: it was not reached.
    pub begun: Option<Duration>,
    /// When the answer came, if one came.
    pub answered: Option<Duration>,
    /// Where its time went inside the worker.
    pub timing: RunTiming,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchEnd {
    Done,
    /// The worker had no result for it.
    Fault {
        kind: RunErrorKind,
        /// The runtime's words.
        error: String,
        then: FollowUp,
    },
    /// Its worker died. The `last_words` of a worker are what it said last on stderr.
    WorkerLost {
        exit: WorkerExit,
        last_words: String,
        then: FollowUp,
    },
    /// The run ended, or its pipeline fell over, before it was answered.
    GivenUp,
}

/// What followed for the rows of a batch without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowUp {
    /// They wait again, as this batch.
    Requeued(BatchId),
    /// They wait again, in halves.
    Split,
    /// The one item failed.
    Failed(FailureKind),
}

#[derive(Debug, Clone)]
pub struct ItemTrace {
    pub id: ItemId,
    /// Path relative to the source's root.
    pub name: String,
    pub steps: Steps,
    /// When it was handed to the committer.
    pub handed: Duration,
    /// When it was in the journal, or could not be written.
    pub ended: Duration,
    pub end: ItemEnd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemEnd {
    Done,
    Failed(Failure),
    /// It could not be written, and is to be done again by another run.
    NotWritten(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerTrace {
    pub at: Duration,
    pub worker: WorkerId,
    pub stage: StageId,
    pub device: DeviceId,
    pub step: WorkerStep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerStep {
    Started {
        /// Its process id, if it is a process.
        pid: Option<u32>,
        /// The worker whose place it takes when it is loaded.
        instead_of: Option<WorkerId>,
    },
    Loaded,
    /// It is gone, or could not be started.
    Ended {
        exit: WorkerExit,
        last_words: String,
    },
    /// After its death its place is given up.
    PlaceParked {
        /// Places that are left on the device. With none, the device is parked for the stage.
        left: usize,
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTrace {
    pub at: Duration,
    pub device: DeviceId,
    pub step: DeviceStep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceStep {
    Lost {
        why: String,
    },
    /// It is known now what one worker of a stage takes of its memory.
    Measured {
        stage: StageId,
        bytes: u64,
    },
    /// More workers are started, because they fit.
    WorkersAdded {
        stage: StageId,
        more: usize,
    },
}

/// A process that read and decoded items, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoaderTrace {
    pub source: SourceId,
    pub pid: u32,
    pub began: Duration,
    pub ended: Duration,
    /// Clean, where the run had no more use for it.
    pub exit: WorkerExit,
    pub last_words: String,
}

/// An attempt at a task of `[tasks.*]`.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskTrace {
    pub began: Duration,
    pub ended: Duration,
    pub class: EndClass,
    /// What the journal says of it.
    pub entry: TaskEnded,
}

/// The id of a trace, as it stands in logs and in the address of its page.
pub fn id_in_logs(trace: &TraceContext) -> String {
    trace.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The tracer of a run that may have none.
#[derive(Clone, Default)]
pub struct MaybeTracer(Option<Arc<dyn RunTracer>>);

impl MaybeTracer {
    /// Has `tracer` follow the run, if there is one.
    pub(crate) fn begin(tracer: Option<&Arc<dyn Tracer>>, run: impl FnOnce() -> RunBegan) -> Self {
        Self(tracer.map(|t| t.begin(run())))
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&Arc<dyn RunTracer>> {
        self.0.as_ref()
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }
}
