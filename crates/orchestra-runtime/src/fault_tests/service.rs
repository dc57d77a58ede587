//! A batch stage without a pipeline: each request is answered once and rightly, whatever becomes of workers, and nothing is left of a service
//! that has ended.

use std::sync::Arc;

use futures::future::join_all;
use orchestra_core::{DType, ErrorClass, FailureKind, StageId};
use tokio::runtime::Handle;

use super::fake_plan::plan_of;
use super::fake_process::{FakeEngine, Launch};
use super::fake_worker::answer_to;
use super::log::Log;
use super::script::*;
use super::stage::Stage;
use crate::batch::service::{InferError, Service, StartServiceError, Tensor};
use crate::context::RunOptions;
use crate::fleet::device_watch::DeviceOptions;
use crate::fleet::launcher::EngineSpec;
use crate::tasks::groups::GroupOwner;

async fn start(
    stage: &Stage,
    log: &Log,
    script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
) -> Result<Service, StartServiceError> {
    let plan = Arc::new(plan_of(stage));
    let engine: Arc<dyn EngineSpec> = Arc::new(FakeEngine::new(log.clone(), script_of));
    let options = RunOptions {
        engine: None,
        loaders: None,
        keepers: None,
        group_owner: GroupOwner::Host,
        tasks_only: false,
        first_part: None,
        engines: [(StageId(1), engine)].into(),
        timeouts: stage.timeouts,
        restart: stage.restart,
        trace: None,
        events: None,
        devices: DeviceOptions::default(),
    };
    Service::start(plan, StageId(1), options).await
}

/// A request of these items, which a fake worker answers with what [`answer`] says.
fn request(items: &[u64]) -> Vec<Tensor> {
    let data = items.iter().flat_map(|item| (*item as f32).to_ne_bytes()).collect();
    vec![Tensor { dtype: DType::F32, shape: vec![items.len(), 1, 1, 1], data }]
}

fn answer(items: &[u64]) -> Vec<Tensor> {
    let data = items.iter().flat_map(|item| answer_to(*item).to_ne_bytes()).collect();
    vec![Tensor { dtype: DType::F32, shape: vec![items.len(), 1], data }]
}

/// How often an item was begun.
fn begun(log: &Log, item: u64) -> usize {
    let lives = log.lives();
    lives.iter().flat_map(|life| &life.runs).filter(|batch| batch.items.contains(&item)).count()
}

