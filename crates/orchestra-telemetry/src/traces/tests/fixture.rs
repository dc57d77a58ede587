//! A run that exists in memory only, and the records that it would tell.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::SpanId;
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use orchestra_core::batching::LeaveReason;
use orchestra_core::{BatchId, DeviceId, ItemId, SourceId, StageId, WorkerExit, WorkerId};
use orchestra_runtime::trace::{
    BatchEnd, BatchNumber, BatchTrace, DoneRows, EndedItems, FollowUp, ItemEnd, ItemTrace, Loading, RunBegan,
    RunEnded, RunTiming, Steps, Ticket, Timeline, Token, WorkerTimes,
};

use super::super::assembly::{Assembly, ItemParents, batch_context};
use super::super::batch::matters;
use super::super::context;
use super::super::counts::SpanCounts;
use super::super::ids::{About, Seed};
use super::super::sampling::{EndedTiming, why_kept};
use super::super::span::{Out, Sink};
use super::fake_plan::plan;
use crate::names::attribute;

/// The batch stage of the plan; stage 0 makes its rows.
pub const READ: StageId = StageId(1);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn began() -> RunBegan {
    let zero = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    RunBegan { plan: plan(), run_id: "run-1".to_owned(), zero }
}

pub fn over() -> RunEnded {
    let (total, resumed, done, failed) = (Some(10), 2, 9, 1);
    RunEnded { at: ms(900), total, resumed, done, failed, exit_code: Some(65), problems: Vec::new() }
}

/// Keeps the spans that end, as an export does that sends none of them.
#[derive(Debug, Clone, Default)]
pub struct KeptSpans(Arc<Mutex<Vec<SpanData>>>);

impl KeptSpans {
    /// With room for so many.
    pub fn sink(&self, room: usize) -> Sink {
        Sink::counted(Arc::new(self.clone()), Arc::new(SpanCounts::new(room)))
    }

