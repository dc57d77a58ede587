//! A batch as spans: `batch`, under it `worker.run`, and under that the phases that the worker reported. Which batches are drawn is
//! decided elsewhere.

use std::rc::Rc;
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use opentelemetry::{KeyValue, Value};
use orchestra_runtime::ExitKind;
use orchestra_runtime::trace::{BatchEnd, BatchTrace, RunErrorKind, Then};

use super::assembly::Draw;
use super::ids::About;
use super::spans::Span;
use crate::names::{attribute, event, span};

/// A batch in words.
struct Told {
    outcome: &'static str,
    /// Kind and words of the error, if it is one.
    error: Option<(&'static str, String)>,
}

/// Begins the span of a batch. What is known of it comes with [`draw`].
pub(super) fn open(draw: &Draw<'_>, batch: &BatchTrace) -> Span {
    let about = About::Batch(batch.number.number);
    let parent = draw.run_of_batch(batch.number.number);
    let ids = (draw.seed.trace(about), draw.seed.span(about));
    let mut span = draw.open(span::BATCH, ids, parent, batch.sent);
    if parent.is_none() {
        span.link(draw.run.clone(), "run");
    }
    span
}

/// Puts everything on the span, ends it, and makes those below it. `kept` of its items are traced.
pub(super) fn draw(draw: &Draw<'_>, batch: &BatchTrace, mut span: Span, kept: u64) {
    let stage = draw.names.stage(batch.stage);
    let told = Told::of(&batch.end);
    span.set(attribute::BATCH_ID, number(batch.batch.0));
    span.set(attribute::BATCH_SIZE, batch.items as i64);
    span.set(attribute::BATCH_REASON, batch.reason.as_str());
    if let Some(size) = stage.padded_size(batch.rows) {
        span.set(attribute::BATCH_PADDED_SIZE, size as i64);
    }
    span.set(attribute::ATTEMPT, i64::from(batch.attempt));
    span.set(attribute::STAGE, stage.name.clone());
    span.set(attribute::PIPELINE, stage.pipeline.clone());
    if let Some(model) = &stage.model {
        span.set(attribute::MODEL, model.clone());
    }
    span.set(attribute::DEVICE, draw.names.device(batch.device));
    span.set(attribute::WORKER, i64::from(batch.worker.0));
    span.set(attribute::BATCH_FILLING, millis(batch.filled.saturating_sub(batch.opened)));
    span.set(attribute::BATCH_WAITING, millis(batch.sent.saturating_sub(batch.filled)));
    span.set(attribute::BATCH_KEPT, number(kept));
    span.set(attribute::BATCH_OUTCOME, told.outcome);
    let ended = draw.names.wall(batch.ended);
    if let Some((kind, words)) = &told.error {
        span.fail(*kind, words, ended);
    }
    what_followed(draw, batch, &mut span);
    worker_run(draw, batch, &span.context(), &told);
    span.end(ended);
}

fn what_followed(draw: &Draw<'_>, batch: &BatchTrace, span: &mut Span) {
    let at = draw.names.wall(batch.ended);
    match &batch.end {
        BatchEnd::Done | BatchEnd::GivenUp => {}
        BatchEnd::Fault { then, .. } | BatchEnd::WorkerLost { then, .. } => match then {
            Then::Requeued(next) => {
                let next = KeyValue::new(attribute::BATCH_NEXT, number(next.0));
                span.event(event::BATCH_REQUEUED, at, vec![next]);
            }
            Then::Split => span.event(event::BATCH_SPLIT, at, Vec::new()),
            Then::Failed(kind) => {
                let kind = KeyValue::new(attribute::ERROR_TYPE, kind.as_str());
                span.event(event::BATCH_ITEM_FAILED, at, vec![kind]);
            }
        },
    }
    if let Some((before, after)) = batch.ceiling {
        let name = if after < before { event::CEILING_LOWERED } else { event::CEILING_RAISED };
        let from = KeyValue::new(attribute::CEILING_FROM, before as i64);
        span.event(name, at, vec![from, KeyValue::new(attribute::CEILING_TO, after as i64)]);
    }
}

fn worker_run(draw: &Draw<'_>, batch: &BatchTrace, parent: &SpanContext, told: &Told) {
    let about = About::Batch(batch.number.number);
    let ids = |n| (parent.trace_id(), draw.seed.part(about, n));
    let mut run = draw.open(span::WORKER_RUN, ids(1), Some(parent), batch.sent);
    run.set(attribute::WORKER, i64::from(batch.worker.0));
    run.set(attribute::DEVICE, draw.names.device(batch.device));
    run.set(attribute::WORKER_BEGUN, batch.ran.begun.is_some());
    if let Some(pid) = draw.pids.get(&batch.worker) {
        run.set(attribute::PID, i64::from(*pid));
    }
    if let BatchEnd::WorkerLost { exit, last_words, .. } = &batch.end {
        run.set(attribute::WORKER_EXIT, exit.to_string());
        if !last_words.is_empty() {
            run.set(attribute::LAST_WORDS, last_words.clone());
        }
    }
    let ended = batch.ran.answered.unwrap_or(batch.ended).min(batch.ended);
    if let Some((kind, words)) = &told.error {
        run.fail(*kind, words, draw.names.wall(ended));
    }
    let context = run.context();
    for (n, (name, from, to)) in (2..).zip(phases(batch)) {
        draw.open(name, ids(n), Some(&context), from).end(draw.names.wall(to));
    }
    run.end(draw.names.wall(ended));
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

impl Told {
    fn of(end: &BatchEnd) -> Self {
        match end {
            BatchEnd::Done => Self { outcome: "done", error: None },
            BatchEnd::Fault { kind, error, .. } => {
                let kind = match kind {
                    RunErrorKind::OutOfMemory => "out_of_memory",
                    RunErrorKind::Model => "model",
                    RunErrorKind::Device => "device",
                };
                Self { outcome: "failed", error: Some((kind, error.clone())) }
            }
            BatchEnd::WorkerLost { exit, last_words, .. } => {
                let words = match &last_words[..] {
                    "" => format!("the worker {exit}"),
                    words => format!("the worker {exit}; its last words: {words}"),
                };
                Self { outcome: "worker_lost", error: Some((ExitKind::of(exit).as_str(), words)) }
            }
            BatchEnd::GivenUp => {
                let words = "the run ended before it was answered".to_owned();
                Self { outcome: "given_up", error: Some(("given_up", words)) }
            }
        }
    }
}

/// The error of a batch, as its items see it.
pub(super) fn error_of(end: &BatchEnd) -> Option<(&'static str, String)> {
    Told::of(end).error
}

/// The attributes by which a part of an item names its batch.
pub(super) fn of_parts(draw: &Draw<'_>, batch: &BatchTrace) -> Rc<[KeyValue]> {
    Rc::from([
        KeyValue::new(attribute::STAGE, draw.names.stage(batch.stage).name.clone()),
        KeyValue::new(attribute::BATCH_ID, number(batch.batch.0)),
        KeyValue::new(attribute::ATTEMPT, i64::from(batch.attempt)),
    ])
}

/// OpenTelemetry has no unsigned numbers.
pub(super) fn number(n: u64) -> Value {
    Value::I64(i64::try_from(n).unwrap_or(i64::MAX))
}

fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}