#[tokio::test(start_paused = true)]
async fn every_request_is_answered_once_whatever_dies_and_nothing_is_left() {
    let tasks_before = Handle::current().metrics().num_alive_tasks();
    for (nth, fault) in Point::ALL
        .into_iter()
        .flat_map(|point| [SEGFAULT, KILLED].map(|exit| RunFault::Die(point, exit)))
        .chain([RunFault::Hang, RunFault::Freeze])
        .enumerate()
    {
        let log = Log::start();
        let stage = Stage { devices: 2, workers: 2, ..Stage::of(0) };
        // Each worker but the replacements dies in one of its first batches.
        let script = move |launch: Launch| match launch.nth_here {
            1 | 2 => Script::at_run(1 + (nth as u64 + launch.nth as u64) % 3, fault.clone()),
            _ => Script::honest(),
        };
        let service = start(&stage, &log, script).await.unwrap();
        // More rows than all slots hold, from requests of one to five rows.
        let items: Vec<Vec<u64>> = (0..120).map(|n| (0..=n % 5).map(|row| 10 * n + row).collect()).collect();
        let requests: Vec<Vec<Tensor>> = items.iter().map(|items| request(items)).collect();
        let answers = join_all(requests.iter().map(|request| service.infer(request))).await;
        for (items, answers) in items.iter().zip(answers) {
            assert_eq!(answers.as_ref(), Ok(&answer(items)), "{items:?}");
        }
        assert_eq!(service.waiting(), 0);
        assert!(log.lives().iter().any(|life| life.ended.is_some()), "a worker died");
        service.close().await;
        assert!(log.lives().iter().all(|life| life.ended.is_some()), "no worker outlives its service");
    }
    // Timers of workers that are gone run out.
    for _ in 0..1000 {
        tokio::time::advance(ms(100)).await;
    }
    let left = Handle::current().metrics().num_alive_tasks().saturating_sub(tasks_before);
    assert_eq!(left, 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_kills_workers_fails_its_request_alone() {
    let log = Log::start();
    let poisoned = |_: Launch| Script::poisoned([7], RunFault::Die(Point::MidRun, SEGFAULT));
    let service = start(&Stage { workers: 2, ..Stage::of(0) }, &log, poisoned).await.unwrap();
    let requests: Vec<Vec<Tensor>> = (0..10).map(|n| request(&[2 * n, 2 * n + 1])).collect();
    let answers = join_all(requests.iter().map(|request| service.infer(request))).await;
    for (n, answers) in (0..).zip(answers) {
        if n == 3 {
            let Err(InferError::Failed { row: 1, failure }) = answers else { panic!("{answers:?}") };
            assert_eq!((failure.kind, failure.attempts as usize), (FailureKind::Crash, begun(&log, 7)));
        } else {
            assert_eq!(answers, Ok(answer(&[2 * n, 2 * n + 1])));
        }
    }
    service.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_row_or_an_answer_is_told_when_the_service_ends() {
    let log = Log::start();
    let hangs = |_: Launch| Script::at_every_run(RunFault::Hang);
    let service = Arc::new(start(&Stage::of(0), &log, hangs).await.unwrap());
    let asked: Vec<_> = (0..1000)
        .map(|n| {
            let service = Arc::clone(&service);
            tokio::spawn(async move { service.infer(&request(&[n])).await })
        })
        .collect();
    while service.waiting() < 8 {
        tokio::task::yield_now().await;
    }
    service.end("enough");
    for asked in asked {
        assert_eq!(asked.await.unwrap(), Err(InferError::Over("enough".to_owned())));
    }
    assert_eq!(service.infer(&request(&[0])).await, Err(InferError::Over("enough".to_owned())));
    Arc::into_inner(service).unwrap().close().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_service_kills_its_workers() {
    let log = Log::start();
    let service = start(&Stage { workers: 3, ..Stage::of(0) }, &log, |_| Script::honest()).await.unwrap();
    drop(service);
    while !log.lives().iter().all(|life| life.ended.is_some()) {
        tokio::time::advance(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_worker_that_can_load_does_not_start_and_says_why() {
    let log = Log::start();
    let fails = |_: Launch| Script::loading(Load::Fails(ErrorClass::Permanent));
    let Err(StartServiceError::NoDevice(why)) = start(&Stage::of(0), &log, fails).await else {
        panic!("it started")
    };
    assert!(why.contains("no device is left for stage `read`"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_fit_is_told_what_is_expected() {
    let log = Log::start();
    let service = start(&Stage::of(0), &log, |_| Script::honest()).await.unwrap();
    let [tensor] = &request(&[1, 2])[..] else { panic!("one input") };
    let bad = |change: fn(&mut Tensor)| {
        let mut tensor = tensor.clone();
        change(&mut tensor);
        vec![tensor]
    };
    for (inputs, says) in [
        (vec![], "has 0 tensors, expected 1"),
        (bad(|t| t.dtype = DType::I32), "is i32 [2, 1, 1, 1], expected f32 [rows, 1, 1, 1]"),
        (bad(|t| t.shape = vec![2, 1]), "is f32 [2, 1], expected"),
        (bad(|t| (t.shape[0], t.data) = (0, Vec::new())), "at least 1 row"),
        (bad(|t| t.data.truncate(7)), "has 7 bytes"),
    ] {
        let Err(InferError::Input(why)) = service.infer(&inputs).await else { panic!("{inputs:?}") };
        assert!(why.contains(says), "{why}");
    }
    assert_eq!(service.infer(&request(&[5])).await, Ok(answer(&[5])));
    service.close().await;
}
