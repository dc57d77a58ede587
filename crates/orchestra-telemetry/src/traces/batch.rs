//! Batches as spans: `batch`, under it `worker.run`, and under that the phases that the worker reported. Items refer to their batches, and
//! a batch knows no item.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::SpanContext;
use orchestra_runtime::ExitKind;
use orchestra_runtime::trace::{BatchEnd, BatchTrace, FollowUp, RunErrorKind};

use super::assembly::{BATCHES_IN_RUN, RunFacts};
use super::ids::About;
use super::span::{OpenSpan, number};
use crate::names::{attribute, event, span};

/// Batches in the trace of the run are drawn and matter, and those without a result; the others if an item that is traced was in them.
pub(super) fn matters(batch: &BatchTrace) -> bool {
    batch.number.number < BATCHES_IN_RUN || batch.end != BatchEnd::Done
}

pub(super) fn draw(batch: &BatchTrace, run: &RunFacts) {
    let number_in_run = batch.number.number;
    let parent = run.parent_of_batch(number_in_run);
    let ids = run.seed.root(About::Batch(number_in_run));
    let mut span = run.open(span::BATCH, ids, parent, batch.sent);
    if parent.is_none() {
        span.link(run.context.clone(), "run");
    }
    let stage = run.stage(batch.stage);
    let (outcome, error) = outcome(&batch.end);
    span.set(attribute::BATCH_ID, number(batch.batch.0));
    span.set(attribute::BATCH_SIZE, number(batch.items));
    span.set(attribute::BATCH_REASON, batch.reason.as_str());
    if let Some(size) = stage.padded_size(batch.rows) {
        span.set(attribute::BATCH_PADDED_SIZE, number(size));
    }
    span.set(attribute::ATTEMPT, i64::from(batch.attempt));
    span.add(stage.attributes.iter().cloned());
    span.add([run.device(batch.device)]);
    span.set(attribute::WORKER, i64::from(batch.worker.0));
    span.set(attribute::BATCH_FILLING, millis(batch.filled.saturating_sub(batch.opened)));
    span.set(attribute::BATCH_WAITING, millis(batch.sent.saturating_sub(batch.filled)));
    span.set(attribute::BATCH_OUTCOME, outcome);
    if let Some((kind, error)) = &error {
        span.fail(*kind, error, batch.ended);
    }
    what_followed(batch, &mut span);
    let mut n = 0;
    worker_run(run, batch, &span.context(), error, |name, parent, from| {
        n += 1;
        let ids = (parent.trace_id(), run.seed.part(About::Batch(number_in_run), n));
        run.open(name, ids, Some(parent), from)
    });
    span.end(batch.ended);
}

fn what_followed(batch: &BatchTrace, span: &mut OpenSpan) {
    if let BatchEnd::Fault { then, .. } | BatchEnd::WorkerLost { then, .. } = &batch.end {
        let (name, attributes) = match then {
            FollowUp::Requeued(next) => {
                (event::BATCH_REQUEUED, vec![KeyValue::new(attribute::BATCH_NEXT, number(next.0))])
            }
            FollowUp::Split => (event::BATCH_SPLIT, Vec::new()),
            FollowUp::Failed(kind) => {
                (event::BATCH_ITEM_FAILED, vec![KeyValue::new(attribute::ERROR_TYPE, kind.as_str())])
            }
        };
        span.event(name, batch.ended, attributes);
    }
    if let Some((before, after)) = batch.ceiling {
        let name = if after < before { event::CEILING_LOWERED } else { event::CEILING_RAISED };
        let from = KeyValue::new(attribute::CEILING_FROM, number(before));
        span.event(name, batch.ended, vec![from, KeyValue::new(attribute::CEILING_TO, number(after))]);
    }
}

