//! An item as spans: `item`, and under it what it went through. Which items are drawn is decided elsewhere.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId};
use orchestra_core::FailureKind;
use orchestra_runtime::trace::{BatchTrace, ItemEnd, ItemTrace, Steps};

use super::assembly::Draw;
use super::batch_spans::{self, error_of, number};
use super::batches::Drawn;
use super::ids::About;
use super::sampling::Kept;
use super::spans::Span;
use crate::names::{attribute, span};

/// When the item was first seen.
fn began(item: &ItemTrace) -> Duration {
    let loading = item.steps.loading.map(|l| l.began);
    let queued = item.steps.queued.first().map(|(_, at)| *at);
    loading.or(queued).unwrap_or(item.handed)
}

/// Makes the spans of an item. `batches` are those that it was in, in their order. Gives what others refer to it by.
pub(super) fn draw(
    draw: &Draw<'_>,
    item: &ItemTrace,
    (kept, parent): (Kept, Option<&SpanContext>),
    batches: &[Option<Drawn>],
) -> SpanContext {
    let id = item.id;
    let about = About::Item(id.source.0, id.index);
    let ids = (draw.seed.trace(about), draw.seed.span(about));
    let mut span = draw.open(span::ITEM, ids, parent, began(item));
    span.link(draw.run.clone(), "run");
    batches.iter().flatten().for_each(|batch| span.link(batch.context.clone(), "batch"));
    span.set_all(draw.common.source(id.source));
    span.set(attribute::ITEM, item.name.clone());
    span.set(attribute::ITEM_INDEX, number(id.index));
    span.set(attribute::ITEM_KEPT, kept.as_str());
    let context = span.context();
    let mut parts = Parts { draw, about, item: &context, n: 0 };
    parts.loading(item, &item.steps);
    parts.stages(&item.steps, batches);
    parts.open(span::ITEM_WRITE, item.handed).end(draw.names.wall(item.ended));
    end(draw, item, span);
    context
}

fn end(draw: &Draw<'_>, item: &ItemTrace, mut span: Span) {
    let ended = draw.names.wall(item.ended);
    match &item.end {
        ItemEnd::Done => span.set(attribute::ITEM_OUTCOME, "done"),
        ItemEnd::Failed(failure) => {
            span.set(attribute::ITEM_OUTCOME, "failed");
            span.set(attribute::FAILURE_STAGE, failure.stage.clone());
            span.set(attribute::ATTEMPT, i64::from(failure.attempts));
            span.fail(failure.kind.as_str(), &failure.error, ended);
        }
        ItemEnd::NotWritten(error) => {
            span.set(attribute::ITEM_OUTCOME, "not_written");
            span.fail("not_written", error, ended);
        }
    }
    span.end(ended);
}

/// Makes the spans below an item.
struct Parts<'a> {
    draw: &'a Draw<'a>,
    about: About,
    item: &'a SpanContext,
    n: u64,
}

impl Parts<'_> {
    fn open(&mut self, name: &'static str, from: Duration) -> Span {
        self.n += 1;
        let id: SpanId = self.draw.seed.part(self.about, self.n);
        self.draw.open(name, (self.item.trace_id(), id), Some(self.item), from)
    }

    fn loading(&mut self, item: &ItemTrace, steps: &Steps) {
        let Some(loading) = steps.loading else { return };
        // A failure with no batch to it came of the file or the picture; with a row to it, of what followed.
        let failure = match &item.end {
            ItemEnd::Failed(failure) if steps.queued.is_empty() && steps.batches.is_empty() => Some(failure),
            _ => None,
        };
        let wall = |at| self.draw.names.wall(at);
        let (read, decoded) = (loading.read.unwrap_or(loading.decoded), loading.decoded);
        let (read_at, decoded_at) = (wall(read), wall(decoded));
        let mut span = self.open(span::ITEM_READ, loading.began);
        if let Some(f) = failure.filter(|_| loading.read.is_none()) {
            span.fail(f.kind.as_str(), &f.error, read_at);
        }
        span.end(read_at);
        if loading.read.is_none() {
            return;
        }
        let mut span = self.open(span::ITEM_DECODE, read);
        let of_decoding = [FailureKind::Decode, FailureKind::TooLarge, FailureKind::Timeout];
        if let Some(f) = failure.filter(|f| of_decoding.contains(&f.kind)) {
            span.fail(f.kind.as_str(), &f.error, decoded_at);
        }
        span.end(decoded_at);
        let mut since = decoded;
        for (stage, queued) in &steps.queued {
            let stage = self.draw.names.stage(*stage);
            if stage.is_fed_by_loaders {
                let mut span = self.open(span::ITEM_ROW, since);
                span.set(attribute::STAGE, stage.name.clone());
                span.end(self.draw.names.wall(*queued));
                since = *queued;
            }
        }
    }

    fn stages(&mut self, steps: &Steps, batches: &[Option<Drawn>]) {
        for (at, batch) in steps.batches.iter().enumerate() {
            let drawn = batches.get(at).and_then(Option::as_ref);
            // A batch that is drawn already is made out once more.
            let of_parts = drawn.map(|d| Rc::clone(&d.of_parts));
            let of_parts = of_parts.unwrap_or_else(|| batch_spans::of_parts(self.draw, batch));
            let before = previous(&steps.batches[..at], batch);
            let row = steps.queued.iter().find(|(stage, _)| *stage == batch.stage).map(|(_, at)| *at);
            if let Some(since) = before.map(|b| b.ended).or(row) {
                let mut span = self.open(span::ITEM_QUEUE, since);
                span.set_all(&of_parts);
                span.end(self.draw.names.wall(batch.sent));
            }
            let ended = self.draw.names.wall(batch.ended);
            let mut span = self.open(span::ITEM_INFER, batch.sent);
            span.set_all(&of_parts);
            if let Some(drawn) = drawn {
                span.link(drawn.context.clone(), "batch");
            }
            if let Some((kind, words)) = error_of(&batch.end) {
                span.fail(kind, &words, ended);
            }
            span.end(ended);
            if let Some((from, to)) = batch.processed.get() {
                let mut span = self.open(span::ITEM_POST, *from);
                span.set_all(&of_parts);
                span.end(self.draw.names.wall(*to));
            }
        }
    }
}

/// The attempt of the same stage before this one.
pub(super) fn previous<'a>(before: &'a [Arc<BatchTrace>], batch: &BatchTrace) -> Option<&'a Arc<BatchTrace>> {
    before.iter().rev().find(|b| b.stage == batch.stage)
}
