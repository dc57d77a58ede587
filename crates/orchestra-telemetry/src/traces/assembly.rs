//! Makes the spans of one run out of what it told. Takes records one after the other; waits for nothing and sends nothing.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use opentelemetry::{KeyValue, StringValue};
use orchestra_core::{DeviceId, SourceId, StageId, WorkerId};
use orchestra_runtime::trace::{
    BatchTrace, DeviceTrace, ItemEnd, ItemTrace, LoaderTrace, RunBegan, RunEnded, TaskTrace, TraceContext,
    WorkerStep, WorkerTrace, id_in_logs,
};

use super::batch;
use super::context;
use super::counts::LeftOutTraces;
use super::ids::{About, Seed};
use super::item;
use super::run::{RunSpans, Totals};
use super::sampling::KeepReason;
use super::span::{OpenSpan, Out};
use super::task;
use crate::names::attribute;

/// Gives the parent of an item, by the names of its source and of itself, if the program that embeds the run has one. It is called in a
/// thread of the recorder: while it takes long, spans wait and may find no room, and the run goes on; if it panics, the item has no parent.
pub type ItemParents = Arc<dyn Fn(&str, &str) -> Option<TraceContext> + Send + Sync>;

/// Batches in the trace of the run, six spans each: the trace stays readable, and later ones have traces of their own.
pub(super) const BATCHES_IN_RUN: u64 = 333;

/// What all spans of a run have in common. Names are shared texts, so that a span copies none.
pub(super) struct RunFacts {
    pub(super) seed: Seed,
    pub(super) context: SpanContext,
    pub(super) pids: HashMap<WorkerId, u32>,
    pub(super) workflow: StringValue,
    run_id: KeyValue,
    stages: Vec<StageFacts>,
    devices: Vec<KeyValue>,
    sources: Vec<[KeyValue; 2]>,
    zero: SystemTime,
    out: Out,
}

pub(super) struct StageFacts {
    /// Stage, pipeline, and model if it has one.
    pub(super) attributes: Vec<KeyValue>,
    /// The loaders write its rows.
    pub(super) is_fed_by_loaders: bool,
    padded_to: Option<usize>,
}

impl RunFacts {
    fn new(began: &RunBegan, seed: Seed, out: Out) -> Self {
        let plan = &began.plan;
        let shared = |text: &str| StringValue::from(Arc::<str>::from(text));
        let pipelines: Vec<KeyValue> =
            plan.pipelines.iter().map(|p| KeyValue::new(attribute::PIPELINE, shared(&p.name))).collect();
        let stages = plan.stages.iter().map(|stage| {
            let batch = stage.batch();
            let name = KeyValue::new(attribute::STAGE, shared(&stage.name));
            let model =
                batch.map(|b| KeyValue::new(attribute::MODEL, shared(&plan.models[b.model.index()].name)));
            StageFacts {
                attributes: [name, pipelines[stage.pipeline.index()].clone()]
                    .into_iter()
                    .chain(model)
                    .collect(),
                is_fed_by_loaders: batch.is_some() && stage.home.stage().is_none(),
                padded_to: batch.and_then(|b| b.padded_to),
            }
        });
        let devices =
            plan.devices.iter().map(|d| KeyValue::new(attribute::DEVICE, shared(&d.spec.to_string())));
        let sources = plan.sources.iter().map(|s| {
            [KeyValue::new(attribute::SOURCE, shared(&s.name)), pipelines[s.pipeline.index()].clone()]
        });
        Self {
            seed,
            context: SpanContext::empty_context(),
            pids: HashMap::new(),
            workflow: shared(&plan.name),
            run_id: KeyValue::new(attribute::RUN_ID, shared(&began.run_id)),
            stages: stages.collect(),
            devices: devices.collect(),
            sources: sources.collect(),
            zero: began.zero,
            out,
        }
    }

    /// A span of this run. Without a parent it begins a trace.
    pub(super) fn open(
        &self,
        name: &'static str,
        ids: (TraceId, SpanId),
        parent: Option<&SpanContext>,
        from: Duration,
    ) -> OpenSpan {
        let mut span = self.out.open(name, ids, parent, (self.zero, from));
        span.add([self.run_id.clone()]);
        span
    }

    pub(super) fn stage(&self, id: StageId) -> &StageFacts {
        &self.stages[id.index()]
    }

    pub(super) fn device(&self, id: DeviceId) -> KeyValue {
        self.devices[id.index()].clone()
    }

    pub(super) fn source(&self, id: SourceId) -> &[KeyValue; 2] {
        &self.sources[id.index()]
    }

    /// The run, for batches in its trace.
    pub(super) fn parent_of_batch(&self, number: u64) -> Option<&SpanContext> {
        Some(&self.context).filter(|_| number < BATCHES_IN_RUN)
    }

    pub(super) fn batch_context(&self, number: u64) -> SpanContext {
        batch_context(self.seed, &self.context, number)
    }
}

impl StageFacts {
    pub(super) fn name(&self) -> KeyValue {
        self.attributes[0].clone()
    }

