//! The batches that are with workers, and what the tracer is told of each when it ends. It decides nothing and holds no row: the
//! ledger does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::ledger::{Assignment, FailedBatchOutcome, Rows};
use orchestra_core::{BatchId, StageId};

use crate::batch::output_slots::PendingOutputs;
use crate::batch::slot_pool::FilledSlot;
use crate::context::{RunClock, RunContext};
use crate::flow::ticket::Ticket;
use crate::trace::{BatchEnd, BatchNumber, BatchTrace, FollowUp, MaybeTracer, WorkerTimes, id_in_logs};

/// The batches that are with the workers of a stage. What is left when it is dropped is told to have been given up.
pub struct BatchesInFlight {
    stage: StageId,
    pub tracer: MaybeTracer,
    clock: RunClock,
    pub by_batch: HashMap<BatchId, BatchInFlight>,
}

pub struct BatchInFlight {
    pub assignment: Assignment,
    pub sent: Duration,
    /// Where its outputs go; `None`: its worker has no way to it any more, and its death is about to be heard of.
    pub outputs: Option<PendingOutputs>,
    noted: Option<Noted>,
}

struct Noted {
    number: BatchNumber,
    items: usize,
    opened: Duration,
    filled: Duration,
}

impl BatchInFlight {
    pub fn trace_id(&self) -> Option<String> {
        self.noted.as_ref().and_then(|n| n.number.context.as_ref()).map(id_in_logs)
    }
}

impl BatchesInFlight {
    pub fn new(context: &RunContext, stage: StageId) -> Self {
        Self { stage, tracer: context.tracer.clone(), clock: context.clock, by_batch: HashMap::new() }
    }

    /// A batch leaves, out of this slot. Gives its trace as it stands in logs.
    pub fn begin(
        &mut self,
        assignment: Assignment,
        from: Option<&FilledSlot>,
        outputs: Option<PendingOutputs>,
    ) -> Option<String> {
        let noted = self.tracer.get().zip(from).map(|(tracer, slot)| Noted {
            number: tracer.number_batch(),
            items: slot.n_tokens(assignment.rows),
            opened: slot.opened,
            filled: slot.filled,
        });
        let flight = BatchInFlight { assignment, sent: self.clock.now(), outputs, noted };
        let trace_id = flight.trace_id();
        self.by_batch.insert(assignment.batch, flight);
        trace_id
    }

    pub fn end(
        &self,
        flight: &BatchInFlight,
        ran: WorkerTimes,
        end: BatchEnd,
        ceiling: Option<(usize, usize)>,
    ) -> Option<Arc<BatchTrace>> {
        let (tracer, noted) = self.tracer.get().zip(flight.noted.as_ref())?;
        let a = &flight.assignment;
        let trace = Arc::new(BatchTrace {
            number: noted.number,
            batch: a.batch,
            stage: self.stage,
            device: a.device,
            worker: a.worker,
            attempt: a.attempt,
            reason: a.reason,
            rows: a.rows.count,
            items: noted.items,
            opened: noted.opened,
            filled: noted.filled,
            sent: flight.sent,
            ran,
            ended: self.clock.now(),
            end,
            ceiling: ceiling.filter(|(before, after)| before != after),
            processed: std::sync::OnceLock::new(),
        });
        tracer.batch_ended(Arc::clone(&trace));
        Some(trace)
    }
}

impl Drop for BatchesInFlight {
    fn drop(&mut self) {
        for flight in std::mem::take(&mut self.by_batch).into_values() {
            self.end(&flight, WorkerTimes::default(), BatchEnd::GivenUp, None);
        }
    }
}

/// Notes on the way of every item in these rows that it was in this batch. Before any of them can end.
pub fn note_on_tokens(slot: &FilledSlot, rows: Rows, batch: &Arc<BatchTrace>) {
    items_of(slot, rows).filter_map(Ticket::timeline).for_each(|timeline| timeline.ran(batch));
}

pub fn then(outcome: &FailedBatchOutcome) -> FollowUp {
    match outcome {
        FailedBatchOutcome::Requeued(batch) | FailedBatchOutcome::Stop { waits: batch, .. } => {
            FollowUp::Requeued(*batch)
        }
        FailedBatchOutcome::Split(_) => FollowUp::Split,
        FailedBatchOutcome::Failed(row) => FollowUp::Failed(row.kind),
    }
}

fn items_of(slot: &FilledSlot, rows: Rows) -> impl Iterator<Item = &Ticket> {
    slot.tokens[rows.first..rows.first + rows.count].iter().flatten().map(|token| &token.ticket)
}
