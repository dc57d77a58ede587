//! An item as spans: `item`, and under it what it went through. Which items are drawn is decided elsewhere.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::SpanContext;
use orchestra_core::{Failure, FailureKind};
use orchestra_runtime::trace::{BatchTrace, ItemEnd, ItemTrace};

use super::assembly::RunFacts;
use super::batch;
use super::ids::About;
use super::sampling::KeepReason;
use super::span::{OpenSpan, number};
use crate::names::{attribute, span};

pub(super) fn draw(run: &RunFacts, item: &ItemTrace, kept: KeepReason, parent: Option<&SpanContext>) {
    let (id, steps) = (item.id, &item.steps);
    let about = About::Item(id.source.0, id.index);
    let queued = steps.queued.first().map(|(_, at)| *at);
    let began = steps.loading.map(|l| l.began).or(queued).unwrap_or(item.handed);
    let mut span = run.open(span::ITEM, run.seed.root(about), parent, began);
    span.link(run.context.clone(), "run");
    for batch in &steps.batches {
        span.link(run.batch_context(batch.number.number), "batch");
    }
    span.add(run.source(id.source).iter().cloned());
    span.set(attribute::ITEM, item.name.clone());
    span.set(attribute::ITEM_INDEX, number(id.index));
    span.set(attribute::ITEM_KEPT, kept.as_str());
    let context = span.context();
    let mut parts = Parts { run, about, item: &context, is_request: parent.is_some(), n: 0 };
    parts.loading(item);
    parts.batches(item);
    parts.step(span::ITEM_WRITE, item.handed, item.ended, &[]);
    let outcome = match &item.end {
        ItemEnd::Done => "done",
        ItemEnd::Failed(failure) => {
            span.set(attribute::FAILURE_STAGE, failure.stage.clone());
            span.set(attribute::ATTEMPT, i64::from(failure.attempts));
            fail(&mut span, failure, item.ended);
            "failed"
        }
        ItemEnd::NotWritten(error) => {
            span.fail("not_written", error, item.ended);
            "not_written"
        }
    };
    span.set(attribute::ITEM_OUTCOME, outcome);
    span.end(item.ended);
}

/// The attempt of the same stage before this one.
fn previous<'a>(before: &'a [Arc<BatchTrace>], batch: &BatchTrace) -> Option<&'a Arc<BatchTrace>> {
    before.iter().rev().find(|b| b.stage == batch.stage)
}

fn fail(span: &mut OpenSpan, failure: &Failure, at: Duration) {
    span.fail(failure.kind.as_str(), &failure.error, at);
}

struct Parts<'a> {
    run: &'a RunFacts,
    about: About,
    item: &'a SpanContext,
    /// The trace is that of a request. The batches of a run are in other traces, so what workers did is shown here as well.
    is_request: bool,
    n: u64,
}

impl Parts<'_> {
    fn open(&mut self, name: &'static str, from: Duration) -> OpenSpan {
        self.open_below(name, self.item, from)
    }

    fn open_below(&mut self, name: &'static str, parent: &SpanContext, from: Duration) -> OpenSpan {
        self.n += 1;
        let ids = (self.item.trace_id(), self.run.seed.part(self.about, self.n));
        self.run.open(name, ids, Some(parent), from)
    }

    /// One in which nothing goes wrong.
    fn step(&mut self, name: &'static str, from: Duration, to: Duration, attributes: &[KeyValue]) {
        let mut span = self.open(name, from);
        span.add(attributes.iter().cloned());
        span.end(to);
    }

    fn loading(&mut self, item: &ItemTrace) {
        let steps = &item.steps;
        let Some(loading) = steps.loading else { return };
        // A failure with no batch to it came of the file or the picture; with a row to it, of what followed.
        let failure = match &item.end {
            ItemEnd::Failed(failure) if steps.queued.is_empty() && steps.batches.is_empty() => Some(failure),
            _ => None,
        };
        let mut span = self.open(span::ITEM_READ, loading.began);
        let Some(read) = loading.read else {
            if let Some(failure) = failure {
                fail(&mut span, failure, loading.left);
            }
            return span.end(loading.left);
        };
        span.end(read);
        let mut span = self.open(span::ITEM_DECODE, read);
        let of_decoding = [FailureKind::Decode, FailureKind::TooLarge, FailureKind::Timeout];
        if let Some(failure) = failure.filter(|f| of_decoding.contains(&f.kind)) {
            fail(&mut span, failure, loading.left);
        }
        span.end(loading.left);
        let mut since = loading.left;
        for (stage, queued) in &steps.queued {
            let stage = self.run.stage(*stage);
            if stage.is_fed_by_loaders {
                self.step(span::ITEM_ROW, since, *queued, &[stage.name()]);
                since = *queued;
            }
        }
    }

    fn batches(&mut self, item: &ItemTrace) {
        let steps = &item.steps;
        for (at, batch) in steps.batches.iter().enumerate() {
            let which = [
                self.run.stage(batch.stage).name(),
                KeyValue::new(attribute::BATCH_ID, number(batch.batch.0)),
                KeyValue::new(attribute::ATTEMPT, i64::from(batch.attempt)),
            ];
            let before = previous(&steps.batches[..at], batch).map(|b| b.ended);
            let row = steps.queued.iter().find(|(stage, _)| *stage == batch.stage).map(|(_, at)| *at);
            if let Some(since) = before.or(row) {
                self.step(span::ITEM_QUEUE, since, batch.sent, &which);
            }
            let mut span = self.open(span::ITEM_BATCH, batch.sent);
            span.add(which.clone());
            span.link(self.run.batch_context(batch.number.number), "batch");
            let (_, error) = batch::outcome(&batch.end);
            if let Some((kind, error)) = &error {
                span.fail(*kind, error, batch.ended);
            }
            if self.is_request {
                let (run, infer) = (self.run, span.context());
                batch::worker_run(run, batch, &infer, error, |name, parent, from| {
                    self.open_below(name, parent, from)
                });
            }
            span.end(batch.ended);
            if let Some((from, to)) = batch.processed.get() {
                self.step(span::ITEM_POST, *from, *to, &which);
            }
        }
    }
}