    /// The batch size that so many rows are padded to, if there is one.
    pub(super) fn padded_size(&self, rows: usize) -> Option<usize> {
        self.padded_to.filter(|size| *size >= rows)
    }
}

pub(super) fn batch_context(seed: Seed, run: &SpanContext, number: u64) -> SpanContext {
    let ids = seed.root(About::Batch(number));
    if number < BATCHES_IN_RUN { context::below(run, ids.1) } else { context::root(ids) }
}

pub(super) struct Assembly {
    facts: RunFacts,
    run: RunSpans,
    parents: Option<ItemParents>,
    /// A panic of `parents` was logged.
    has_warned: bool,
    /// Batches that were sent up to now.
    sent: Arc<AtomicU64>,
    items_kept: u64,
    /// Attempts at tasks that have ended.
    attempts: u64,
    /// Batches that were drawn for an item, by number.
    drawn: HashSet<u64>,
    /// Items without spans, of all runs.
    left_out: Arc<LeftOutTraces>,
}

impl Assembly {
    pub(super) fn new(
        began: &RunBegan,
        (seed, out): (Seed, Out),
        (parent, parents): (Option<TraceContext>, Option<ItemParents>),
        sent: Arc<AtomicU64>,
        left_out: Arc<LeftOutTraces>,
    ) -> Self {
        let mut facts = RunFacts::new(began, seed, out);
        let run;
        (run, facts.context) = RunSpans::new(&facts, parent.map(context::to_span).as_ref());
        let drawn = HashSet::new();
        Self { facts, run, parents, has_warned: false, sent, items_kept: 0, attempts: 0, drawn, left_out }
    }

    /// A batch that [matters](batch::matters).
    pub(super) fn batch(&mut self, batch: &BatchTrace) {
        batch::draw(batch, &self.facts);
    }

    /// Items that are traced, and why, unless they have parents.
    pub(super) fn items(&mut self, items: &[(ItemTrace, KeepReason)]) {
        items.iter().for_each(|(item, kept)| self.item(item, *kept));
    }

    pub(super) fn worker(&mut self, step: WorkerTrace) {
        if let WorkerStep::Started { pid: Some(pid), .. } = step.step {
            self.facts.pids.insert(step.worker, pid);
        }
        self.run.worker(&self.facts, step);
    }

    pub(super) fn device(&mut self, step: DeviceTrace) {
        self.run.device(&self.facts, step);
    }

    pub(super) fn loader(&mut self, life: &LoaderTrace) {
        self.run.loader(&self.facts, life);
    }

    pub(super) fn task(&mut self, attempt: &TaskTrace) {
        task::draw(attempt, self.attempts, &self.facts);
        self.attempts += 1;
    }

    pub(super) fn ended(&mut self, end: &RunEnded) {
        self.run.ended(end, self.totals());
    }

    /// Ends what is open: nothing more will be told.
    pub(super) fn flush(mut self) {
        let totals = self.totals();
        self.run.flush(&self.facts, totals);
    }

    fn totals(&self) -> Totals {
        Totals { batches: self.sent.load(Ordering::Relaxed), items_kept: self.items_kept }
    }

    fn item(&mut self, item: &ItemTrace, kept: KeepReason) {
        let parent = self.parent(item);
        let kept = match &parent {
            None if kept == KeepReason::Parent => return,
            None => kept,
            Some(parent) if parent.is_sampled() => KeepReason::Parent,
            // Its parent has no span at the collector, so ours would have none above it.
            Some(_) => return,
        };
        if let (KeepReason::Parent, ItemEnd::Failed(failure)) = (kept, &item.end) {
            // The line about its failure could not: the parent is asked for later, and not in a thread of the run.
            let trace = parent.as_ref().and_then(context::of_span).map(|parent| id_in_logs(&parent));
            tracing::info!(item = %item.name, stage = %failure.stage, trace_id = trace, "the failed item is in the trace of its parent");
        }
        if !self.finds_room(kept, item.steps.batches.len()) {
            return;
        }
        self.items_kept += 1;
        for batch in item.steps.batches.iter().filter(|batch| !batch::matters(batch)) {
            if self.drawn.insert(batch.number.number) {
                batch::draw(batch, &self.facts);
            }
        }
        item::draw(&self.facts, item, kept, parent.as_ref());
    }

    /// Under load an item that is only one of many stays behind whole, rather than some spans of each.
    fn finds_room(&mut self, kept: KeepReason, n_batches: usize) -> bool {
        let finds_room = !kept.is_plain() || self.facts.out.sink.has_room(4 + 4 * n_batches);
        self.left_out.add_items(u64::from(!finds_room));
        finds_room
    }

    /// The host's code: what it does wrong must not cost more than the parent of one item.
    fn parent(&mut self, item: &ItemTrace) -> Option<SpanContext> {
        let parents = self.parents.as_ref()?;
        let [source, _] = self.facts.source(item.id.source);
        let asked = catch_unwind(AssertUnwindSafe(|| parents(&source.value.as_str(), &item.name)));
        if asked.is_err() && !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(item = %item.name, "the function that gives parents of items panicked; such items have none");
        }
        asked.ok().flatten().map(context::to_span)
    }
}
