//! What goes into a ledger and what comes out of it, as data.

use std::time::Duration;

use crate::batching::LeaveReason;
use crate::failure::FailureKind;
use crate::ids::{BatchId, DeviceId, SlotId, WorkerId};

/// Consecutive rows of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Where.
    pub slot: SlotId,
    /// First row.
    pub first: usize,
    /// How many, at least 1.
    pub count: usize,
}

impl Rows {
    /// The same rows as batches of `most` rows, at least 1, of which the last one may have fewer.
    pub fn pieces(self, most: usize) -> impl Iterator<Item = Rows> {
        let end = self.first + self.count;
        let piece = move |first: usize| Rows { first, count: most.min(end - first), ..self };
        (self.first..end).step_by(most).map(piece)
    }
}

/// A batch, or several that go together, on the way to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Which worker.
    pub worker: WorkerId,
    /// On which device it is.
    pub device: DeviceId,
    /// Which batch.
    pub batch: BatchId,
    /// Its rows.
    pub rows: Rows,
    /// How often a worker has begun these rows, this time included.
    pub attempt: u32,
    /// These rows were never sent before, neither whole nor as part of a larger batch.
    pub first_time: bool,
    /// Why it leaves.
    pub reason: LeaveReason,
}

/// The end of a batch that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// Its rows.
    pub rows: Rows,
    /// Where it ran.
    pub device: DeviceId,
    /// How often these rows were sent.
    pub attempts: u32,
    /// From its last dispatch to now.
    pub took: Duration,
}

/// The end of a row that has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRow {
    /// Where it lies: always one row.
    pub rows: Rows,
    /// Why.
    pub kind: FailureKind,
    /// The worker's or the runtime's words.
    pub error: String,
    /// How often it was sent.
    pub attempts: u32,
}

/// What a worker said about a batch that has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFault {
    /// Memory ran out.
    OutOfMemory,
    /// The model refused it.
    Model,
    /// The device is broken; the worker will exit.
    Device,
}

/// What happened to a batch that gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aftermath {
    /// It waits again, whole, under this new id.
    Requeued(BatchId),
    /// The halves of this batch wait, or, if it was several that went together, each of those.
    Split(BatchId),
    /// Its one row is failed.
    Failed(FailedRow),
}

/// What followed from the death of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// What it held, oldest first.
    pub held: Vec<BatchId>,
    /// What became of each batch it held.
    pub aftermath: Vec<Aftermath>,
    /// A larger batch around the one that ran had died before, and the device is known to work: the death was to be expected.
    pub bisecting: bool,
}
