//! The run and its workers as spans: `workflow.run` with what happened to workers and devices as events, `worker.load` and `loader`
//! below it. It knows neither items nor batches.

use std::collections::HashMap;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::SpanContext;
use orchestra_core::{WorkerExit, WorkerId};
use orchestra_runtime::ExitKind;
use orchestra_runtime::trace::{DeviceStep, DeviceTrace, LoaderTrace, RunEnded, WorkerStep, WorkerTrace};

use super::assembly::RunFacts;
use super::ids::About;
use super::span::{OpenSpan, number};
use crate::names::{attribute, event, span};

/// Events on the span of the run.
const MOST_EVENTS: u64 = 128;
/// Starts of workers in its trace, and as many lives of loaders.
const MOST_LOADS: u64 = 256;

pub(super) struct RunSpans {
    span: Option<OpenSpan>,
    /// The steps with which workers were started that are not loaded yet.
    loading: HashMap<WorkerId, WorkerTrace>,
    loads: u64,
    loaders: u64,
    events: u64,
    /// The last time that is known.
    last: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    pub(super) batches: u64,
    pub(super) items_kept: u64,
}

impl RunSpans {
    pub(super) fn new(run: &RunFacts, parent: Option<&SpanContext>) -> (Self, SpanContext) {
        let mut span = run.open(span::RUN, run.seed.root(About::Run), parent, Duration::ZERO);
        span.set(attribute::WORKFLOW, run.workflow.clone());
        span.set(attribute::PID, i64::from(std::process::id()));
        let context = span.context();
        let (span, loading, last) = (Some(span), HashMap::new(), Duration::ZERO);
        (Self { span, loading, loads: 0, loaders: 0, events: 0, last }, context)
    }

    pub(super) fn worker(&mut self, run: &RunFacts, step: WorkerTrace) {
        self.last = self.last.max(step.at);
        let replaces = |before: &WorkerId| vec![KeyValue::new(attribute::REPLACES, i64::from(before.0))];
        match &step.step {
            WorkerStep::Started { instead_of, .. } => {
                if let Some(before) = instead_of {
                    self.worker_event(run, event::WORKER_RESTARTED, &step, replaces(before));
                }
                self.loading.insert(step.worker, step);
            }
            WorkerStep::Loaded => self.loaded(run, &step, None),
            WorkerStep::Ended { exit, last_words } => {
                self.loaded(run, &step, Some((exit, last_words)));
                if *exit != WorkerExit::Clean {
                    self.worker_event(run, event::WORKER_LOST, &step, how_it_ended(exit, last_words));
                }
            }
            WorkerStep::PlaceParked { left, why } => {
                let name = if *left == 0 { event::DEVICE_PARKED } else { event::PLACE_PARKED };
                let left = KeyValue::new(attribute::PLACES_LEFT, number(*left));
                self.worker_event(run, name, &step, vec![left, reason(why)]);
            }
        }
    }

    /// Something happened to a device, or was found out about it.
    pub(super) fn device(&mut self, run: &RunFacts, step: DeviceTrace) {
        self.last = self.last.max(step.at);
        let of_stage = |id, more| vec![run.stage(id).name(), more];
        let (name, more) = match step.step {
            DeviceStep::Lost { why } => (event::DEVICE_LOST, vec![reason(&why)]),
            DeviceStep::Measured { stage, bytes } => {
                let bytes = KeyValue::new(attribute::WORKER_BYTES, number(bytes));
                (event::MEMORY_MEASURED, of_stage(stage, bytes))
            }
            DeviceStep::WorkersAdded { stage, more } => {
                let more = KeyValue::new(attribute::WORKERS_MORE, number(more));
                (event::WORKERS_ADDED, of_stage(stage, more))
            }
        };
        self.event(name, step.at, [vec![run.device(step.device)], more].concat());
    }

    fn worker_event(&mut self, run: &RunFacts, name: &'static str, step: &WorkerTrace, more: Vec<KeyValue>) {
        let worker = KeyValue::new(attribute::WORKER, i64::from(step.worker.0));
        let of_worker = vec![worker, run.stage(step.stage).name(), run.device(step.device)];
        self.event(name, step.at, [of_worker, more].concat());
    }

