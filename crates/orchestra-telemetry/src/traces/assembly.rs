//! Makes the spans of one run out of what it told. Takes records one after the other; waits for nothing and sends nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use orchestra_core::WorkerId;
use orchestra_runtime::trace::{
    BatchEnd, BatchTrace, DeviceTrace, ItemEnd, ItemTrace, RunBegan, RunEnded, Steps, TraceContext,
    WorkerStep, WorkerTrace,
};

use super::batches::Batches;
use super::context;
use super::ids::{About, Seed};
use super::item_spans;
use super::names_of_run::RunNames;
use super::run_spans::{self, RunSpans, Totals};
use super::sampling::{Ended, ItemSampling, Kept, Sampler};
use super::spans::{Out, Span, sampled};
use crate::names::attribute;

/// Batches in the trace of the run, six spans each: the trace stays readable, and later ones have traces of their own.
pub(super) const BATCHES_IN_RUN: u64 = 333;

/// Gives the parent of an item, by the names of its source and of itself, if whoever embeds the run has one.
pub type ItemParents = Arc<dyn Fn(&str, &str) -> Option<TraceContext> + Send + Sync>;

/// What is the same for all spans of a run.
pub(super) struct Draw<'a> {
    pub(super) names: &'a RunNames,
    pub(super) seed: Seed,
    /// The span of the run.
    pub(super) run: &'a SpanContext,
    /// Process ids of workers.
    pub(super) pids: &'a HashMap<WorkerId, u32>,
    out: &'a Out,
}

impl Draw<'_> {
    /// A span of this run. Without a parent it begins a trace.
    pub(super) fn open(
        &self,
        name: &'static str,
        ids: (TraceId, SpanId),
        parent: Option<&SpanContext>,
        from: Duration,
    ) -> Span {
        let mut span = self.out.open(name, ids, parent, self.names.wall(from));
        span.set(attribute::RUN_ID, self.names.run_id.clone());
        span
    }

    /// The parent of the batch with this number: the run, if it is in the run's trace.
    pub(super) fn run_of_batch(&self, number: u64) -> Option<&SpanContext> {
        Some(self.run).filter(|_| number < BATCHES_IN_RUN)
    }
}

/// See the module.
pub(super) struct Assembly {
    names: RunNames,
    seed: Seed,
    out: Out,
    context: SpanContext,
    pids: HashMap<WorkerId, u32>,
    parents: Option<ItemParents>,
    sampler: Sampler,
    batches: Batches,
    run: RunSpans,
    totals: Totals,
    /// Spans that were not made, of all runs.
    left_out: Arc<AtomicU64>,
}

/// The context of the batch with this number, given that of the run.
pub(super) fn batch_context(seed: Seed, run: TraceId, number: u64) -> SpanContext {
    let about = About::Batch(number);
    sampled(if number < BATCHES_IN_RUN { run } else { seed.trace(about) }, seed.span(about))
}

impl Assembly {
    pub(super) fn new(
        began: &RunBegan,
        (seed, out, sampling): (Seed, Out, ItemSampling),
        parent: Option<TraceContext>,
        parents: Option<ItemParents>,
        left_out: Arc<AtomicU64>,
    ) -> Self {
        let names = RunNames::new(began);
        let pids = HashMap::new();
        let nothing = SpanContext::empty_context();
        let draw = Draw { names: &names, seed, run: &nothing, pids: &pids, out: &out };
        let span = run_spans::open(&draw, parent.map(context::to_span).as_ref());
        let context = span.context();
        Self {
            names,
            seed,
            out,
            context,
            pids,
            parents,
            sampler: Sampler::new(sampling),
            batches: Batches::default(),
            run: RunSpans::new(span),
            totals: Totals::default(),
            left_out,
        }
    }

    pub(super) fn batch(&mut self, batch: Arc<BatchTrace>) {
        self.totals.batches += 1;
        let (draw, batches, _) = self.parts();
        batches.add(batch, &draw);
    }

    pub(super) fn items(&mut self, items: Vec<ItemTrace>) {
        items.iter().for_each(|item| self.item(item));
    }

    pub(super) fn worker(&mut self, step: WorkerTrace) {
        if let WorkerStep::Started { pid: Some(pid), .. } = step.step {
            self.pids.insert(step.worker, pid);
        }
        let (draw, _, run) = self.parts();
        run.worker(&draw, step);
    }

    pub(super) fn device(&mut self, step: DeviceTrace) {
        let (draw, _, run) = self.parts();
        run.device(&draw, step);
    }

    pub(super) fn ended(&mut self, end: &RunEnded) {
        let totals = self.totals;
        let (draw, _, run) = self.parts();
        run.ended(&draw, end, totals);
    }

    /// Ends what is open: nothing more will be told.
    pub(super) fn flush(mut self) {
        let totals = self.totals;
        let (draw, batches, run) = self.parts();
        batches.flush(&draw);
        run.flush(&draw, totals);
    }

    fn parts(&mut self) -> (Draw<'_>, &mut Batches, &mut RunSpans) {
        let draw = Draw {
            names: &self.names,
            seed: self.seed,
            run: &self.context,
            pids: &self.pids,
            out: &self.out,
        };
        (draw, &mut self.batches, &mut self.run)
    }

    fn item(&mut self, item: &ItemTrace) {
        let steps = item.ticket.steps();
        let parent = self.parent(item);
        let began = item_spans::began(item, &steps);
        let ended = Ended {
            source: item.ticket.id.source.0,
            index: item.ticket.id.index,
            has_failed: item.end != ItemEnd::Done,
            was_retried: steps.batches.iter().any(|b| b.end != BatchEnd::Done),
            took: item.ended.saturating_sub(began),
            parent: parent.as_ref().map(SpanContext::is_sampled),
        };
        let kept = self.sampler.decide(&ended).filter(|kept| self.finds_room(*kept, &steps));
        self.totals.items_kept += u64::from(kept.is_some());
        let (draw, batches, _) = self.parts();
        for (at, batch) in steps.batches.iter().enumerate() {
            if let Some(before) = item_spans::previous(&steps.batches[..at], batch) {
                batches.relate(before.number.number, batch.number.number, &draw);
            }
        }
        if let Some(kept) = kept {
            let numbers = || steps.batches.iter().map(|b| b.number.number);
            let contexts: Vec<_> = numbers().map(|n| batches.context(n, &draw)).collect();
            let context = item_spans::draw(&draw, item, &steps, (kept, parent.as_ref()), &contexts);
            numbers().for_each(|n| batches.link_item(n, &context, &draw));
        }
        steps.batches.iter().for_each(|b| batches.decided(b.number.number, &draw));
    }

    /// Under load an item that is only one of many stays behind whole, rather than some spans of each.
    fn finds_room(&mut self, kept: Kept, steps: &Steps) -> bool {
        let spans = 4 + 4 * steps.batches.len();
        let finds_room = kept != Kept::Ratio || self.out.has_room(spans);
        if !finds_room {
            self.left_out.fetch_add(spans as u64, Ordering::Relaxed);
        }
        finds_room
    }

    fn parent(&self, item: &ItemTrace) -> Option<SpanContext> {
        let parents = self.parents.as_ref()?;
        let source = self.names.source(item.ticket.id.source);
        parents(source.as_str(), &item.ticket.name).map(context::to_span)
    }
}
