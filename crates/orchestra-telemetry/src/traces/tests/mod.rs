//! From records to spans: the tree, the links, what is kept, the bounds, and what is closed in whose place.

mod fake_plan;
mod fixture;
mod recording;

use std::sync::Arc;

use opentelemetry::Value;
use opentelemetry::trace::{SpanId, Status};
use opentelemetry_sdk::trace::SpanData;
use orchestra_core::tasks::{EndClass, MetricValues};
use orchestra_core::{BatchId, DeviceId, Failure, FailureKind, SourceId, WorkerExit, WorkerId};
use orchestra_runtime::trace::{
    BatchEnd, BatchTrace, DeviceStep, DeviceTrace, FollowUp, ItemEnd, LoaderTrace, RunErrorKind, RunTiming,
    TaskTrace, TraceContext, WorkerStep, WorkerTimes, WorkerTrace,
};
use orchestra_store::{TaskEnded, TaskStarted};

use self::fixture::{ALL, Made, READ, get, item, killed, links, ms, over, text, value};
use super::assembly::BATCHES_IN_RUN;
use super::batch::phases;
use super::task;
use crate::names::{attribute, event, span};

fn id(span: &SpanData) -> SpanId {
    span.span_context.span_id()
}

fn failure() -> ItemEnd {
    let (kind, error) = (FailureKind::Model, "no such class".to_owned());
    ItemEnd::Failed(Failure { stage: "read".to_owned(), kind, error, attempts: 2 })
}

#[test]
fn a_batch_hangs_below_the_run_and_an_item_is_a_trace_of_its_own_linked_with_both() {
    let mut made = Made::with(ALL);
    let batch = made.batch(0, 1, BatchEnd::Done);
    made.ended(&batch);
    made.items(vec![item(4, &[batch], ItemEnd::Done)]);
    made.run.ended(&over());
    let spans = made.all();
    let (run, batch, item) = (spans.one(span::RUN), spans.one(span::BATCH), spans.one(span::ITEM));
    assert_eq!((run.parent_span_id, item.parent_span_id), (SpanId::INVALID, SpanId::INVALID));
    assert_eq!(spans.names_below(run), [span::BATCH]);
    assert_eq!(spans.names_below(batch), [span::WORKER_RUN]);
    let phases = [span::WORKER_QUEUE, span::WORKER_COPY_IN, span::WORKER_COMPUTE, span::WORKER_COPY_OUT];
    assert_eq!(spans.names_below(spans.one(span::WORKER_RUN)), phases);
    let way = [
        span::ITEM_READ,
        span::ITEM_DECODE,
        span::ITEM_ROW,
        span::ITEM_BATCH,
        span::ITEM_QUEUE,
        span::ITEM_POST,
        span::ITEM_WRITE,
    ];
    let mut below = spans.names_below(item);
    below.sort_by_key(|name| way.iter().position(|w| w == name));
    assert_eq!(below, way);
    assert_ne!(item.span_context.trace_id(), run.span_context.trace_id());
    assert_eq!((links(item, "batch"), links(item, "run")), (vec![id(batch)], vec![id(run)]));
    assert_eq!(links(spans.one(span::ITEM_BATCH), "batch"), [id(batch)]);
    assert!(spans.0.iter().all(|s| text(s, attribute::RUN_ID) == "run-1"), "every span is found by the run");
    assert!(spans.0.iter().all(|s| s.status == Status::Unset), "nothing went wrong");
    assert_eq!(text(item, attribute::ITEM), "4.png");
    assert_eq!(text(batch, attribute::MODEL), "fake");
}

#[test]
fn the_frame_names_the_span_that_the_batch_gets() {
    let mut made = Made::with(ALL);
    let batches = [0, BATCHES_IN_RUN].map(|n| made.batch(n, 1, killed(9)));
    batches.iter().for_each(|b| made.ended(b));
    let contexts = batches.map(|b| b.number.context.expect("ours are known beforehand"));
    let spans = made.all();
    for context in contexts {
        let is_it = |s: &&&SpanData| {
            s.span_context.span_id().to_bytes() == context.span_id
                && s.span_context.trace_id().to_bytes() == context.trace_id
        };
        assert_eq!(spans.named(span::BATCH).iter().filter(is_it).count(), 1);
        assert_eq!(context.flags, 1);
    }
}

