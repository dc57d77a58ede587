//! What the batcher does with what became of a batch: its end, a fault, or the death of its worker.

use std::time::Duration;

use orchestra_core::ledger::FailedBatchOutcome;
use orchestra_core::{BatchId, WorkerId};
use orchestra_worker::frames::{DynamicOutput, RowsWithoutOutputs, RunErrorKind, RunTiming};

use super::BatcherState;
use crate::batch::batches_in_flight::{self, BatchInFlight};
use crate::batch::output_slots::PendingOutputs;
use crate::messages::{CompletedBatch, WorkerEnd};
use crate::trace::{BatchEnd, WorkerTimes};

impl BatcherState {
    pub(super) fn done(
        &mut self,
        worker: WorkerId,
        batch: BatchId,
        (dynamic, without): (Vec<DynamicOutput>, RowsWithoutOutputs),
        ran: WorkerTimes,
    ) {
        let mut flight = self.in_flight.by_batch.remove(&batch);
        let outputs = flight.as_mut().and_then(|flight| flight.outputs.take());
        let now = self.now();
        let ceiling = self.traced_ceiling(flight.as_ref().map(|f| f.assignment.device));
        let Some(completed) = self.ledger.done(worker, batch) else { return };
        let mut trace = None;
        if let Some(flight) = flight {
            let RunTiming { bind_ns, run_ns, copy_out_ns } = ran.timing;
            tracing::debug!(
                pipeline = %self.pipeline_name, stage = %self.name, %batch, %worker,
                device = %self.device_name(completed.device), bind_us = bind_ns / 1000, run_us = run_ns / 1000,
                copy_out_us = copy_out_ns / 1000, away_us = now.saturating_sub(flight.sent).as_micros(),
                trace_id = flight.trace_id(), "batch done"
            );
            let ceiling = ceiling.zip(self.traced_ceiling(Some(completed.device)));
            trace = self.in_flight.end(&flight, ran, BatchEnd::Done, ceiling);
        }
        let answer_bytes = dynamic.iter().map(|output| output.data.len()).sum();
        self.ledger.took(completed.device, completed.rows.count, ran.timing.total(), answer_bytes);
        self.note_ceiling(completed.device);
        let stats = &self.args.context.stats;
        stats.device(completed.device).batches.add(1);
        stats.device(completed.device).rows.add(self.n_tokens(completed.rows));
        if let Some(slot) = self.rows_ended(completed.rows) {
            let outputs = outputs.map(PendingOutputs::done);
            let open = self.open_room.take(answer_bytes);
            self.completed =
                Some(CompletedBatch { outputs, slot, rows: completed.rows, dynamic, open, without, trace });
        }
        self.end_if_drained(worker);
    }

    pub(super) fn fault(
        &mut self,
        worker: WorkerId,
        batch: BatchId,
        kind: RunErrorKind,
        error: String,
        ran: WorkerTimes,
    ) {
        let flight = self.in_flight.by_batch.remove(&batch);
        if let Some(flight @ BatchInFlight { assignment: a, .. }) = &flight {
            tracing::warn!(
                pipeline = %self.pipeline_name, stage = %self.name, %batch, rows = a.rows.count,
                reason = %a.reason, attempt = a.attempt, device = %self.device_name(a.device), %worker,
                trace_id = flight.trace_id(), ?kind, %error, "batch failed in its worker"
            );
        }
        let now = self.now();
        let device = flight.as_ref().map(|f| f.assignment.device);
        let ceiling = self.traced_ceiling(device);
        if let Some(outcome) = self.ledger.fault(worker, batch, kind, error.clone(), now) {
            if let Some(flight) = flight {
                let end = BatchEnd::Fault { kind, error, then: batches_in_flight::then(&outcome) };
                self.trace_failed(&flight, ran, end, ceiling.zip(self.traced_ceiling(device)));
            }
            self.after(outcome);
        }
        if let Some(device) = device {
            self.note_ceiling(device);
        }
        self.end_if_drained(worker);
    }

    /// Says whether the death was to be expected, because a batch is being halved.
    pub(super) fn worker_lost(&mut self, end: &WorkerEnd, begun: &[(BatchId, Duration)]) -> bool {
        let WorkerEnd { worker, exit, last_words, .. } = end;
        let worker = *worker;
        self.workers.remove(&worker);
        let lost = self.ledger.worker_lost(worker, exit, last_words, self.now());
        // What follows is told for the youngest first.
        for (batch, outcome) in lost.held.iter().rev().zip(&lost.outcomes) {
            let Some(flight) = self.in_flight.by_batch.remove(batch) else { continue };
            let a = &flight.assignment;
            tracing::debug!(
                pipeline = %self.pipeline_name, stage = %self.name, %batch, rows = a.rows.count,
                attempt = a.attempt, device = %self.device_name(a.device), %worker, trace_id = flight.trace_id(),
                %exit, "batch lost its worker"
            );
            if self.in_flight.tracer.is_on() {
                let begun = begun.iter().find(|(begun, _)| begun == batch).map(|(_, at)| *at);
                let ran = WorkerTimes { begun, ..WorkerTimes::default() };
                let (exit, last_words) = (exit.clone(), last_words.clone());
                let end = BatchEnd::WorkerLost { exit, last_words, then: batches_in_flight::then(outcome) };
                self.trace_failed(&flight, ran, end, None);
            }
        }
        for outcome in lost.outcomes {
            self.after(outcome);
        }
        lost.bisecting
    }

    /// Tells the tracer of a batch without a result. Its rows still lie in their slot.
    fn trace_failed(
        &self,
        flight: &BatchInFlight,
        ran: WorkerTimes,
        end: BatchEnd,
        ceiling: Option<(usize, usize)>,
    ) {
        let trace = self.in_flight.end(flight, ran, end, ceiling);
        let rows = flight.assignment.rows;
        if let (Some(trace), Some(in_use)) = (trace, self.slots.get(&rows.slot)) {
            batches_in_flight::note_on_tokens(&in_use.slot, rows, &trace);
        }
    }

    fn after(&mut self, outcome: FailedBatchOutcome) {
        match outcome {
            FailedBatchOutcome::Requeued(batch) => {
                tracing::debug!(pipeline = %self.pipeline_name, stage = %self.name, %batch, "batch waits again");
            }
            FailedBatchOutcome::Split(batch) => {
                tracing::info!(pipeline = %self.pipeline_name, stage = %self.name, %batch, "batch taken apart");
            }
            FailedBatchOutcome::Failed(row) => self.fail_row(row),
            FailedBatchOutcome::Stop { why, kind, .. } => {
                let plan = &self.args.context.plan;
                let Some(batch) = plan.stages[self.args.stage.index()].batch() else { return };
                let model = &plan.models[batch.model.index()];
                let remedy = match (batch.max_batch, batch.fixed_batch) {
                    (1, _) if model.code.is_some() => "give what its `outputs` declare",
                    _ if model.code.is_some() && kind == RunErrorKind::Mixed => {
                        "a function of one row is declared with each=True; else set `batch = { max = 1 }`"
                    }
                    (1, _) => {
                        "export the model so that the output has one shape for all items, and declares it"
                    }
                    (_, None) => "set `batch = { max = 1 }`",
                    (_, Some(_)) => "export the model for batches of 1",
                };
                let other = if model.code.is_some() { "" } else { ", or read other outputs" };
                let (name, model) = (&self.name, model.in_words());
                let why = format!("stage `{name}` cannot use {model}: {why}; {remedy}{other}");
                self.args.completion.unusable(why, kind);
            }
        }
    }
}
