//! The messages between parent and worker, as data. How they are cut into bytes is `codec`'s business.
//!
//! ```text
//! worker                      parent
//!   Hello            ->
//!                    <-       Load
//!   Loaded|LoadFailed->
//!                    <-       Run   (at most two more than the worker runs at once not yet answered)
//!   Done|Failed      ->             (in the order of the runs, where the worker runs one at a time)
//!   Heartbeat        ->             (all the time from Hello on, from a thread of its own, also while loading or running)
//!                    <-       end of file (the parent closed its side or is gone): the worker exits at once, also from a run
//! ```
//!
//! Tensors lie in two pieces of shared memory that the process inherits: the inputs of its stage, which no worker can write to, and its own
//! outputs, which no other process can. The parent names the rows in both, and reads outputs where it has said that they shall be: no frame
//! of a worker says where anything lies.

use std::time::Duration;

use bincode::{Decode, Encode};
use orchestra_core::batch_layout::BatchLayout;
pub use orchestra_core::ledger::RunErrorKind;
use orchestra_core::{BatchId, DType, DeviceKind, ErrorClass, MAX_RANK, OutputSlotId, SlotId};

/// Raised with every change of a frame. Both sides must agree exactly.
pub const PROTOCOL_VERSION: u32 = 18;

/// What a worker shall load, and how it is to serve it: the same for every engine, but for `spec`.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Load {
    /// What to load, in bytes that only the engine reads.
    pub spec: Vec<u8>,
    /// Where it runs. A CUDA worker sees exactly one device, so it is always ordinal 0 for it.
    pub device: DeviceKind,
    pub threads: usize,
    /// Batches that run at once, at least 1. They are begun in the order of their frames.
    pub streams: usize,
    /// The size that smaller batches are padded to, where a new size costs time. It is run once before the worker reports `Loaded`.
    pub padded_to: Option<usize>,
    /// Where rows lie in the inputs and in the outputs.
    pub layout: BatchLayout,
    /// Bytes that the outputs of open shape of a batch may have. Of a larger answer nothing is kept.
    pub answer_bytes: usize,
}

/// One batch: `rows` consecutive rows of `slot`, from `first_row` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct BatchRun {
    pub batch: BatchId,
    /// How often it has been dispatched, from 1.
    pub attempt: u32,
    /// Where its inputs lie.
    pub slot: SlotId,
    /// Where its outputs go, to the rows of the same numbers. No run over these rows of it is on its way.
    pub output_slot: OutputSlotId,
    pub first_row: usize,
    /// How many rows, at least 1.
    pub rows: usize,
}

/// Parent to worker.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum ToWorker {
    /// Once, after `Hello`.
    Load(Box<Load>),
    Run(BatchRun),
    /// A batch of a stage whose rows have values beside their slots: for each row, each of them as
    /// [`StoredValue`](orchestra_core::row_bytes::StoredValue), one after the other.
    RunWithValues(BatchRun, Vec<u8>),
}

impl ToWorker {
    /// What the bytes of a `RunWithValues` begin with: its place among the frames.
    pub(crate) const RUN_WITH_VALUES: u8 = 2;
}

/// An output whose shape was only known after the run, or rows of it: those of several of one output are one behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct DynamicOutput {
    /// Which output of the model, by its place.
    pub output: usize,
    pub dtype: DType,
    /// The whole shape. Its first dimension is the number of rows. Texts, one for each row, are one list of bytes.
    pub shape: Vec<usize>,
    /// Elements in native byte order, row-major; texts as [`texts`](orchestra_core::model_output::texts) packs them.
    pub data: Vec<u8>,
}

impl DynamicOutput {
    /// Most empty lists that a sound output without elements consists of.
    const MAX_EMPTY_LISTS: usize = 1 << 20;

    /// Whether the data are as long as type and shape say, and the shape is one that can be written down as lists within lists. A worker
    /// that ran wild may say anything.
    pub fn is_sound(&self) -> bool {
        let product = |dims: &[usize]| dims.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
        let before_zero = self.shape.split(|dim| *dim == 0).next().unwrap_or_default();
        let Some(lists) = product(before_zero) else { return false };
        let elements = if before_zero.len() < self.shape.len() { 0 } else { lists };
        self.shape.len() <= MAX_RANK
            && elements.checked_mul(self.dtype.size_bytes()) == Some(self.data.len())
            && lists <= elements.max(Self::MAX_EMPTY_LISTS)
    }
}

/// Rows of a run that have no outputs, by their numbers in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct RowsWithoutOutputs {
    /// Those that a program has dropped.
    pub dropped: Vec<usize>,
    /// Those that have failed, where the program knows which.
    pub failed: Vec<RowError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct RowError {
    pub row: usize,
    /// [`RunErrorKind::TooLarge`], or that the data are at fault.
    pub kind: RunErrorKind,
    pub error: String,
}

/// Where the time of a run went inside the worker, in nanoseconds, its batches added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct RunTiming {
    /// Copies and binding before the session ran.
    pub bind_ns: u64,
    pub run_ns: u64,
    /// Copies after it.
    pub copy_out_ns: u64,
}

impl RunTiming {
    pub fn total(&self) -> Duration {
        let Self { bind_ns, run_ns, copy_out_ns } = *self;
        Duration::from_nanos(bind_ns.saturating_add(run_ns).saturating_add(copy_out_ns))
    }
}

impl FromWorker {
    /// What the bytes of a `Done` begin with: its place among the frames.
    pub(crate) const DONE: u8 = 3;
}

/// Worker to parent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FromWorker {
    Hello {
        /// `PROTOCOL_VERSION` of the worker.
        protocol: u32,
        /// `CARGO_PKG_VERSION` of the worker's wire crate.
        build: String,
        /// Its process id.
        pid: u32,
        /// `CUDA_VISIBLE_DEVICES` as the worker sees it.
        visible_devices: Option<String>,
    },
    /// What was to be loaded is there and warm.
    Loaded {
        /// What runs how much of it; ONNX Runtime counts nodes per execution provider.
        providers: Vec<(String, u32)>,
        runtime_version: String,
        /// The largest batch that was run before this frame; 0 if none was.
        warmed: usize,
        /// From the `Load` frame to this one, in nanoseconds.
        load_ns: u64,
        /// Resident memory of the worker in bytes.
        rss_bytes: u64,
    },
    /// The worker cannot serve this model; it exits after this frame.
    LoadFailed {
        /// `Permanent`: no restart helps. `Transient`: it may. `Overload`: out of memory.
        class: ErrorClass,
        /// What failed, what was expected, what to do.
        error: String,
    },
    /// A batch is done: its fixed-shape outputs lie in its output slot, in the rows of the run.
    Done {
        batch: BatchId,
        /// Outputs that had no place there.
        dynamic: Vec<DynamicOutput>,
        /// Their outputs stand for nothing.
        without: RowsWithoutOutputs,
        /// Where the time went.
        timing: RunTiming,
        /// Resident memory of the worker in bytes.
        rss_bytes: u64,
    },
    /// A batch gave no result.
    Failed {
        batch: BatchId,
        kind: RunErrorKind,
        /// The runtime's words.
        error: String,
        /// Where the time went.
        timing: RunTiming,
    },
    /// The process is alive.
    Heartbeat,
    /// The load waits for another process, which builds what this one then reads. The time that a load may take begins anew.
    Waiting,
}
