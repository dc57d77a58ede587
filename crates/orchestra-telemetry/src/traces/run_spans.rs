//! The run and its workers as spans: `workflow.run` with what happened to workers as events, and `worker.load` below it. It knows neither
//! items nor batches.

use std::collections::HashMap;
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use opentelemetry::{KeyValue, Value};
use orchestra_core::{WorkerExit, WorkerId};
use orchestra_runtime::ExitKind;
use orchestra_runtime::trace::{DeviceStep, DeviceTrace, RunEnded, WorkerStep, WorkerTrace};

use super::assembly::Draw;
use super::batch_spans::number;
use super::ids::About;
use super::spans::Span;
use super::wall::Wall;
use crate::names::{attribute, event, span};

/// Events on the span of the run.
const MOST_EVENTS: u64 = 128;
/// Starts of workers in its trace.
const MOST_LOADS: u64 = 256;

/// See the module.
pub(super) struct RunSpans {
    /// Until it has ended.
    span: Option<Span>,
    loading: HashMap<WorkerId, Loading>,
    loads: u64,
    events: u64,
    /// The last time that is known.
    last: Duration,
}

struct Loading {
    since: WorkerTrace,
    pid: Option<u32>,
    is_spare: bool,
}

/// How much of the run there was.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) batches: u64,
    pub(super) items_kept: u64,
}

impl RunSpans {
    /// The run has begun with this span.
    pub(super) fn new(span: Span) -> Self {
        Self { span: Some(span), loading: HashMap::new(), loads: 0, events: 0, last: Duration::ZERO }
    }

    /// Something happened to a worker.
    pub(super) fn worker(&mut self, draw: &Draw<'_>, step: WorkerTrace) {
        self.last = self.last.max(step.at);
        match &step.step {
            WorkerStep::Started { pid, is_spare, instead_of } => {
                if let Some(before) = instead_of {
                    let replaces = KeyValue::new(attribute::REPLACES, i64::from(before.0));
                    self.event(draw, event::WORKER_RESTARTED, &step, vec![replaces]);
                }
                let (pid, is_spare) = (*pid, *is_spare);
                self.loading.insert(step.worker, Loading { since: step, pid, is_spare });
            }
            WorkerStep::Loaded => {
                if let Some(loading) = self.loading.remove(&step.worker) {
                    self.load(draw, &loading, step.at, None);
                }
            }
            WorkerStep::Serving { instead_of, was_spare } => {
                if let Some(before) = instead_of.filter(|_| *was_spare) {
                    let replaces = KeyValue::new(attribute::REPLACES, i64::from(before.0));
                    self.event(draw, event::WORKER_PROMOTED, &step, vec![replaces]);
                }
            }
            WorkerStep::Ended { exit, last_words } => {
                if let Some(loading) = self.loading.remove(&step.worker) {
                    self.load(draw, &loading, step.at, Some((exit, last_words)));
                }
                if *exit != WorkerExit::Clean {
                    self.event(draw, event::WORKER_LOST, &step, how_it_ended(exit, last_words));
                }
            }
            WorkerStep::PlaceParked { left, why } => {
                let name = if *left == 0 { event::DEVICE_PARKED } else { event::PLACE_PARKED };
                let left = KeyValue::new(attribute::PLACES_LEFT, *left as i64);
                self.event(draw, name, &step, vec![left, KeyValue::new(attribute::REASON, why.clone())]);
            }
            WorkerStep::SparesGivenUp { why } => {
                let why = KeyValue::new(attribute::REASON, why.clone());
                self.event(draw, event::SPARES_GIVEN_UP, &step, vec![why]);
            }
        }
    }

    /// Something happened to a device, or was found out about it.
    pub(super) fn device(&mut self, draw: &Draw<'_>, step: DeviceTrace) {
        self.last = self.last.max(step.at);
        let stage = |id| KeyValue::new(attribute::STAGE, draw.names.stage(id).name.clone());
        let (name, more) = match step.step {
            DeviceStep::Lost { why } => (event::DEVICE_LOST, vec![KeyValue::new(attribute::REASON, why)]),
            DeviceStep::Measured { stage: id, bytes } => {
                let bytes = KeyValue::new(attribute::WORKER_BYTES, bytes as i64);
                (event::MEMORY_MEASURED, vec![stage(id), bytes])
            }
            DeviceStep::NotMeasured { stage: id, why } => {
                (event::MEMORY_MEASURED, vec![stage(id), KeyValue::new(attribute::REASON, why)])
            }
            DeviceStep::WorkersAdded { stage: id, more } => {
                (event::WORKERS_ADDED, vec![stage(id), KeyValue::new(attribute::WORKERS_MORE, more as i64)])
            }
        };
        let device = KeyValue::new(attribute::DEVICE, draw.names.device(step.device));
        self.note(draw, name, step.at, std::iter::once(device).chain(more).collect());
    }

