//! Makes the spans of one run out of what it told. Takes records one after the other; waits for nothing and sends nothing.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use orchestra_core::{SourceId, WorkerId};
use orchestra_plan::Plan;
use orchestra_runtime::trace::{
    BatchTrace, DeviceTrace, ItemEnd, ItemTrace, RunBegan, RunEnded, TraceContext, WorkerStep, WorkerTrace,
    id_in_logs,
};
use smallvec::SmallVec;

use super::batches::Batches;
use super::context;
use super::ids::{About, Seed};
use super::item_spans;
use super::names_of_run::RunNames;
use super::queue::Importance;
use super::report::LeftOut;
use super::run_spans::{self, RunSpans, Totals};
use super::sampling::{ItemSampling, Kept};
use super::spans::{Out, Span, sampled};
use crate::names::attribute;

/// Batches in the trace of the run, six spans each: the trace stays readable, and later ones have traces of their own.
pub(super) const BATCHES_IN_RUN: u64 = 333;

/// Gives the parent of an item, by the names of its source and of itself, if whoever embeds the run has one. It is called in a thread of
/// the recorder: while it takes long, spans wait and may find no room, and the run goes on; if it panics, the item has no parent.
pub type ItemParents = Arc<dyn Fn(&str, &str) -> Option<TraceContext> + Send + Sync>;

/// What is the same for all spans of a run.
#[derive(Clone, Copy)]
pub(super) struct Draw<'a> {
    pub(super) names: &'a RunNames,
    pub(super) seed: Seed,
    /// The span of the run.
    pub(super) run: &'a SpanContext,
    /// Process ids of workers.
    pub(super) pids: &'a HashMap<WorkerId, u32>,
    pub(super) common: &'a Common,
    /// What these spans give way to.
    importance: Importance,
    out: &'a Out,
}

/// What is on many spans of a run.
pub(super) struct Common {
    /// On all of them.
    run: Vec<KeyValue>,
    /// On items, by source.
    sources: Vec<Vec<KeyValue>>,
}

impl Common {
    fn new(names: &RunNames, plan: &Plan) -> Self {
        let run = vec![KeyValue::new(attribute::RUN_ID, names.run_id.clone())];
        let of_source = |source: SourceId| {
            vec![
                KeyValue::new(attribute::SOURCE, names.source(source)),
                KeyValue::new(attribute::PIPELINE, names.pipeline_of(source)),
            ]
        };
        let sources = (0..).map(SourceId).zip(&plan.sources).map(|(id, _)| of_source(id)).collect();
        Self { run, sources }
    }

    pub(super) fn source(&self, id: SourceId) -> &[KeyValue] {
        &self.sources[id.index()]
    }
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
        let mut span = self.out.open(name, ids, parent, self.names.wall(from), self.importance);
        span.set_all(&self.common.run);
        span
    }

    /// For spans that can be spared.
    pub(super) fn plain(self) -> Self {
        Self { importance: Importance::Plain, ..self }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.importance == Importance::Plain
    }

    /// For spans that somebody will look for.
    pub(super) fn rare(self) -> Self {
        Self { importance: Importance::Rare, ..self }
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
    common: Common,
    parents: Option<ItemParents>,
    sampling: ItemSampling,
    /// A parent that could not be asked for was told of.
    said: bool,
    batches: Batches,
    run: RunSpans,
    totals: Totals,
    /// Items without spans, of all runs.
    left_out: Arc<LeftOut>,
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
        left_out: Arc<LeftOut>,
    ) -> Self {
        let names = RunNames::new(began);
        let pids = HashMap::new();
        let common = Common::new(&names, &began.plan);
        let nothing = SpanContext::empty_context();
        let (run, importance) = (&nothing, Importance::Rare);
        let draw = Draw { names: &names, seed, run, pids: &pids, common: &common, importance, out: &out };
        let span = run_spans::open(&draw, parent.map(context::to_span).as_ref());
        let context = span.context();
        Self {
            names,
            seed,
            out,
            context,
            pids,
            common,
            parents,
            sampling,
            said: false,
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

    /// Items that may be traced, and why; and how many others of which batches have ended.
    pub(super) fn items(&mut self, items: Vec<(ItemTrace, Option<Kept>)>, others: &[(u64, usize)]) {
        items.iter().for_each(|(item, kept)| self.item(item, *kept));
        let (draw, batches, _) = self.parts();
        others.iter().for_each(|(batch, n)| batches.decided(*batch, *n, &draw));
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
            common: &self.common,
            importance: Importance::Rare,
            out: &self.out,
        };
        (draw, &mut self.batches, &mut self.run)
    }

    fn item(&mut self, item: &ItemTrace, kept: Option<Kept>) {
        let steps = &item.steps;
        let parent = self.parent(item);
        let kept = self.sampling.with_parent(kept, parent.as_ref().map(SpanContext::is_sampled));
        let kept = kept.filter(|kept| self.finds_room(*kept, steps.batches.len()));
        self.totals.items_kept += u64::from(kept.is_some());
        if let (Some(Kept::Parent), ItemEnd::Failed(failure)) = (kept, &item.end) {
            self.name_trace_of(item, parent.as_ref(), &failure.stage);
        }
        let (draw, batches, _) = self.parts();
        for (at, batch) in steps.batches.iter().enumerate() {
            if let Some(before) = item_spans::previous(&steps.batches[..at], batch) {
                batches.relate(before.number.number, batch.number.number, &draw);
            }
        }
        if let Some(kept) = kept {
            let draw = if kept.is_plain() { draw.plain() } else { draw };
            let numbers = || steps.batches.iter().map(|b| b.number.number);
            let drawn: SmallVec<[_; 1]> = numbers().map(|n| batches.drawn(n, &draw)).collect();
            let context = item_spans::draw(&draw, item, (kept, parent.as_ref()), &drawn);
            numbers().for_each(|n| batches.link_item(n, &context, &draw));
        }
        steps.batches.iter().for_each(|b| batches.decided(b.number.number, 1, &draw));
    }

    /// Under load an item that is only one of many stays behind whole, rather than some spans of each.
    fn finds_room(&mut self, kept: Kept, n_batches: usize) -> bool {
        let finds_room = !kept.is_plain() || self.out.has_room(4 + 4 * n_batches);
        self.left_out.add_items(u64::from(!finds_room));
        finds_room
    }

    /// The host's code: what it does wrong must not cost more than the parent of one item.
    fn parent(&mut self, item: &ItemTrace) -> Option<SpanContext> {
        let parents = self.parents.as_ref()?;
        let source = self.names.source(item.id.source);
        let asked = catch_unwind(AssertUnwindSafe(|| parents(source.as_str(), &item.name)));
        if asked.is_err() && !std::mem::replace(&mut self.said, true) {
            tracing::warn!(item = %item.name, "the function that gives parents of items panicked; such items have none");
        }
        asked.ok().flatten().map(context::to_span)
    }

    /// The line about its failure could not: the parent is asked for later, and not in a thread of the run.
    fn name_trace_of(&self, item: &ItemTrace, parent: Option<&SpanContext>, stage: &str) {
        let trace = parent.and_then(context::of_span).map(|parent| id_in_logs(&parent));
        tracing::info!(item = %item.name, %stage, trace_id = trace, "the failed item is in the trace of its parent");
    }
}
