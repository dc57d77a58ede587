//! What becomes of a batch that has no result: it is tried again, in parts or as it is, or failed. It chooses no worker.

use std::time::Duration;

use super::{Batch, Ledger};
use crate::batch_events::{FailedBatchOutcome, Rows, RunErrorKind};
use crate::blame::{BatchDeath, DeathOutcome, IsolatedRun};
use crate::failure::FailureKind;
use crate::ids::{BatchId, DeviceId};
use crate::worker_exit::Evidence;

/// Times that memory may run out for a single row that runs alone before it is failed.
const OUT_OF_MEMORY_ALONE: u32 = 6;
/// First pause before such a row is tried again, doubled each time: what holds the memory may give it back.
const OUT_OF_MEMORY_PAUSE: Duration = Duration::from_millis(250);
/// That pause is doubled so often, and no more.
const OUT_OF_MEMORY_DOUBLINGS: u32 = 6;

impl Ledger {
    pub(super) fn after_death(
        &mut self,
        id: BatchId,
        mut b: Batch,
        died: BatchDeath,
        kind: FailureKind,
        error: String,
    ) -> FailedBatchOutcome {
        match b.suspicion.died(BatchDeath { rows: b.rows.count, ..died }) {
            DeathOutcome::Retry => {
                if died.evidence == Evidence::Strong {
                    b.if_confirmed = Some((kind, error));
                }
                self.requeue(b)
            }
            DeathOutcome::Split => self.split(id, b),
            DeathOutcome::RunAlone => self.requeue_alone(b, Duration::ZERO),
            DeathOutcome::Confirmed => FailedBatchOutcome::Failed(b.failed(kind, error)),
        }
    }

    pub(super) fn out_of_memory(
        &mut self,
        id: BatchId,
        mut b: Batch,
        device: DeviceId,
        alone: bool,
        error: String,
        now: Duration,
    ) -> FailedBatchOutcome {
        if let Some(c) = self.ceilings.get_mut(&device) {
            c.out_of_memory(b.rows.count);
        }
        if b.rows.count > 1 {
            return self.split(id, b);
        }
        // Only tries with the stage's workers to itself speak against the row, and only when no device has room for it.
        if alone {
            b.out_of_memory += 1;
            b.suspicion.found_no_room(device);
        }
        if b.out_of_memory >= OUT_OF_MEMORY_ALONE && b.suspicion.fits_nowhere(&self.history) {
            return FailedBatchOutcome::Failed(b.failed(FailureKind::OutOfMemory, error));
        }
        let due = now + OUT_OF_MEMORY_PAUSE * 2u32.pow(b.out_of_memory.min(OUT_OF_MEMORY_DOUBLINGS));
        self.requeue_alone(b, due)
    }

    pub(super) fn refused(&mut self, mut b: Batch, device: DeviceId, error: String) -> FailedBatchOutcome {
        b.suspicion.refused_on(device);
        if self.history.is_proven(device) || b.suspicion.isolated_run(&self.history) == IsolatedRun::Done {
            return FailedBatchOutcome::Failed(b.failed(FailureKind::Model, error));
        }
        b.if_confirmed = Some((FailureKind::Model, error));
        self.requeue(b)
    }

    /// Row `row` of the batch has its end: the code itself has named it, so no other try is asked. A row that the batch does not have names
    /// none, and halves tell.
    pub(super) fn rejected(&mut self, id: BatchId, b: Batch, row: u64, error: String) -> FailedBatchOutcome {
        let Rows { slot, first, count } = b.rows;
        if count == 1 {
            return FailedBatchOutcome::Failed(b.failed(FailureKind::Model, error));
        }
        let Some(row) = usize::try_from(row).ok().filter(|row| *row < count) else {
            return self.split(id, b);
        };
        let part = |first, count| Rows { slot, first, count };
        self.confirmed.push_back(b.part(part(first + row, 1)).failed(FailureKind::Model, error));
        let rest = [part(first, row), part(first + row + 1, count - row - 1)];
        self.replace(id, &b, rest.into_iter().filter(|part| part.count > 0).collect())
    }

    /// The row waits for ever, so that it has no end in this run.
    pub(super) fn stop(&mut self, b: Batch, kind: RunErrorKind, why: String) -> FailedBatchOutcome {
        self.is_stopped = true;
        FailedBatchOutcome::Stop { waits: self.wait_again(b), why, kind }
    }

    /// Replaces batch `id` by its halves.
    pub(super) fn split(&mut self, id: BatchId, b: Batch) -> FailedBatchOutcome {
        let Rows { slot, first, count } = b.rows;
        let mid = count / 2;
        let halves =
            [Rows { slot, first, count: mid }, Rows { slot, first: first + mid, count: count - mid }];
        self.replace(id, &b, halves.into())
    }

    pub(super) fn split_into_rows(&mut self, id: BatchId, b: &Batch) -> FailedBatchOutcome {
        let Rows { slot, first, count } = b.rows;
        self.replace(id, b, (first..first + count).map(|first| Rows { slot, first, count: 1 }).collect())
    }

    fn replace(&mut self, id: BatchId, b: &Batch, rows: Vec<Rows>) -> FailedBatchOutcome {
        let mut parts: Vec<Batch> = rows.into_iter().map(|rows| b.part(rows)).collect();
        if !b.suspicion.is_suspect() {
            parts.reverse(); // The first one is put in front last.
        }
        for part in parts {
            self.wait_again(part);
        }
        FailedBatchOutcome::Split(id)
    }
}