#[test]
fn a_batch_whose_worker_was_killed_is_closed_with_the_error_and_names_its_retry() {
    let mut made = Made::with(None);
    let (lost, retry) = (made.batch(0, 1, killed(1)), made.batch(1, 1, BatchEnd::Done));
    made.ended(&lost);
    made.ended(&retry);
    made.items(vec![item(4, &[lost, retry], ItemEnd::Done)]);
    let spans = made.all();
    let batches = spans.named(span::BATCH);
    let (lost, retry) = (batches[0], batches[1]);
    for span in [lost, spans.below(lost)[0]] {
        assert!(matches!(&span.status, Status::Error { description } if description.contains("goodbye")));
        assert_eq!(text(span, attribute::ERROR_TYPE), "killed");
        assert_eq!(span.events[0].name, event::EXCEPTION);
    }
    assert_eq!(text(spans.below(lost)[0], attribute::LAST_WORDS), "goodbye");
    assert_eq!(text(lost, attribute::BATCH_OUTCOME), "worker_lost");
    assert_eq!(lost.events[1].name, event::BATCH_REQUEUED);
    assert_eq!(value(&lost.events[1].attributes, attribute::BATCH_NEXT), get(retry, attribute::BATCH_ID));
    assert_eq!(links(spans.one(span::ITEM), "batch"), [id(lost), id(retry)]);
    assert_eq!(retry.status, Status::Unset);
    // The item shows both attempts.
    assert_eq!(text(spans.one(span::ITEM), attribute::ITEM_KEPT), "retried");
    let attempts: Vec<bool> =
        spans.named(span::ITEM_BATCH).iter().map(|s| s.status == Status::Unset).collect();
    assert_eq!(attempts, [false, true]);
    assert_eq!(spans.named(span::ITEM_QUEUE).len(), 2, "it waited for each");
}

#[test]
fn of_items_that_are_not_slow_only_those_that_failed_are_drawn() {
    let mut made = Made::with(None);
    let later = BATCHES_IN_RUN + 5;
    let (good, bad) = (made.batch(later, 2, BatchEnd::Done), made.batch(later + 1, 2, BatchEnd::Done));
    for (n, batch) in [(0, &good), (2, &bad)] {
        made.ended(batch);
        made.items(vec![item(n, std::slice::from_ref(batch), ItemEnd::Done)]);
    }
    made.items(vec![item(1, &[good], ItemEnd::Done), item(3, &[bad], failure())]);
    let spans = made.all();
    let item = spans.one(span::ITEM);
    assert_eq!(text(item, attribute::ITEM), "3.png");
    assert_eq!(text(item, attribute::ERROR_TYPE), "model");
    assert_eq!(text(item, attribute::FAILURE_STAGE), "read");
    let batch = spans.one(span::BATCH);
    assert_eq!(links(item, "batch"), [id(batch)]);
}

#[test]
fn a_file_that_cannot_be_decoded_fails_where_it_was_decoded() {
    let mut made = Made::with(None);
    let failure = Failure {
        stage: "pixels".to_owned(),
        kind: FailureKind::Decode,
        error: "no picture".to_owned(),
        attempts: 1,
    };
    made.items(vec![item(0, &[], ItemEnd::Failed(failure))]);
    let spans = made.all();
    assert_eq!(text(spans.one(span::ITEM_DECODE), attribute::ERROR_TYPE), "decode");
    assert_eq!(text(spans.one(span::ITEM_READ), attribute::ERROR_TYPE), "");
    assert_eq!(text(spans.one(span::ITEM), attribute::ITEM_KEPT), "failed");
}

