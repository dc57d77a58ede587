//! A run that exists in memory only, and the records that it would tell.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::SpanId;
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::SpanData;
use orchestra_core::batching::LeaveReason;
use orchestra_core::{BatchId, DeviceId, ItemId, SourceId, StageId, WorkerExit, WorkerId};
use orchestra_runtime::trace::{
    BatchEnd, BatchNumber, BatchTrace, ItemEnd, ItemTrace, Journey, Loading, Ran, RunBegan, RunEnded,
    RunTiming, Then, Ticket,
};

use super::super::assembly::{Assembly, ItemParents, batch_context};
use super::super::ids::{About, Seed};
use super::super::queue::{Queue, SpanSink};
use super::super::sampling::ItemSampling;
use super::super::spans::Out;
use super::fake_plan::plan;
use crate::names::attribute;

/// The infer stage of the plan; stage 0 makes its rows.
pub const READ: StageId = StageId(1);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn began() -> RunBegan {
    let zero = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    RunBegan { plan: plan(), run_id: "run-1".to_owned(), zero }
}

pub fn over() -> RunEnded {
    let (total, resumed, done, failed) = (10, 2, 9, 1);
    RunEnded { at: ms(900), total, resumed, done, failed, exit_code: Some(65), problems: Vec::new() }
}

/// A run, and where its spans come out.
pub struct Made {
    pub run: Assembly,
    pub seed: Seed,
    queue: Arc<Queue>,
}

impl Made {
    pub fn with(ratio: f64) -> Self {
        Self::with_parents(ratio, None)
    }

    pub fn with_parents(ratio: f64, parents: Option<ItemParents>) -> Self {
        let queue = Arc::new(Queue::new(100_000, 512));
        let began = began();
        let seed = Seed::new(&began.run_id, began.zero);
        let scope = InstrumentationScope::builder("test").build();
        let out = Out::Own(SpanSink(Arc::clone(&queue)), scope);
        let sampling = ItemSampling { ratio, ..ItemSampling::default() };
        let run = Assembly::new(&began, (seed, out, sampling), None, parents, Arc::default());
        Self { run, seed, queue }
    }

    /// A batch of `items` items with this number, which ran from `number` * 10 ms on.
    pub fn batch(&self, number: u64, items: usize, end: BatchEnd) -> Arc<BatchTrace> {
        let at = ms(number * 10);
        let context = batch_context(self.seed, self.seed.trace(About::Run), number);
        let answered = matches!(end, BatchEnd::Done | BatchEnd::Fault { .. }).then_some(at + ms(8));
        let timing = RunTiming { bind_ns: 1_000_000, run_ns: 3_000_000, copy_out_ns: 1_000_000 };
        Arc::new(BatchTrace {
            number: BatchNumber { number, context: super::super::context::of_span(&context) },
            batch: BatchId(number + 100),
            stage: READ,
            device: DeviceId(0),
            worker: WorkerId(7),
            attempt: 1,
            reason: LeaveReason::Full,
            rows: items,
            items,
            opened: at,
            filled: at + ms(1),
            sent: at + ms(2),
            ran: Ran { begun: Some(at + ms(3)), answered, timing },
            ended: at + ms(9),
            end,
            ceiling: None,
            processed: OnceLock::from((at + ms(10), at + ms(11))),
        })
    }

    /// Everything that has come out, once nothing more can.
    pub fn all(self) -> Spans {
        let Self { run, queue, .. } = self;
        run.flush();
        let mut all = Vec::new();
        while let Some(request) = queue.any() {
            all.extend(request);
        }
        Spans(all)
    }
}

pub fn killed(next: u64) -> BatchEnd {
    let (exit, last_words) = (WorkerExit::Signal(9), "goodbye".to_owned());
    BatchEnd::WorkerLost { exit, last_words, then: Then::Requeued(BatchId(next + 100)) }
}

/// An item that was in these batches.
pub fn item(index: u64, batches: &[Arc<BatchTrace>], end: ItemEnd) -> ItemTrace {
    let journey = Box::<Journey>::default();
    journey.loaded(Loading { began: ms(1), read: Some(ms(2)), decoded: ms(4) });
    if !batches.is_empty() {
        journey.queued(READ, ms(5));
    }
    batches.iter().for_each(|b| journey.ran(b));
    let last = batches.last().map_or(ms(5), |b| b.ended);
    let id = ItemId { source: SourceId(0), index };
    let ticket = Ticket {
        id,
        sequence: index,
        name: format!("{index}.png"),
        path: PathBuf::new(),
        journey: Some(journey),
    };
    ItemTrace { ticket: Arc::new(ticket), handed: last + ms(3), ended: last + ms(4), end }
}

/// Spans that have come out.
pub struct Spans(pub Vec<SpanData>);

impl Spans {
    pub fn named(&self, name: &str) -> Vec<&SpanData> {
        self.0.iter().filter(|s| s.name == name).collect()
    }

    #[track_caller]
    pub fn one(&self, name: &str) -> &SpanData {
        let named = self.named(name);
        assert_eq!(named.len(), 1, "spans called {name}");
        named[0]
    }

    pub fn below(&self, parent: &SpanData) -> Vec<&SpanData> {
        let is_child = |s: &&SpanData| {
            s.parent_span_id == parent.span_context.span_id()
                && s.span_context.trace_id() == parent.span_context.trace_id()
        };
        self.0.iter().filter(is_child).collect()
    }

    pub fn names_below(&self, parent: &SpanData) -> Vec<&str> {
        let mut below = self.below(parent);
        below.sort_by_key(|s| (s.start_time, s.end_time));
        below.into_iter().map(|s| &*s.name).collect()
    }
}

/// The value of an attribute.
pub fn get(span: &SpanData, name: &str) -> Option<Value> {
    value(&span.attributes, name)
}

pub fn value(attributes: &[KeyValue], name: &str) -> Option<Value> {
    attributes.iter().find(|a| a.key.as_str() == name).map(|a| a.value.clone())
}

pub fn text(span: &SpanData, name: &str) -> String {
    get(span, name).map(|v| v.as_str().into_owned()).unwrap_or_default()
}

/// The spans that it is linked with in this way.
pub fn links(span: &SpanData, how: &'static str) -> Vec<SpanId> {
    let is_so = |l: &&opentelemetry::trace::Link| value(&l.attributes, attribute::LINK) == Some(how.into());
    span.links.iter().filter(is_so).map(|l| l.span_context.span_id()).collect()
}
