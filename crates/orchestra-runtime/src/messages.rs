//! The messages of the actors of a run, but for those that stay beside what they carry: `TasksMsg` (`tasks/actor.rs`).
//! Data only.

use std::fmt;
use std::sync::{Arc, Once};

use bytes::Bytes;
use orchestra_core::ledger::Rows;
use orchestra_core::lineage::End;
use orchestra_core::worker_places::Handover;
use orchestra_core::{
    BatchId, DeviceId, ItemId, PipelineId, SinkId, SourceId, StageId, WorkerExit, WorkerId,
};
use orchestra_plan::Origin;
use orchestra_worker::arena::Arena;
use orchestra_worker::frames::{DynamicOutput, Load, RowsWithoutOutputs, RunErrorKind};
use ractor::ActorRef;
use tokio::sync::mpsc::UnboundedSender;

use crate::batch::open_outputs::OpenOutputs;
use crate::batch::output_slots::{DoneOutputs, OutputSlots};
use crate::batch::outputs::CopiedOutput;
use crate::batch::slot_pool::{FilledSlot, SlotPool};
use crate::fleet::launcher::{EngineSpec, Engines};
use crate::fleet::worker::{DeathNotice, WorkerOrders};
use crate::flow::carried::CarriedArena;
use crate::flow::ticket::Ticket;
use crate::tasks::actor::TasksEnd;
use crate::trace::{BatchTrace, DoneRows, WorkerTimes};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTo {
    Sink(SinkId),
    /// The rows of a stage that reduces.
    Reduce(StageId),
}

#[derive(Debug, PartialEq)]
pub struct SinkRecord {
    pub to: RecordTo,
    /// A part of the buffer that all records of its batch lie in.
    pub bytes: Bytes,
    /// The name of the file that they are, relative to the folder of the sink; `None`: they are appended to the sink's file.
    pub file: Option<Box<str>>,
}

#[derive(Debug)]
pub struct TokenEnd {
    pub ticket: Ticket,
    pub end: End<SinkRecord>,
}

/// What has ended of some rows: of a batch, of a fold or of an item that was loaded.
pub struct EndedRows {
    pub whole: Option<SingleRecordItems>,
    pub tokens: Vec<TokenEnd>,
    pub outputs: Vec<RequestOutputs>,
}

/// Rows of one request, one behind the other in it, that have ended well.
pub struct RequestOutputs {
    pub first: Ticket,
    pub count: usize,
    /// What the batch gave for them, in the order of its outputs.
    pub columns: Vec<CopiedOutput>,
}

/// Items that each ended with its only record, where [`orchestra_plan::Plan::linear_from`] says that all do: nothing of them has to be counted,
/// so they come as one block, without a ticket and a record each.
pub struct SingleRecordItems {
    pub source: SourceId,
    pub sink: SinkId,
    pub done: Vec<ItemId>,
    pub text: Vec<u8>,
    pub traced: Option<DoneRows>,
    /// The slot that they come from, if it is not to be filled anew before they are written: so text that is made faster than it can be
    /// written does not pile up. Nothing else may be waited for before they are, or the slot would never come back.
    pub hold: Option<HeldBatch>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PipelineEnd {
    /// Every item is done or failed.
    Complete,
    /// It was asked to stop; what was in flight is committed.
    Stopped,
    /// Its items are made by pipelines that did not come to their end.
    NotStarted,
    /// As `Stopped`, since more of its items have failed than its own limit allows.
    TooManyFailed(LimitReached),
    /// No device is left for one of its stages.
    NoDevice(String),
    /// The model of one of its stages gives what is no row of an item.
    Unusable(String),
    /// Items have changed each other in the model of one of its stages: records may be wrong.
    Doubted(String),
    SinkFailed(String),
    /// The rows of a stage that reduces them are all there, and come to no result.
    NoResult(String),
    /// What a source names could not be listed to its end.
    NotListed(String),
    /// The list of items could not be written or read on, or what holds the items does not answer.
    SourceFailed(String),
    Bug(String),
}

impl fmt::Display for PipelineEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineEnd::Complete => f.write_str("complete"),
            PipelineEnd::Stopped => f.write_str("stopped"),
            PipelineEnd::NotStarted => f.write_str("not started"),
            PipelineEnd::NoDevice(why)
            | PipelineEnd::Unusable(why)
            | PipelineEnd::Doubted(why)
            | PipelineEnd::SinkFailed(why)
            | PipelineEnd::NoResult(why)
            | PipelineEnd::NotListed(why)
            | PipelineEnd::SourceFailed(why)
            | PipelineEnd::TooManyFailed(LimitReached { why, .. })
            | PipelineEnd::Bug(why) => f.write_str(why),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    Run,
    Pipeline(PipelineId),
}