    fn event(&mut self, name: &'static str, at: Duration, attributes: Vec<KeyValue>) {
        let Some(span) = &mut self.span else { return };
        self.events += 1;
        if self.events <= MOST_EVENTS {
            span.event(name, at, attributes);
        }
    }

    fn loaded(&mut self, run: &RunFacts, step: &WorkerTrace, exit: Option<(&WorkerExit, &String)>) {
        if let Some(started) = self.loading.remove(&step.worker) {
            self.load(run, &started, step.at, exit);
        }
    }

    fn load(
        &mut self,
        run: &RunFacts,
        started: &WorkerTrace,
        ended: Duration,
        exit: Option<(&WorkerExit, &String)>,
    ) {
        let WorkerStep::Started { pid, .. } = &started.step else { return };
        self.loads += 1;
        if self.loads > MOST_LOADS {
            return;
        }
        let ids = (run.context.trace_id(), run.seed.part(About::Worker(started.worker.0), 0));
        let mut span = run.open(span::WORKER_LOAD, ids, Some(&run.context), started.at);
        span.set(attribute::WORKER, i64::from(started.worker.0));
        span.add(run.stage(started.stage).attributes.iter().cloned());
        span.add([run.device(started.device)]);
        if let Some(pid) = pid {
            span.set(attribute::PID, i64::from(*pid));
        }
        if let Some((exit, last_words)) = exit {
            span.add(how_it_ended(exit, last_words));
            if *exit != WorkerExit::Clean {
                span.fail(ExitKind::of(exit).as_str(), &format!("the worker {exit}"), ended);
            }
        }
        span.end(ended);
    }

    pub(super) fn loader(&mut self, run: &RunFacts, life: &LoaderTrace) {
        self.last = self.last.max(life.ended);
        self.loaders += 1;
        if self.loaders > MOST_LOADS {
            return;
        }
        let ids = (run.context.trace_id(), run.seed.part(About::Loader(self.loaders), 0));
        let mut span = run.open(span::LOADER, ids, Some(&run.context), life.began);
        span.add(run.source(life.source).iter().cloned());
        span.set(attribute::PID, i64::from(life.pid));
        if life.exit != WorkerExit::Clean {
            span.add(how_it_ended(&life.exit, &life.last_words));
            span.fail(ExitKind::of(&life.exit).as_str(), &format!("the loader {}", life.exit), life.ended);
        }
        span.end(life.ended);
    }

    pub(super) fn ended(&mut self, end: &RunEnded, totals: Totals) {
        let Some(span) = &mut self.span else { return };
        if let Some(total) = end.total {
            span.set(attribute::TOTAL, number(total));
        }
        span.set(attribute::DONE, number(end.done));
        span.set(attribute::FAILED, number(end.failed));
        span.set(attribute::RESUMED, number(end.resumed));
        match end.exit_code {
            Some(code) => {
                span.set(attribute::EXIT_CODE, i64::from(code));
                if !end.problems.is_empty() {
                    span.fail(format!("exit_{code}"), &end.problems.join("; "), end.at);
                }
            }
            None => span.fail("given_up", "the run was given up by its owner", end.at),
        }
        self.close(totals, end.at);
    }

    /// Nothing more will be told of the run.
    pub(super) fn flush(&mut self, run: &RunFacts, totals: Totals) {
        let last = self.last;
        for started in std::mem::take(&mut self.loading).into_values() {
            self.load(run, &started, last.max(started.at), None);
        }
        if let Some(span) = &mut self.span {
            span.fail("given_up", "nothing was told of the end of the run", last);
        }
        self.close(totals, last);
    }

    fn close(&mut self, totals: Totals, at: Duration) {
        let Some(mut span) = self.span.take() else { return };
        span.set(attribute::BATCHES, number(totals.batches));
        span.set(attribute::ITEMS_KEPT, number(totals.items_kept));
        span.set(attribute::EVENTS_DROPPED, number(self.events.saturating_sub(MOST_EVENTS)));
        span.end(at);
    }
}

pub(super) fn how_it_ended(exit: &WorkerExit, last_words: &str) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new(attribute::WORKER_EXIT, exit.to_string())];
    if !last_words.is_empty() {
        attributes.push(KeyValue::new(attribute::LAST_WORDS, last_words.to_owned()));
    }
    attributes
}

fn reason(why: &str) -> KeyValue {
    KeyValue::new(attribute::REASON, why.to_owned())
}