/// What the worker did, below `parent`: that is the batch, and the request too where a batch has rows of several. `open` opens a span below another.
pub(super) fn worker_run(
    run: &RunFacts,
    batch: &BatchTrace,
    parent: &SpanContext,
    error: Option<(&'static str, String)>,
    mut open: impl FnMut(&'static str, &SpanContext, Duration) -> OpenSpan,
) {
    let mut span = open(span::WORKER_RUN, parent, batch.sent);
    span.set(attribute::WORKER, i64::from(batch.worker.0));
    span.add([run.device(batch.device)]);
    span.set(attribute::WORKER_BEGUN, batch.ran.begun.is_some());
    if let Some(pid) = run.pids.get(&batch.worker) {
        span.set(attribute::PID, i64::from(*pid));
    }
    if let BatchEnd::WorkerLost { exit, last_words, .. } = &batch.end {
        span.add(super::run::how_it_ended(exit, last_words));
    }
    let ended = batch.ran.answered.unwrap_or(batch.ended).min(batch.ended);
    if let Some((kind, error)) = error {
        span.fail(kind, &error, ended);
    }
    let context = span.context();
    for (name, from, to) in phases(batch) {
        open(name, &context, from).end(to);
    }
    span.end(ended);
}

/// What the worker did when: one after the other, within the time from sending to answer, and together never longer than that.
///
/// The worker measures durations only. What is left between them and the times of the parent is the way of the frames there and back, half
/// each. A batch without an answer has no phases but the wait.
pub(super) fn phases(batch: &BatchTrace) -> Vec<(&'static str, Duration, Duration)> {
    let (sent, ended) = (batch.sent, batch.ended.max(batch.sent));
    let Some(begun) = batch.ran.begun else { return vec![(span::WORKER_QUEUE, sent, ended)] };
    let begun = begun.clamp(sent, ended);
    let Some(answered) = batch.ran.answered else { return vec![(span::WORKER_QUEUE, sent, begun)] };
    let window = answered.clamp(begun, ended) - begun;
    let timing = &batch.ran.timing;
    let parts = [timing.bind_ns, timing.run_ns, timing.copy_out_ns].map(Duration::from_nanos);
    let sum = parts.iter().fold(Duration::ZERO, |sum, part| sum.saturating_add(*part));
    // Clocks of one machine agree; a worker that ran wild may say anything.
    let parts = if sum <= window { parts } else { parts.map(|part| share_of(window, part, sum)) };
    let left = window.saturating_sub(parts.iter().sum());
    let mut at = begun + left / 2;
    let mut phases = vec![(span::WORKER_QUEUE, sent, at)];
    let names = [span::WORKER_COPY_IN, span::WORKER_COMPUTE, span::WORKER_COPY_OUT];
    for (name, part) in names.into_iter().zip(parts) {
        phases.push((name, at, at + part));
        at += part;
    }
    phases
}

fn share_of(window: Duration, part: Duration, sum: Duration) -> Duration {
    let nanos = window.as_nanos().saturating_mul(part.as_nanos()) / sum.as_nanos().max(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(window)
}

/// The value of `orchestra.batch.outcome`, and kind and text of the error, if it is one.
pub(super) fn outcome(end: &BatchEnd) -> (&'static str, Option<(&'static str, String)>) {
    match end {
        BatchEnd::Done => ("done", None),
        BatchEnd::Fault { kind, error, .. } => {
            let kind = match kind {
                RunErrorKind::OutOfMemory => "out_of_memory",
                RunErrorKind::TooLarge => "too_large",
                RunErrorKind::Model => "model",
                RunErrorKind::Device => "device",
                RunErrorKind::Row(_) => "row",
                RunErrorKind::Shape => "shape",
                RunErrorKind::Mixed => "mixed",
            };
            ("failed", Some((kind, error.clone())))
        }
        BatchEnd::WorkerLost { exit, last_words, .. } => {
            let error = match &last_words[..] {
                "" => format!("the worker {exit}"),
                words => format!("the worker {exit}; its last words: {words}"),
            };
            ("worker_lost", Some((ExitKind::of(exit).as_str(), error)))
        }
        BatchEnd::GivenUp => {
            ("given_up", Some(("given_up", "the run ended before it was answered".to_owned())))
        }
    }
}

fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}