#[test]
fn the_trace_of_the_run_holds_the_first_batches_and_later_ones_are_traces_of_their_own() {
    let mut made = Made::with(ALL);
    for n in 0..BATCHES_IN_RUN + 10 {
        let batch = made.batch(n, 1, BatchEnd::Done);
        made.ended(&batch);
        made.items(vec![item(n, &[batch], ItemEnd::Done)]);
    }
    let spans = made.all();
    let run = spans.one(span::RUN);
    let in_run = spans.0.iter().filter(|s| s.span_context.trace_id() == run.span_context.trace_id()).count();
    assert_eq!(in_run as u64, 1 + BATCHES_IN_RUN * 6);
    let own: Vec<_> =
        spans.named(span::BATCH).into_iter().filter(|b| b.parent_span_id == SpanId::INVALID).collect();
    assert_eq!(own.len(), 10);
    assert!(own.iter().all(|b| links(b, "run") == [id(run)]));
}

#[test]
fn an_item_with_a_parent_is_its_child_and_follows_its_decision() {
    let traced = TraceContext { trace_id: [7; 16], span_id: [9; 8], flags: 1 };
    let parents = move |source: &str, name: &str| {
        let is_traced = name != "1.png";
        (source == "items" && name != "2.png").then(|| TraceContext { flags: u8::from(is_traced), ..traced })
    };
    let mut made = Made::with_parents(None, Some(Arc::new(parents)));
    made.items((0..3).map(|n| item(n, &[], failure())).collect());
    let batch = made.batch(0, 1, killed(1));
    made.items(vec![item(3, &[batch], failure())]);
    let spans = made.all();
    let items = spans.named(span::ITEM);
    assert_eq!(items.len(), 3, "the request of one is not traced");
    assert_eq!(items[0].span_context.trace_id().to_bytes(), traced.trace_id);
    assert_eq!(items[0].parent_span_id.to_bytes(), traced.span_id);
    assert!(items[0].parent_span_is_remote);
    let below = [span::ITEM_READ, span::ITEM_DECODE, span::ITEM_WRITE];
    assert_eq!(spans.names_below(items[0]), below, "and what is below it is in that trace, too");
    assert_eq!(text(items[1], attribute::ITEM), "2.png");
    // Its batch has the rows of other requests, and is in a trace of its own.
    let infer = spans.one(span::ITEM_BATCH);
    let [ran] = spans.below(infer)[..] else { panic!("{:?}", spans.names_below(infer)) };
    assert_eq!((&*ran.name, ran.span_context.trace_id().to_bytes()), (span::WORKER_RUN, traced.trace_id));
    assert!(matches!(&ran.status, Status::Error { description } if description.contains("goodbye")));
    assert!(spans.names_below(ran).contains(&span::WORKER_QUEUE));
}

#[test]
fn the_run_says_how_it_ended_and_what_happened_to_its_workers() {
    let mut made = Made::with(ALL);
    let step = |at, worker, step| WorkerTrace {
        at: ms(at),
        worker: WorkerId(worker),
        stage: READ,
        device: DeviceId(0),
        step,
    };
    let start = |instead_of| WorkerStep::Started { pid: Some(4711), instead_of };
    let end = |exit| WorkerStep::Ended { exit, last_words: "boom".to_owned() };
    made.run.worker(step(1, 0, start(None)));
    made.run.worker(step(5, 0, WorkerStep::Loaded));
    made.run.worker(step(9, 0, end(WorkerExit::Signal(11))));
    made.run.worker(step(10, 1, start(Some(WorkerId(0)))));
    made.run.worker(step(12, 1, end(WorkerExit::Code(3))));
    made.run.worker(step(12, 1, WorkerStep::PlaceParked { left: 0, why: "it dies".to_owned() }));
    made.run.ended(&over());
    let spans = made.all();
    let run = spans.one(span::RUN);
    let events: Vec<&str> = run.events.iter().map(|e| &*e.name).collect();
    let expected = [event::WORKER_LOST, event::WORKER_RESTARTED, event::WORKER_LOST, event::DEVICE_PARKED];
    assert_eq!(events, expected);
    assert_eq!(get(run, attribute::EXIT_CODE), Some(Value::I64(65)));
    assert_eq!(get(run, attribute::DONE), Some(Value::I64(9)));
    assert_eq!(run.status, Status::Unset, "items that fail are no error of the run");
    let loads = spans.below(run);
    assert_eq!(loads.iter().map(|l| &*l.name).collect::<Vec<_>>(), [span::WORKER_LOAD; 2]);
    assert_eq!(loads[0].status, Status::Unset);
    assert_eq!(text(loads[1], attribute::ERROR_TYPE), "code");
    assert_eq!(text(loads[1], attribute::LAST_WORDS), "boom");
    assert_eq!(get(loads[1], attribute::PID), Some(Value::I64(4711)));
}

