//! Attempts at tasks as spans: `task`, below the run for the first of them. It knows no command.

use opentelemetry::KeyValue;
use orchestra_core::tasks::EndClass;
use orchestra_runtime::trace::TaskTrace;

use super::assembly::RunFacts;
use super::ids::About;
use super::span::number;
use crate::names::{attribute, span};

/// Attempts in the trace of the run: it stays readable, and later ones have traces of their own.
pub(super) const ATTEMPTS_IN_RUN: u64 = 500;

/// `nth`: how many attempts have ended before.
pub(super) fn draw(attempt: &TaskTrace, nth: u64, run: &RunFacts) {
    let TaskTrace { began, ended, class, entry } = attempt;
    let parent = Some(&run.context).filter(|_| nth < ATTEMPTS_IN_RUN);
    let ids = run.seed.root(About::Task(nth));
    let mut span = run.open(span::TASK, ids, parent, *began);
    if parent.is_none() {
        span.link(run.context.clone(), "run");
    }
    span.set(attribute::TASK, entry.started.task.clone());
    span.set(attribute::ATTEMPT, i64::from(entry.started.attempt));
    span.set(attribute::TASK_PLACE, entry.started.place.clone());
    span.set(attribute::TASK_END, class.as_str());
    span.set(attribute::TASK_PEAK_MEMORY, number(entry.peak_memory));
    let metric = |name: &str| format!("{}.{name}", attribute::TASK_METRIC);
    span.add(entry.metrics.iter().map(|(name, of)| KeyValue::new(metric(name), of.last)));
    match class {
        EndClass::Done | EndClass::Stopped => {}
        _ => span.fail(class.as_str(), &entry.why, *ended),
    }
    span.end(*ended);
}
