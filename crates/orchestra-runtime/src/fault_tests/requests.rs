//! A flow in memory: each request is answered once and rightly, whatever becomes of workers and of those who ask, and nothing is left of a flow that
//! has ended.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, poll_immediate};
use orchestra_core::data::OwnedValue;
use orchestra_core::row_bytes::StoredValue;
use orchestra_core::{DType, ErrorClass, FailureKind};
use orchestra_kinds::read_reply;
use orchestra_worker::frames::RunErrorKind;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::fake_plan::plan_of_requests;
use super::fake_process::{FakeEngine, Launch, options_with};
use super::fake_worker::answer_to;
use super::log::Log;
use super::panics::{BUG, Throws};
use super::recorder::TelemetryRecorder;
use super::script::*;
use super::stage::Stage;
use crate::context::RunOptions;
use crate::flow::ticket::RequestContent;
use crate::requests::{
    ProcessError, ReplyRecord, Request, RequestFlow, RequestFlowOptions, RequestTerms, StartFlowError,
};
use crate::trace::{BatchEnd, ItemEnd, Tracer};

async fn start(
    stage: &Stage,
    log: &Log,
    script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
) -> Result<RequestFlow, StartFlowError> {
    start_with(stage, log, 1024, script_of).await
}

pub(super) async fn start_with(
    stage: &Stage,
    log: &Log,
    most_requests: usize,
    script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
) -> Result<RequestFlow, StartFlowError> {
    let plan = plan_of_requests(stage);
    let options = options_with(&plan, FakeEngine::new(log.clone(), script_of));
    let run = RunOptions { timeouts: stage.timeouts, restart: stage.restart, ..options };
    RequestFlow::start(plan, RequestFlowOptions { run, most_requests }).await
}

/// A flow that this tracer follows.
pub(super) async fn traced(
    trace: impl Tracer + 'static,
    script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
) -> RequestFlow {
    let plan = plan_of_requests(&Stage::of(0));
    let options = options_with(&plan, FakeEngine::new(Log::start(), script_of));
    let run = RunOptions { trace: Some(Arc::new(trace)), ..options };
    RequestFlow::start(plan, RequestFlowOptions { run, most_requests: 1024 }).await.unwrap()
}

/// Two devices with two workers each, of which each but the replacements dies or hangs in one of its first batches: a script for every way to do so.
pub(super) fn whatever_dies()
-> (Stage, impl Iterator<Item = impl Fn(Launch) -> Script + Send + Sync + 'static>) {
    let deaths =
        Point::ALL.into_iter().flat_map(|point| [SEGFAULT, KILLED].map(|exit| RunFault::Die(point, exit)));
    let faults = deaths.chain([RunFault::Hang, RunFault::Freeze]).enumerate();
    let scripts = faults.map(|(nth, fault)| {
        move |launch: Launch| match launch.nth_here {
            1 | 2 => Script::at_run(1 + (nth as u64 + launch.nth as u64) % 3, fault.clone()),
            _ => Script::honest(),
        }
    });
    (Stage { devices: 2, workers: 2, ..Stage::of(0) }, scripts)
}

/// A request for an item, which a fake worker answers with what [`answer_to`] says.
pub(super) fn request(item: u64) -> Request {
    let tensor = OwnedValue::Tensor {
        name: "x".into(),
        dtype: DType::F32,
        shape: [1, 1, 1].into(),
        data: (item as f32).to_ne_bytes().into(),
    };
    Request { name: item.to_string(), content: RequestContent::Row(vec![tensor]) }
}

pub(super) fn is_answer(records: &[ReplyRecord], item: u64) -> bool {
    let [record] = records else { return false };
    let (_, values) = read_reply(&record.bytes).unwrap();
    let [StoredValue::Tensor { data, .. }] = &values[..] else { panic!("{values:?}") };
    data[..] == answer_to(item).to_ne_bytes()
}