/// More items have failed than a limit allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReached {
    pub stopped: Stopped,
    /// Which limit, and what to do, in words.
    pub why: String,
    /// The setting, as `--set` takes it, with which a start goes on regardless.
    pub lifted: String,
}

pub enum RootMsg {
    PipelineEnded(PipelineId, PipelineEnd),
    /// What a complete pipeline leaves for its end is written, or why it is not.
    PipelineWritten(PipelineId, Result<(), PipelineEnd>),
    /// No command runs, and none will.
    TasksEnded(TasksEnd),
    /// A device manager has no process left and stopped.
    DeviceEnded(DeviceId),
    FailureLimit(LimitReached),
    /// First signal: finish what is in flight.
    Interrupt,
    /// What was in flight then has had its time.
    GraceOver,
    /// Give each batch stage workers of these engines, one place after the other. Each device tells how that ended.
    ReplaceWorkers(Engines, ReplacementEnds),
    /// Second signal: kill the workers, record, end.
    Abort,
    /// What has no end is known, so that a pipeline that fell over a bug can be built anew.
    Rebuild(PipelineId),
    Look,
    JournalClosed(Result<orchestra_store::Counts, String>, Option<orchestra_store::OutputFolder>),
}

/// A worker process is gone and reaped; nothing of it can touch shared memory any more.
#[derive(Clone)]
pub struct WorkerEnd {
    pub worker: WorkerId,
    pub exit: WorkerExit,
    /// The tail of its stderr.
    pub last_words: String,
    pub progressed: bool,
    /// Bisection caused the death, as the batcher says.
    pub bisecting: bool,
}

impl fmt::Display for WorkerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.last_words[..] {
            "" => write!(f, "the worker {}", self.exit),
            words => write!(f, "the worker {}; its last words: {words}", self.exit),
        }
    }
}

pub struct ServeStage {
    pub stage: StageId,
    pub name: String,
    /// Name of its pipeline, for the log.
    pub pipeline: String,
    pub batcher: ActorRef<BatcherMsg>,
    pub pool: Arc<SlotPool>,
    pub engine: Arc<dyn EngineSpec>,
    pub load: Load,
    pub workers: usize,
    pub recycle: orchestra_plan::Recycle,
    /// Warns once, not for each of its workers, of nodes of the model that run on the cores.
    pub cpu_nodes: Once,
}

impl ServeStage {
    /// The same over other workers.
    pub fn with_engine(&self, engine: Arc<dyn EngineSpec>, load: Load) -> Self {
        let Self { stage, name, pipeline, batcher, pool, workers, recycle, .. } = self;
        Self {
            stage: *stage,
            name: name.clone(),
            pipeline: pipeline.clone(),
            batcher: batcher.clone(),
            pool: Arc::clone(pool),
            engine,
            load,
            workers: *workers,
            recycle: *recycle,
            cpu_nodes: Once::new(),
        }
    }
}

/// Told once for each stage and device: all workers are new, or all are the old ones again, for this reason. Closed when the last has told.
pub type ReplacementEnds = UnboundedSender<Result<(), String>>;

/// Other workers of a stage on a device.
pub struct Replacement {
    pub stage: StageId,
    pub engine: Arc<dyn EngineSpec>,
    pub load: Load,
    pub ended: ReplacementEnds,
}