    /// Those that have ended since this was asked.
    pub fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl SpanProcessor for KeptSpans {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.lock().unwrap().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// With this bound all items are traced.
pub const ALL: Option<Duration> = Some(Duration::ZERO);

/// A run, and where its spans come out.
pub struct Made {
    pub run: Assembly,
    pub seed: Seed,
    slow: Option<Duration>,
    kept: KeptSpans,
}

impl Made {
    pub fn with(slow: Option<Duration>) -> Self {
        Self::with_parents(slow, None)
    }

    pub fn with_parents(slow: Option<Duration>, parents: Option<ItemParents>) -> Self {
        let kept = KeptSpans::default();
        let began = began();
        let seed = Seed::new(&began.run_id, began.zero);
        let out = Out::new(kept.sink(100_000));
        let run = Assembly::new(&began, (seed, out), (None, parents), Arc::default(), Arc::default());
        Self { run, seed, slow, kept }
    }

    /// A batch that has ended, told as a recorder does.
    pub fn ended(&mut self, batch: &BatchTrace) {
        if matters(batch) {
            self.run.batch(batch);
        }
    }

    /// Items that have ended, decided about as a recorder does.
    pub fn items(&mut self, items: Vec<ItemTrace>) {
        let mut traced = Vec::new();
        for item in items {
            let began = item.steps.loading.map_or(item.handed, |l| l.began);
            let ended = EndedTiming {
                has_failed: item.end != ItemEnd::Done,
                was_retried: item.steps.batches.iter().any(|b| b.end != BatchEnd::Done),
                took: item.ended - began,
            };
            traced.extend(why_kept(ended, self.slow).map(|kept| (item, kept)));
        }
        self.run.items(&traced);
    }

    /// A batch of `items` items with this number, which ran from `number` * 10 ms on.
    pub fn batch(&self, number: u64, items: usize, end: BatchEnd) -> Arc<BatchTrace> {
        let at = ms(number * 10);
        let span = batch_context(self.seed, &context::root(self.seed.root(About::Run)), number);
        let answered = matches!(end, BatchEnd::Done | BatchEnd::Fault { .. }).then_some(at + ms(8));
        let timing = RunTiming { bind_ns: 1_000_000, run_ns: 3_000_000, copy_out_ns: 1_000_000 };
        Arc::new(BatchTrace {
            number: BatchNumber { number, context: context::of_span(&span) },
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
            ran: WorkerTimes { begun: Some(at + ms(3)), answered, timing },
            ended: at + ms(9),
            end,
            ceiling: None,
            processed: OnceLock::from((at + ms(10), at + ms(11))),
        })
    }

    /// Everything that has come out, once nothing more can.
    pub fn all(self) -> Spans {
        let Self { run, kept, .. } = self;
        run.flush();
        Spans(kept.take())
    }
}

pub fn killed(next: u64) -> BatchEnd {
    let (exit, last_words) = (WorkerExit::Signal(9), "goodbye".to_owned());
    BatchEnd::WorkerLost { exit, last_words, then: FollowUp::Requeued(BatchId(next + 100)) }
}

pub fn item(index: u64, batches: &[Arc<BatchTrace>], end: ItemEnd) -> ItemTrace {
    let timeline = Timeline::default();
    timeline.loaded(Loading { began: ms(1), read: Some(ms(2)), left: ms(4) });
    if !batches.is_empty() {
        timeline.queued(READ, ms(5));
    }
    batches.iter().for_each(|b| timeline.ran(b));
    let last = batches.last().map_or(ms(5), |b| b.ended);
    let id = ItemId { source: SourceId(0), index };
    let (name, steps) = (format!("{index}.png"), timeline.steps());
    ItemTrace { id, name, steps, handed: last + ms(3), ended: last + ms(4), end }
}

fn note(timeline: &Timeline, steps: &Steps) {
    steps.loading.into_iter().for_each(|loading| timeline.loaded(loading));
    steps.queued.iter().for_each(|(stage, at)| timeline.queued(*stage, *at));
    steps.batches.iter().for_each(|batch| timeline.ran(batch));
}

/// The same as a run tells them: each a group of its own.
pub fn groups(items: Vec<ItemTrace>) -> Vec<EndedItems> {
    let group = |item: ItemTrace| {
        let failure = match item.end {
            ItemEnd::Failed(failure) => Some(failure),
            ItemEnd::Done | ItemEnd::NotWritten(_) => None,
        };
        let ticket = Ticket::alone(item.id, item.id.index, &item.name, b"");
        note(timeline(&ticket), &item.steps);
        let mut group = EndedItems::each_of(vec![(ticket, failure)], item.handed);
        group.written(item.ended, &Ok(()));
        group
    };
    items.into_iter().map(group).collect()
}

fn timeline(ticket: &Ticket) -> &Timeline {
    ticket.timeline().expect("tickets that are handed out alone are traced")
}

/// An item that a loader took at `at` milliseconds.
pub fn began_at(index: u64, at: u64) -> Ticket {
    let ticket = Ticket::alone(ItemId { source: SourceId(0), index }, index, &format!("{index}.png"), b"");
    timeline(&ticket).loaded(Loading { began: ms(at), read: Some(ms(at + 1)), left: ms(at + 2) });
    timeline(&ticket).queued(READ, ms(at + 3));
    ticket
}

/// The items of a batch as a run tells them: together.
pub fn rows_of(items: Vec<Ticket>, batch: &Arc<BatchTrace>) -> EndedItems {
    let rows = 0..items.len();
    let items = items.into_iter().map(|ticket| Some(Token::whole(ticket))).collect();
    EndedItems::rows(DoneRows::new(items, rows, Vec::new(), Arc::clone(batch)), ms(0))
}

/// The same as a run tells them where there is more to say than that: each for itself.
pub fn each_of(items: Vec<Ticket>, batch: &Arc<BatchTrace>) -> EndedItems {
    items.iter().for_each(|ticket| timeline(ticket).ran(batch));
    EndedItems::each_of(items.into_iter().map(|ticket| (ticket, None)).collect(), ms(0))
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
