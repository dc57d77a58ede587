//! Workers of a flow that are replaced one by one, because the device has no memory for two sets: each request is answered, the device always serves where it
//! has two workers, and where the new ones cannot be loaded the old ones are back.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use orchestra_core::ErrorClass;
use tokio::time::sleep;

use super::fake_plan::plan_of_requests;
use super::fake_process::{FakeEngine, Launch, options_with};
use super::gpus::Gpus;
use super::log::{Life, Log};
use super::requests::{all_is_home, is_answer, request};
use super::script::*;
use super::stage::Stage;
use crate::fleet::launcher::{EngineSpec, Engines};
use crate::requests::{RequestFlow, RequestFlowOptions, RequestTerms, StartFlowError};

/// GiB that each worker takes.
const TAKES: u64 = 4;
/// What else a device has: enough for the headroom, and not for another worker.
const SPARE: u64 = 3;

/// A flow on devices that have memory for its workers alone, and what they did.
struct TightFlow {
    flow: RequestFlow,
    gpus: Gpus,
    log: Log,
}

fn stage(devices: usize, workers: usize) -> Stage {
    let gpus = Some(Gpus::new(devices, workers as u64 * TAKES + SPARE));
    Stage { devices, workers, gpus, takes: TAKES, is_declared: true, ..Stage::of(0) }
}

fn engine(
    log: &Log,
    gpus: &Gpus,
    script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
) -> FakeEngine {
    let taking = move |launch| Script { takes: TAKES, ..script_of(launch) };
    FakeEngine::new(log.clone(), taking).on(Some(gpus.clone()))
}

impl TightFlow {
    async fn start(stage: &Stage, script_of: impl Fn(Launch) -> Script + Send + Sync + 'static) -> Self {
        let (gpus, log) = (stage.gpus.clone().unwrap(), Log::start());
        let flow = Self::try_start(stage, engine(&log, &gpus, script_of)).await.unwrap();
        Self { flow, gpus, log }
    }

    async fn try_start(stage: &Stage, engine: FakeEngine) -> Result<RequestFlow, StartFlowError> {
        let plan = plan_of_requests(stage);
        let run = options_with(&plan, engine);
        RequestFlow::start(plan, RequestFlowOptions { run, most_requests: 64 }).await
    }

    /// Replaces its workers by such ones, while a caller asks all the time. Gives how that ended, and what the new ones did.
    async fn replace(
        &self,
        script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
    ) -> (Result<(), String>, Vec<Life>) {
        let log = self.log.of_the_same_time();
        let engine: Arc<dyn EngineSpec> = Arc::new(engine(&log, &self.gpus, script_of));
        let stages = self.flow.plan().batch_stages();
        let engines: Engines = stages.map(|(stage, _)| (stage, Arc::clone(&engine))).collect();
        let replaced = self.flow.replace_workers(engines);
        let asked = async {
            for item in 0..600 {
                let answer = self.flow.process(&request(item), RequestTerms::default()).await;
                assert!(answer.as_ref().is_ok_and(|records| is_answer(records, item)), "{item}: {answer:?}");
            }
        };
        let (end, ()) = join(replaced, asked).await;
        all_is_home(&self.flow);
        (end, log.lives())
    }

    fn n_serving(&self, lives: &[Life]) -> usize {
        lives.iter().filter(|life| life.serves_at(self.log.now())).count()
    }
}

/// As long as some of these workers lived, one of them was loaded, from the first load on.
fn one_always_served(lives: &[&Life]) {
    let first = lives.iter().filter_map(|life| life.loaded).min().unwrap();
    let ends = lives.iter().filter_map(|life| life.ended.as_ref()).map(|(at, _)| *at);
    for end in ends.filter(|end| *end > first) {
        assert!(lives.iter().any(|life| life.serves_at(end)), "nobody served at {end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn workers_are_replaced_one_by_one_where_there_is_no_memory_for_two_sets() {
    for (devices, workers) in [(1, 1), (1, 2), (1, 3), (2, 2)] {
        let tight = TightFlow::start(&stage(devices, workers), |_| Script::honest()).await;
        let (end, new) = tight.replace(|_| Script::honest()).await;
        assert_eq!(end, Ok(()));
        let old = tight.log.lives();
        assert!(old.iter().all(|life| life.ended.is_some()), "no old one is left");
        assert_eq!((old.len(), new.len()), (devices * workers, devices * workers), "each was started once");
        assert_eq!(tight.n_serving(&new), devices * workers);
        if workers > 1 {
            for device in 0..devices {
                one_always_served(
                    &old.iter().chain(&new).filter(|life| life.device == device).collect::<Vec<_>>(),
                );
            }
        }
        // And again: the new ones are the old ones then.
        let (end, newer) = tight.replace(|_| Script::honest()).await;
        assert_eq!((end, tight.n_serving(&newer)), (Ok(()), devices * workers));
        tight.flow.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_old_workers_are_back_where_a_new_one_cannot_be_loaded() {
    let faults = [
        Script::loading(Load::Fails(ErrorClass::Permanent)),
        Script::loading(Load::Fails(ErrorClass::Overload)),
        Script::loading(Load::Dies(SEGFAULT)),
        Script::starting(Start::CannotBeStarted),
    ];
    for (workers, bad, devices) in [(1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 2, 1), (1, 2, 2)] {
        for fault in &faults {
            let tight = TightFlow::start(&stage(devices, workers), |_| Script::honest()).await;
            let of_new = fault.clone();
            let (end, new) = tight
                .replace(move |launch| if launch.nth == bad { of_new.clone() } else { Script::honest() })
                .await;
            assert!(end.is_err(), "{workers} {bad} {fault:?}");
            // The last of the good ones may still hand over.
            while tight.n_serving(&tight.log.lives()) < devices * workers {
                sleep(ms(10)).await;
            }
            assert!(new.iter().all(|life| life.ended.is_some()), "{new:?}");
            assert_eq!(tight.replace(|_| Script::honest()).await.0, Ok(()), "the next one does");
            tight.flow.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn kills_from_outside_delay_a_replacement_and_do_not_end_it() {
    for after in (0..400).step_by(20) {
        let dies = Script::later(ms(after), TimedFault::Dies(KILLED));
        let old = move |launch: Launch| if launch.nth == 2 { dies.clone() } else { Script::honest() };
        let tight = TightFlow::start(&stage(1, 2), old).await;
        let dies = Script::later(ms(after / 2), TimedFault::Dies(KILLED));
        let dies_at_load = Script::loading(Load::Dies(KILLED));
        let (end, new) = tight
            .replace(move |launch| match launch.nth {
                1 => dies.clone(),
                2 => dies_at_load.clone(),
                _ => Script::honest(),
            })
            .await;
        assert_eq!(end, Ok(()), "{after}");
        assert!(tight.log.lives().iter().all(|life| life.ended.is_some()));
        assert!(tight.n_serving(&new) > 0);
        tight.flow.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_finds_no_memory_beside_another_says_so() {
    let stage = stage(1, 1);
    let tight = TightFlow::start(&stage, |_| Script::honest()).await;
    let second = TightFlow::try_start(&stage, engine(&Log::start(), &tight.gpus, |_| Script::honest())).await;
    assert!(matches!(second, Err(StartFlowError::NoMemory(_))));
    assert_eq!(tight.log.lives().len(), 1, "the first one was not disturbed");
    tight.flow.close().await;
    while tight.gpus.used(0) > 0 {
        sleep(Duration::from_millis(10)).await;
    }
}