    fn event(&mut self, draw: &Draw<'_>, name: &'static str, step: &WorkerTrace, more: Vec<KeyValue>) {
        let stage = draw.names.stage(step.stage);
        let mut attributes = vec![
            KeyValue::new(attribute::WORKER, i64::from(step.worker.0)),
            KeyValue::new(attribute::STAGE, stage.name.clone()),
            KeyValue::new(attribute::DEVICE, draw.names.device(step.device)),
        ];
        attributes.extend(more);
        self.note(draw, name, step.at, attributes);
    }

    fn note(&mut self, draw: &Draw<'_>, name: &'static str, at: Duration, attributes: Vec<KeyValue>) {
        let Some(span) = &mut self.span else { return };
        self.events += 1;
        if self.events <= MOST_EVENTS {
            span.event(name, draw.names.wall(at), attributes);
        }
    }

    fn load(
        &mut self,
        draw: &Draw<'_>,
        loading: &Loading,
        ended: Duration,
        exit: Option<(&WorkerExit, &String)>,
    ) {
        self.loads += 1;
        if self.loads > MOST_LOADS {
            return;
        }
        let Loading { since, pid, is_spare } = loading;
        let about = About::Worker(since.worker.0);
        let ids = (draw.run.trace_id(), draw.seed.span(about));
        let mut span = draw.open(span::WORKER_LOAD, ids, Some(draw.run), since.at);
        let stage = draw.names.stage(since.stage);
        span.set(attribute::WORKER, i64::from(since.worker.0));
        span.set(attribute::STAGE, stage.name.clone());
        span.set(attribute::PIPELINE, stage.pipeline.clone());
        if let Some(model) = &stage.model {
            span.set(attribute::MODEL, model.clone());
        }
        span.set(attribute::DEVICE, draw.names.device(since.device));
        span.set(attribute::WORKER_SPARE, *is_spare);
        if let Some(pid) = pid {
            span.set(attribute::PID, i64::from(*pid));
        }
        let ended = draw.names.wall(ended);
        if let Some((exit, last_words)) = exit {
            how_it_ended(exit, last_words).into_iter().for_each(|a| span.set_attribute(a));
            if *exit != WorkerExit::Clean {
                span.fail(ExitKind::of(exit).as_str(), &format!("the worker {exit}"), ended);
            }
        }
        span.end(ended);
    }

    /// The run is over.
    pub(super) fn ended(&mut self, draw: &Draw<'_>, end: &RunEnded, totals: Totals) {
        let Some(mut span) = self.span.take() else { return };
        if let Some(total) = end.total {
            span.set(attribute::TOTAL, number(total));
        }
        span.set(attribute::DONE, number(end.done));
        span.set(attribute::FAILED, number(end.failed));
        span.set(attribute::RESUMED, number(end.resumed));
        let at = draw.names.wall(end.at);
        match end.exit_code {
            Some(code) => {
                span.set(attribute::EXIT_CODE, i64::from(code));
                if !end.problems.is_empty() {
                    span.fail(format!("exit_{code}"), &end.problems.join("; "), at);
                }
            }
            None => span.fail("given_up", "the run was given up by whoever held it", at),
        }
        self.close(span, totals, at);
    }

    /// Nothing more will be told of the run.
    pub(super) fn flush(&mut self, draw: &Draw<'_>, totals: Totals) {
        let last = self.last;
        for loading in std::mem::take(&mut self.loading).into_values() {
            self.load(draw, &loading, last.max(loading.since.at), None);
        }
        if let Some(mut span) = self.span.take() {
            let at = draw.names.wall(last);
            span.fail("given_up", "nothing was told of the end of the run", at);
            self.close(span, totals, at);
        }
    }

    fn close(&self, mut span: Span, totals: Totals, at: Wall) {
        span.set(attribute::BATCHES, number(totals.batches));
        span.set(attribute::ITEMS_KEPT, number(totals.items_kept));
        span.set(attribute::EVENTS_DROPPED, number(self.events.saturating_sub(MOST_EVENTS)));
        span.end(at);
    }
}

/// Begins the span of the run.
pub(super) fn open(draw: &Draw<'_>, parent: Option<&SpanContext>) -> Span {
    let ids = (draw.seed.trace(About::Run), draw.seed.span(About::Run));
    let mut span = draw.open(span::RUN, ids, parent, Duration::ZERO);
    span.set(attribute::WORKFLOW, draw.names.workflow.clone());
    span.set(attribute::PID, i64::from(std::process::id()));
    span
}

fn how_it_ended(exit: &WorkerExit, last_words: &str) -> Vec<KeyValue> {
    let text = |name, value: String| KeyValue::new(name, Value::from(value));
    let mut attributes = vec![text(attribute::WORKER_EXIT, exit.to_string())];
    if !last_words.is_empty() {
        attributes.push(text(attribute::LAST_WORDS, last_words.to_owned()));
    }
    attributes
}