#[test]
fn the_life_of_a_loader_stands_in_the_run_with_how_it_ended() {
    let mut made = Made::with(ALL);
    let mut lived = |began, ended, exit| {
        let (source, pid, last_words) = (SourceId(0), 4712, "boom".to_owned());
        made.run.loader(&LoaderTrace { source, pid, began: ms(began), ended: ms(ended), exit, last_words });
    };
    lived(1, 7, WorkerExit::Signal(11));
    lived(7, 20, WorkerExit::Clean);
    made.run.ended(&over());
    let spans = made.all();
    let lives = spans.below(spans.one(span::RUN));
    assert_eq!(lives.iter().map(|life| &*life.name).collect::<Vec<_>>(), [span::LOADER; 2]);
    assert_eq!(text(lives[0], attribute::ERROR_TYPE), "crashed");
    assert_eq!(text(lives[0], attribute::LAST_WORDS), "boom");
    assert_eq!(lives[1].status, Status::Unset);
    assert!(lives.iter().all(|life| get(life, attribute::PID) == Some(Value::I64(4712))));
    assert!(lives.iter().all(|life| get(life, attribute::SOURCE).is_some()));
}

#[test]
fn what_happens_to_a_device_and_is_found_out_about_it_stands_in_the_run() {
    let mut made = Made::with(ALL);
    let steps = [
        DeviceStep::Measured { stage: READ, bytes: 5 << 30 },
        DeviceStep::WorkersAdded { stage: READ, more: 3 },
        DeviceStep::Lost { why: "it fell off the bus".to_owned() },
    ];
    for (at, step) in (1..).zip(steps) {
        made.run.device(DeviceTrace { at: ms(at), device: DeviceId(0), step });
    }
    made.run.ended(&over());
    let spans = made.all();
    let run = spans.one(span::RUN);
    let value = |event: &opentelemetry::trace::Event, name: &str| {
        event.attributes.iter().find(|a| a.key.as_str() == name).map(|a| a.value.to_string())
    };
    let told: Vec<_> = run
        .events
        .iter()
        .map(|e| {
            let of = [attribute::WORKER_BYTES, attribute::WORKERS_MORE, attribute::REASON]
                .map(|name| value(e, name));
            (&*e.name, of.into_iter().flatten().collect::<Vec<_>>(), value(e, attribute::DEVICE).is_some())
        })
        .collect();
    let expected = [
        (event::MEMORY_MEASURED, "5368709120"),
        (event::WORKERS_ADDED, "3"),
        (event::DEVICE_LOST, "it fell off the bus"),
    ];
    assert_eq!(told, expected.map(|(name, what)| (name, vec![what.to_owned()], true)));
}

#[test]
fn what_is_open_when_nothing_more_is_told_is_closed_with_an_error() {
    let mut made = Made::with(None);
    let batch = made.batch(BATCHES_IN_RUN, 3, BatchEnd::GivenUp);
    made.ended(&batch);
    let spans = made.all();
    for name in [span::RUN, span::BATCH, span::WORKER_RUN] {
        assert_eq!(text(spans.one(name), attribute::ERROR_TYPE), "given_up", "{name}");
    }
}