pub enum DeviceMsg {
    Serve(Arc<ServeStage>),
    Replace(Replacement),
    /// No command is to have the device first any more: start the workers of what is served.
    Begin,
    Retire(StageId),
    /// A pause is over: start a worker in this place, if it still needs one.
    StartWorker {
        /// Which stage served here, by its place in the manager's table.
        at: usize,
        place: usize,
    },
    WorkerReady {
        worker: WorkerId,
        /// It has run its largest batch to warm up.
        is_warm: bool,
    },
    /// The device was looked at because this manager asked for it.
    Looked {
        number: u64,
        /// Its free memory in bytes; `None` where the driver does not tell.
        free: Option<u64>,
    },
    /// It is time to see whether a stage has work for more workers on the cores.
    LookAtCores,
    /// A pause, a look or a load has had its time: see what else can be done.
    GoOn,
    WorkerProgressed(WorkerId),
    RecycleWorker(WorkerId),
    /// A worker process is gone; the batcher has dealt with what it held.
    WorkerEnded(WorkerEnd),
    /// A worker process outlives its SIGKILL: its end will not be reported, and the batcher has been told.
    WorkerUndying(WorkerId),
    /// The device is not there any more, for this reason: nothing is started on it again.
    Lost(String),
    Shutdown {
        /// Kill instead of asking.
        now: bool,
    },
}

pub enum BatcherMsg {
    /// The memory that it works on: first message.
    Attach(Arc<SlotPool>),
    /// Something has happened in the memory that the batcher watches for.
    PoolChanged,
    Look,
    Drained,
    WorkerReady {
        worker: WorkerId,
        device: DeviceId,
        orders: WorkerOrders,
        outputs: Arc<OutputSlots>,
    },
    Done {
        worker: WorkerId,
        batch: BatchId,
        dynamic: Vec<DynamicOutput>,
        without: RowsWithoutOutputs,
        ran: WorkerTimes,
    },
    /// A batch gave no result, but the worker lives.
    Fault {
        worker: WorkerId,
        batch: BatchId,
        kind: RunErrorKind,
        error: String,
        ran: WorkerTimes,
    },
    /// Give this worker nothing new; end it when it holds nothing.
    DrainWorker(WorkerId, Handover),
    WorkerLost(DeathNotice),
    /// A worker process outlives its SIGKILL, as this says. What it holds is given to no other worker.
    WorkerUndying(String),
    DeviceGone {
        device: DeviceId,
        why: String,
    },
}

/// The memory of a batch whose records are not written yet.
pub type HeldBatch = Box<(Arc<FilledSlot>, OpenOutputs)>;

pub struct CompletedBatch {
    /// What its worker left. Dropped before the slot, so that its room is free when the slot is.
    pub outputs: Option<DoneOutputs>,
    /// The memory; dropping the last reference frees the slot.
    pub slot: Arc<FilledSlot>,
    pub rows: Rows,
    pub dynamic: Vec<DynamicOutput>,
    /// The room that these take.
    pub open: OpenOutputs,
    /// Of `rows`, as its worker says.
    pub without: RowsWithoutOutputs,
    pub trace: Option<Arc<BatchTrace>>,
}

pub enum SourceMsg {
    Demand {
        loader: usize,
        /// How many, at least 1.
        items: u64,
    },
    /// See whether a loader hangs.
    Tick,
    /// So many items of this source are committed.
    Committed(u64),
    /// Loaders are through with some more items, or its list has grown or ended: both are seen where they are counted. The list tells no more
    /// than once for each time that it is forced to the disk.
    Progressed,
    /// Records that were too many to hand out more items are written, also those of other sources.
    Written,
    /// The thread of a loader has ended by a bug of ours.
    LoaderPanicked,
    Stop,
}

pub struct PipelineMemory {
    /// The slots of its batch stages, in their order.
    pub slots: Vec<(StageId, Arena)>,
    /// Where pictures are kept that are made behind a source, a batch or a fold.
    pub pictures: Vec<(Origin, Arc<CarriedArena>)>,
}

pub enum PipelineMsg {
    Prepared(Result<PipelineMemory, String>),
    /// A source has nothing in flight and hands out nothing more.
    SourceFinished {
        source: SourceId,
        /// `Complete`: every item that it names is committed; else why not.
        end: PipelineEnd,
    },
    NoDevice(String),
    Unusable(String, RunErrorKind),
    SinkFailed(String),
    /// What ran beside its actors panicked.
    Bug(String),
    /// What holds the items of a source does not answer.
    SourceFailed(String),
    /// More items have failed than a limit allows, or the first ones have all failed somewhere.
    LimitReached(LimitReached),
    Stop,
    Abort,
}