async fn ask(flow: &RequestFlow, item: u64) -> Result<Vec<ReplyRecord>, ProcessError> {
    flow.process(&request(item), RequestTerms::default()).await
}

/// The items of all batches that were begun, in their order.
fn begun(log: &Log) -> Vec<u64> {
    let mut runs: Vec<_> = log.lives().into_iter().flat_map(|life| life.runs).collect();
    runs.sort_by_key(|run| run.at);
    runs.into_iter().flat_map(|run| run.items).collect()
}

/// All places are free again: of requests, and of rows.
pub(super) fn all_is_home(flow: &RequestFlow) {
    assert_eq!((flow.waiting(), flow.observer().slots_in_use(), flow.observer().slots_lost()), (0, 0, 0));
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_request_is_answered_once_whatever_dies_and_nothing_is_left() {
    let tasks_before = Handle::current().metrics().num_alive_tasks();
    let (stage, scripts) = whatever_dies();
    for script in scripts {
        let log = Log::start();
        let flow = start(&stage, &log, script).await.unwrap();
        // More than all slots hold. Some are dropped: before they have a row, or with one.
        let asked = (0..400).map(|item| {
            let flow = &flow;
            async move {
                let mut asked = Box::pin(ask(flow, item));
                if item % 3 == 0 {
                    assert!(poll_immediate(&mut asked).await.is_none());
                    return;
                }
                let answer = asked.await;
                assert!(answer.as_ref().is_ok_and(|records| is_answer(records, item)), "{item}: {answer:?}");
            }
        });
        join_all(asked).await;
        until(|| flow.waiting() == 0 && flow.observer().slots_in_use() == 0).await;
        all_is_home(&flow);
        assert!(log.lives().iter().any(|life| life.ended.is_some()), "a worker died");
        flow.close().await;
        assert!(log.lives().iter().all(|life| life.ended.is_some()), "no worker outlives its flow");
    }
    // Timers of workers that are gone run out.
    for _ in 0..1000 {
        tokio::time::advance(ms(100)).await;
    }
    let left = Handle::current().metrics().num_alive_tasks().saturating_sub(tasks_before);
    assert_eq!(left, 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_kills_workers_fails_alone_and_by_name() {
    let log = Log::start();
    let poisoned = |_: Launch| Script::poisoned([7], RunFault::Die(Point::MidRun, SEGFAULT));
    let flow = start(&Stage { workers: 2, ..Stage::of(0) }, &log, poisoned).await.unwrap();
    let answers = join_all((0..20).map(|item| ask(&flow, item))).await;
    for (item, answer) in (0..).zip(answers) {
        if item == 7 {
            let Err(ProcessError::Failed { failure, .. }) = answer else { panic!("{answer:?}") };
            let n_begun = begun(&log).iter().filter(|item| **item == 7).count();
            assert_eq!((failure.kind, failure.attempts as usize), (FailureKind::Crash, n_begun));
        } else {
            assert!(is_answer(&answer.unwrap(), item));
        }
    }
    all_is_home(&flow);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_begun_in_the_order_in_which_they_came_and_those_that_were_dropped_are_not() {
    let log = Log::start();
    let flow = start(&Stage { max_batch: 1, ..Stage::of(0) }, &log, |_| Script::honest()).await.unwrap();
    let mut asked: Vec<_> = (0..60).map(|item| Some(Box::pin(ask(&flow, item)))).collect();
    for asked in asked.iter_mut().flatten() {
        assert!(poll_immediate(asked).await.is_none());
    }
    // Those that have no row yet have not begun anything, and are gone with their futures.
    let n_taken = flow.waiting();
    assert!((1..30).contains(&n_taken), "{n_taken}");
    (30..60).step_by(2).for_each(|item| asked[item] = None);
    let answers = join_all(asked.into_iter().flatten()).await;
    assert!(answers.iter().all(Result::is_ok));
    let expected: Vec<u64> = (0..60).filter(|item| *item < 30 || item % 2 == 1).collect();
    assert_eq!(begun(&log), expected);
    all_is_home(&flow);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_wait_and_not_the_work() {
    let log = Log::start();
    let slow = |_: Launch| Script { run_takes: secs(5), ..Script::honest() };
    let flow = start(&Stage { max_batch: 1, ..Stage::of(0) }, &log, slow).await.unwrap();
    let began = Instant::now();
    let within = |time| RequestTerms { deadline: Some(began + time), ..RequestTerms::default() };
    let requests = [request(0), request(1)];
    let late = flow.process(&requests[0], within(secs(1)));
    let (late, in_time) = tokio::join!(late, flow.process(&requests[1], within(secs(60))));
    assert_eq!((late, is_answer(&in_time.unwrap(), 1)), (Err(ProcessError::Deadline), true));
    assert_eq!(began.elapsed(), secs(10), "one after the other");
    assert_eq!(ask(&flow, 2).await.map(|records| is_answer(&records, 2)), Ok(true));
    all_is_home(&flow);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn one_request_too_many_is_refused_at_once_and_its_place_is_free_with_the_end_of_another() {
    let log = Log::start();
    let slow = |_: Launch| Script { run_takes: secs(5), ..Script::honest() };
    let flow = start_with(&Stage::of(0), &log, 3, slow).await.unwrap();
    let mut asked: Vec<_> = (0..3).map(|item| Box::pin(ask(&flow, item))).collect();
    for asked in &mut asked {
        assert!(poll_immediate(asked).await.is_none());
    }
    assert_eq!(poll_immediate(ask(&flow, 3)).await, Some(Err(ProcessError::Overloaded(3))));
    // Its row is on the way to a worker, which makes no room.
    drop(asked.pop());
    assert_eq!(poll_immediate(ask(&flow, 3)).await, Some(Err(ProcessError::Overloaded(3))));
    assert!(join_all(asked).await.iter().all(Result::is_ok));
    until(|| flow.waiting() == 0).await;
    assert!(ask(&flow, 4).await.is_ok());
    all_is_home(&flow);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_row_or_an_answer_is_told_when_the_flow_ends() {
    let log = Log::start();
    let hangs = |_: Launch| Script::at_every_run(RunFault::Hang);
    let flow = Arc::new(start(&Stage::of(0), &log, hangs).await.unwrap());
    let asked: Vec<_> = (0..1000)
        .map(|item| {
            let flow = Arc::clone(&flow);
            tokio::spawn(async move { ask(&flow, item).await })
        })
        .collect();
    until(|| flow.waiting() >= 8).await;
    flow.end("enough");
    for asked in asked {
        assert_eq!(asked.await.unwrap(), Err(ProcessError::Over("enough".to_owned())));
    }
    assert_eq!(ask(&flow, 0).await, Err(ProcessError::Over("enough".to_owned())));
    Arc::into_inner(flow).unwrap().close().await;
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_a_place_get_one_by_priority_and_the_flow_is_empty_after_the_last_end() {
    let log = Log::start();
    let slow = |_: Launch| Script { run_takes: secs(5), ..Script::honest() };
    let flow = start_with(&Stage { max_batch: 1, ..Stage::of(0) }, &log, 1, slow).await.unwrap();
    let requests: Vec<Request> = (0..5).map(request).collect();
    let wait = |item: usize, priority| {
        flow.process(&requests[item], RequestTerms { priority, waits: true, deadline: None })
    };
    let (answers, ()) =
        tokio::join!(join_all([wait(0, 0), wait(1, 1), wait(2, 9), wait(3, 9), wait(4, 0)]), flow.emptied());
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(begun(&log), [0, 2, 3, 1, 4]);
    all_is_home(&flow);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_pipeline_that_falls_over_are_asked_again_and_of_one_that_always_does_are_told_so() {
    for times in [3, 4] {
        let flow = traced(Throws::new("batcher", times), |_| Script::honest()).await;
        for (item, answer) in (0..).zip(join_all((0..200).map(|item| ask(&flow, item))).await) {
            match answer {
                Ok(records) => assert!(times == 3 && is_answer(&records, item)),
                Err(over) => assert!(times == 4 && over.to_string().contains(BUG), "{over}"),
            }
        }
        all_is_home(&flow);
        flow.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_that_has_ended_is_told_to_the_tracer_once_with_its_batches() {
    let told = TelemetryRecorder::default();
    let refuses = |_: Launch| Script::poisoned([7], RunFault::Fails(RunErrorKind::Model));
    let flow = traced(told.clone(), refuses).await;
    let answers = join_all((0..20).map(|item| ask(&flow, item))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 19);
    let mut items = told.items();
    items.sort_by_key(|item| item.name.parse::<u64>().unwrap());
    for (index, item) in (0..).zip(&items) {
        let last = item.steps.batches.last().map(|batch| batch.end == BatchEnd::Done);
        assert_eq!((item.name.clone(), item.end == ItemEnd::Done), (index.to_string(), index != 7));
        assert_eq!(last, Some(index != 7), "{item:?}");
    }
    assert_eq!(items.len(), 20);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_tracer_that_panics_costs_no_request() {
    let flow = traced(Throws::new("tracer of items", 9), |_| Script::honest()).await;
    for (item, answer) in (0..).zip(join_all((0..200).map(|item| ask(&flow, item))).await) {
        assert!(is_answer(&answer.unwrap(), item));
    }
    all_is_home(&flow);
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_flow_kills_its_workers() {
    let log = Log::start();
    let flow = start(&Stage { workers: 3, ..Stage::of(0) }, &log, |_| Script::honest()).await.unwrap();
    drop(flow);
    while !log.lives().iter().all(|life| life.ended.is_some()) {
        tokio::time::advance(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_without_a_worker_that_can_load_does_not_start_and_says_why() {
    let log = Log::start();
    let fails = |_: Launch| Script::loading(Load::Fails(ErrorClass::Permanent));
    let Err(StartFlowError::NoDevice(why)) = start(&Stage::of(0), &log, fails).await else {
        panic!("it started")
    };
    assert!(why.contains("no device is left for stage `read`"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn what_the_source_does_not_take_is_refused_before_anything_runs() {
    let log = Log::start();
    let flow = start(&Stage::of(0), &log, |_| Script::honest()).await.unwrap();
    let tensor = |dtype, shape: &[usize], bytes| OwnedValue::Tensor {
        name: "x".into(),
        dtype,
        shape: shape.into(),
        data: vec![0; bytes].into(),
    };
    for (row, found) in [
        (vec![], "there are 0 columns"),
        (vec![OwnedValue::Text("5".into())], "column `x` is text"),
        (vec![OwnedValue::Missing("x".into())], "column `x` is missing"),
        (vec![tensor(DType::I32, &[1, 1, 1], 4)], "column `x` is i32[1, 1, 1]"),
        (vec![tensor(DType::F32, &[1, 1], 4)], "column `x` is f32[1, 1]"),
        (vec![tensor(DType::F32, &[1, 1, 1], 8)], "column `x` is f32[1, 1, 1] in 8 bytes"),
    ] {
        let row_is_empty = row.is_empty();
        let request = Request { name: String::new(), content: RequestContent::Row(row) };
        let refused = flow.process(&request, RequestTerms::default()).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.starts_with(found) && refused.contains("and source `items` takes "), "{refused}");
        assert!(row_is_empty || refused.ends_with(" f32[1, 1, 1]"), "{refused}");
    }
    let file = Request { name: String::new(), content: RequestContent::File(vec![0xff, 0xd8].into()) };
    let refused = flow.process(&file, RequestTerms::default()).await.unwrap_err().to_string();
    assert!(refused.contains("takes columns, and no file"), "{refused}");
    assert!(begun(&log).is_empty() && is_answer(&ask(&flow, 5).await.unwrap(), 5));
    flow.close().await;
}