#[test]
fn a_device_that_ran_out_of_memory_is_told_with_what_followed() {
    let mut made = Made::with(None);
    let (kind, error) = (RunErrorKind::OutOfMemory, "no room".to_owned());
    let end = BatchEnd::Fault { kind, error, then: FollowUp::Split };
    let batch = made.batch(0, 1, end);
    let batch = BatchTrace { ceiling: Some((4, 2)), items: 0, ..Arc::into_inner(batch).unwrap() };
    made.ended(&batch);
    let spans = made.all();
    let batch = spans.one(span::BATCH);
    let events: Vec<&str> = batch.events.iter().map(|e| &*e.name).collect();
    assert_eq!(events, [event::EXCEPTION, event::BATCH_SPLIT, event::CEILING_LOWERED]);
    assert_eq!(text(batch, attribute::ERROR_TYPE), "out_of_memory");
}

#[test]
fn phases_follow_each_other_within_the_batch_whatever_the_worker_says() {
    let made = Made::with(None);
    let mut n = 0_u64;
    let mut next = move |below: u64| {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (n >> 33) % below
    };
    for round in 0..5_000 {
        let wild = if round % 10 == 0 { u64::MAX } else { 5_000_000 };
        let timing = RunTiming { bind_ns: next(wild), run_ns: next(wild), copy_out_ns: next(wild) };
        let batch = Arc::into_inner(made.batch(3, 1, BatchEnd::Done)).unwrap();
        let begun = (next(8) > 0).then(|| ms(next(60)));
        let answered = (next(8) > 0).then(|| ms(next(60)));
        let batch = BatchTrace { batch: BatchId(1), ran: WorkerTimes { begun, answered, timing }, ..batch };
        let phases = phases(&batch);
        let mut at = batch.sent;
        for (_, from, to) in &phases {
            assert!(*from == at && to >= from && *to <= batch.ended, "{phases:?} of {batch:?}");
            at = *to;
        }
        assert_eq!(phases.len(), if begun.is_some() && answered.is_some() { 4 } else { 1 });
    }
}

#[test]
fn an_attempt_at_a_task_hangs_below_the_run_and_later_ones_are_linked_with_it() {
    let mut made = Made::with(None);
    for (attempt, class) in (1..).zip([EndClass::Code, EndClass::Stopped, EndClass::Done]) {
        made.run.task(&attempt_at_task(attempt, class));
    }
    for attempt in 3..=task::ATTEMPTS_IN_RUN + 1 {
        made.run.task(&attempt_at_task(attempt as u32, EndClass::Done));
    }
    made.run.ended(&over());
    let spans = made.all();
    let run = spans.one(span::RUN);
    let tasks = spans.named(span::TASK);
    assert_eq!(spans.below(run).len() as u64, task::ATTEMPTS_IN_RUN);
    let later = tasks.iter().filter(|span| span.parent_span_id == SpanId::INVALID);
    let later: Vec<_> = later.map(|span| links(span, "run")).collect();
    assert_eq!(later, [vec![id(run)], vec![id(run)]]);
    let by_class = |class: &str| {
        let is_meant = |span: &&&SpanData| text(span, attribute::TASK_END) == class;
        *tasks.iter().find(is_meant).expect("one of each class")
    };
    let failed = by_class("code");
    assert_eq!(text(failed, attribute::ERROR_TYPE), "code");
    assert!(matches!(&failed.status, Status::Error { description } if description.contains("how it ended")));
    assert_eq!(text(failed, attribute::TASK), "train[lr=0.1]");
    assert_eq!(get(failed, "orchestra.task.metric.loss"), Some(Value::F64(0.5)));
    assert_eq!([by_class("stopped"), by_class("done")].map(|span| &span.status), [&Status::Unset; 2]);
}

fn attempt_at_task(attempt: u32, class: EndClass) -> TaskTrace {
    let (task, place) = ("train[lr=0.1]".to_owned(), "slot 0".to_owned());
    let started = TaskStarted { task, attempt, digest: [0; 32], place, before: None };
    let loss = MetricValues { count: 2, last: 0.5, min: 0.25, max: 0.5 };
    let entry = TaskEnded {
        started,
        at: 7,
        class: class.as_str().to_owned(),
        why: "how it ended".to_owned(),
        milliseconds: 5,
        peak_memory: 9,
        gpu_memory: 0,
        outputs: [0; 32],
        metrics: [("loss".to_owned(), loss)].into(),
    };
    TaskTrace { began: ms(3), ended: ms(8), class, entry }
}
