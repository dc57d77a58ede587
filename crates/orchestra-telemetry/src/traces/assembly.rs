//! Makes the spans of one run out of what it told. Takes records one after the other; waits for nothing and sends nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use opentelemetry::{KeyValue, StringValue};
use orchestra_core::{DeviceId, SourceId, StageId, WorkerId};
use orchestra_runtime::trace::{
    BatchTrace, DeviceTrace, ItemTrace, RunBegan, RunEnded, TraceContext, WorkerStep, WorkerTrace,
};

use super::batch;
use super::context;
use super::ids::{About, Seed};
use super::item;
use super::queue::{Importance, LeftOut};
use super::run::{RunSpans, Totals};
use super::sampling::Kept;
use super::span::{Out, Span};
use crate::names::attribute;

/// Batches in the trace of the run, six spans each: the trace stays readable, and later ones have traces of their own.
pub(super) const BATCHES_IN_RUN: u64 = 333;

/// What all spans of a run have in common. Names are shared texts, so that a span copies none.
pub(super) struct RunFacts {
    pub(super) seed: Seed,
    /// The span of the run.
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
    batch_sizes: Vec<usize>,
}

impl RunFacts {
    fn new(began: &RunBegan, seed: Seed, out: Out) -> Self {
        let plan = &began.plan;
        let shared = |text: &str| StringValue::from(Arc::<str>::from(text));
        let pipelines: Vec<KeyValue> =
            plan.pipelines.iter().map(|p| KeyValue::new(attribute::PIPELINE, shared(&p.name))).collect();
        let stages = plan.stages.iter().map(|stage| {
            let infer = stage.batch();
            let name = KeyValue::new(attribute::STAGE, shared(&stage.name));
            let model =
                infer.map(|i| KeyValue::new(attribute::MODEL, shared(&plan.models[i.model.index()].name)));
            StageFacts {
                attributes: [name, pipelines[stage.pipeline.index()].clone()]
                    .into_iter()
                    .chain(model)
                    .collect(),
                is_fed_by_loaders: infer.is_some() && stage.home.stage().is_none(),
                batch_sizes: infer.map(|i| i.batch_sizes.clone()).unwrap_or_default(),
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
        importance: Importance,
        name: &'static str,
        ids: (TraceId, SpanId),
        parent: Option<&SpanContext>,
        from: Duration,
    ) -> Span {
        let mut span = self.out.open(importance, name, ids, parent, (self.zero, from));
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
        batch_context(self.seed, self.context.trace_id(), number)
    }
}

impl StageFacts {
    pub(super) fn name(&self) -> KeyValue {
        self.attributes[0].clone()
    }

    /// The batch size that so many rows are padded to, if there is one.
    pub(super) fn padded_size(&self, rows: usize) -> Option<usize> {
        self.batch_sizes.iter().copied().filter(|size| *size >= rows).min()
    }
}

/// The context of the batch with this number, given the trace of the run.
pub(super) fn batch_context(seed: Seed, run: TraceId, number: u64) -> SpanContext {
    let (own, span) = seed.root(About::Batch(number));
    context::sampled(if number < BATCHES_IN_RUN { run } else { own }, span)
}

pub(super) struct Assembly {
    facts: RunFacts,
    run: RunSpans,
    /// Batches that were sent up to now.
    sent: Arc<AtomicU64>,
    items_kept: u64,
    /// Batches that were drawn for an item, by number.
    drawn: HashSet<u64>,
    /// Items without spans, of all runs.
    left_out: Arc<LeftOut>,
}

impl Assembly {
    pub(super) fn new(
        began: &RunBegan,
        (seed, out): (Seed, Out),
        parent: Option<TraceContext>,
        sent: Arc<AtomicU64>,
        left_out: Arc<LeftOut>,
    ) -> Self {
        let mut facts = RunFacts::new(began, seed, out);
        let run;
        (run, facts.context) = RunSpans::new(&facts, parent.map(context::to_span).as_ref());
        Self { facts, run, sent, items_kept: 0, drawn: HashSet::new(), left_out }
    }

    /// A batch that [matters](batch::matters).
    pub(super) fn batch(&mut self, batch: &BatchTrace) {
        batch::draw(batch, &self.facts, Importance::Rare);
    }

    /// Items that are traced, and why.
    pub(super) fn items(&mut self, items: &[(ItemTrace, Kept)]) {
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

    fn item(&mut self, item: &ItemTrace, kept: Kept) {
        if !self.finds_room(kept, item.steps.batches.len()) {
            return;
        }
        self.items_kept += 1;
        for batch in item.steps.batches.iter().filter(|batch| !batch::matters(batch)) {
            if self.drawn.insert(batch.number.number) {
                batch::draw(batch, &self.facts, kept.importance());
            }
        }
        item::draw(&self.facts, item, kept);
    }

    /// Under load an item that is only one of many stays behind whole, rather than some spans of each.
    fn finds_room(&mut self, kept: Kept, n_batches: usize) -> bool {
        let finds_room = !kept.is_plain() || self.facts.out.sink.has_room(4 + 4 * n_batches);
        self.left_out.add_items(u64::from(!finds_room));
        finds_room
    }
}
