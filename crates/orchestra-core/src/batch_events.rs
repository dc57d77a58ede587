//! What goes into a ledger and what comes out of it, as data.

use bincode::{Decode, Encode};

use crate::batching::LeaveReason;
use crate::failure::FailureKind;
use crate::ids::{BatchId, DeviceId, SlotId, WorkerId};

/// Consecutive rows of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    pub slot: SlotId,
    pub first: usize,
    /// How many, at least 1.
    pub count: usize,
}

/// A batch on the way to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    pub worker: WorkerId,
    pub device: DeviceId,
    pub batch: BatchId,
    pub rows: Rows,
    /// How often a worker has begun these rows, this time included.
    pub attempt: u32,
    /// These rows were never sent before, neither whole nor as part of a larger batch.
    pub first_time: bool,
    pub reason: LeaveReason,
}

/// The end of a batch that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    pub rows: Rows,
    pub device: DeviceId,
}

/// The end of a row that has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRow {
    /// Where it lies: always one row.
    pub rows: Rows,
    pub kind: FailureKind,
    /// The worker's or the runtime's words.
    pub error: String,
    pub attempts: u32,
}

/// Why a run gave no result. The worker lives on, unless it exits by itself right after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum RunErrorKind {
    /// Memory ran out: less at once may work.
    OutOfMemory,
    /// The model refused the data (or made something that cannot be split into items): a smaller batch may tell which item.
    Model,
    /// The device or provider is broken: the worker exits after this answer.
    Device,
    /// The code rejects this row of the run: the others are to be run again without it.
    Row(u64),
    /// An output has no row for each item of the batch. That is the model's doing, and speaks against no item: each row runs by itself.
    Shape,
    /// An item has other outputs alone than in its batch: no batch of this model can be believed.
    Mixed,
    /// Its outputs have more bytes than there are for a batch, whatever else runs: fewer rows may have less, and a row alone has failed.
    TooLarge,
}

/// What happened to a batch that gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailedBatchOutcome {
    /// It waits again, whole, under this new id.
    Requeued(BatchId),
    /// The halves of this batch wait, or each of its rows, or what is left of it without a row that was rejected, which is the next that `Ledger::next_confirmed` gives.
    Split(BatchId),
    Failed(FailedRow),
    /// The model gives what is no row even of a batch of one, for this reason: no row would fare better, so it waits
    /// under this new id, and nothing is dispatched any more.
    Stop {
        waits: BatchId,
        why: String,
        /// What the run gave no result for.
        kind: RunErrorKind,
    },
}

/// What followed from the death of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostBatches {
    /// What it held, oldest first.
    pub held: Vec<BatchId>,
    /// What became of each batch it held.
    pub outcomes: Vec<FailedBatchOutcome>,
    /// A larger batch around the one that ran had died before, and the device is known to work: the death was to be expected.
    pub bisecting: bool,
}
