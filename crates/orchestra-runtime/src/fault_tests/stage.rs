//! One batch stage as a run has it, over fake workers: the real batcher, processor, device managers and links, and probes where a run has
//! its source, item ends, pipeline and root. Everything lives on one thread under paused time, so a run is the same each time. Properties
//! are judged elsewhere; what every run must keep is checked by `audit`.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::restart::RestartPolicy;
use orchestra_core::{ItemId, SourceId, StageId};
use orchestra_machine::GpuProbe;
use orchestra_plan::{BatchPlan, Origin, Plan, Shape};
use orchestra_worker::arena::Arena;
use ractor::ActorRef;
use ractor::concurrency::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::account::{Account, Outcome};
use super::audit;
use super::fake_plan::plan_of;
use super::fake_process::{FakeEngine, Launch, options_with};
use super::gpus::{self, Gpus};
use super::log::Log;
use super::probe::{Probe, Watcher};
use super::recorder::{self, TelemetryRecorder};
use super::script::{Script, ms, secs};
use crate::batch::slot_pool::SlotPool;
use crate::batch::stage::BatchStage;
use crate::context::{RunContext, RunOptions, Timeouts};
use crate::fleet::device_manager::DeviceManager;
use crate::fleet::device_watch::DeviceOptions;
use crate::flow::chain::{Chain, ChainTargets};
use crate::flow::ends::Ends;
use crate::flow::processor::Processor;
use crate::flow::ticket::Ticket;
use crate::flow::token::Token;
use crate::messages::{BatcherMsg, DeviceMsg, PipelineMsg, RootMsg};
use crate::trace::Tracer;

/// A stage to be run, and what is asked of it.
#[derive(Debug, Clone)]
pub struct Stage {
    /// What failed checks are headed with.
    pub label: String,
    pub items: u64,
    pub max_batch: usize,
    pub devices: usize,
    pub workers: usize,
    /// Batches that each runs at once.
    pub streams: usize,
    /// Whether outputs travel in frames, because their shape is only known after the run.
    pub dynamic: bool,
    /// `limits.batch_timeout`.
    pub batch_timeout: Duration,
    /// A worker is replaced after so many batches.
    pub recycle_after: Option<u64>,
    pub first_item: Duration,
    pub pause: Duration,
    pub timeouts: Timeouts,
    pub restart: RestartPolicy,
    /// The run is stopped at this time.
    pub stop: Option<(Duration, Stop)>,
    /// The GPUs that it runs on, if their memory counts.
    pub gpus: Option<Gpus>,
    /// GiB that each of its workers takes of one, where the file says so.
    pub takes: u64,
    /// The file says what a worker takes.
    pub is_declared: bool,
    /// There is another stage like it, on the same devices, whose workers have nothing to do.
    pub is_double: bool,
    /// It runs on the 4 cores of the machine, which it shares with the other stage, and may have as many workers as it has work for.
    pub is_on_cores: bool,
    pub traced: bool,
    /// Its workers send heartbeats also while they load or run.
    pub beats_while_busy: bool,
    /// Bytes of what its workers are to load.
    pub spec_bytes: usize,
    /// Beyond this time of the run, something hangs.
    pub bound: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Workers are asked to end.
    Politely,
    AtOnce,
}

impl Stage {
    /// One device with one worker, batches of up to four rows.
    pub fn of(items: u64) -> Self {
        Self {
            label: String::new(),
            items,
            max_batch: 4,
            devices: 1,
            workers: 1,
            streams: 1,
            dynamic: false,
            batch_timeout: secs(10),
            recycle_after: None,
            first_item: Duration::ZERO,
            pause: Duration::ZERO,
            timeouts: Timeouts::default(),
            restart: RestartPolicy::default(),
            stop: None,
            gpus: None,
            takes: 0,
            is_declared: false,
            is_double: false,
            is_on_cores: false,
            traced: true,
            beats_while_busy: true,
            spec_bytes: 0,
            bound: secs(3600),
        }
    }

    /// With this heading for failed checks.
    pub fn named(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Runs it with a first worker that lives like this, and honest ones behind it.
    pub async fn run_first(self, script: Script) -> Outcome {
        self.run(move |l| if l.nth == 1 { script.clone() } else { Script::honest() }).await
    }

    /// Runs it with workers that live as `script_of` says, until every item has its end, no device is left or it is stopped; then ends it
    /// as a run is ended, and checks what every run must keep.
    pub async fn run(self, script_of: impl Fn(Launch) -> Script + Send + Sync + 'static) -> Outcome {
        let tasks_before = Handle::current().metrics().num_alive_tasks();
        let log = Log::start();
        let tree = Tree::grow(&self, log.clone(), script_of).await;
        let feeder = tokio::spawn(feed(self.clone(), tree.feed.clone()));
        let stopped = tree.over(&self, &log).await;
        let over = log.now();
        feeder.abort();
        let credits = tree.slots_in_use();
        let mut ended = tree.end(&self).await;
        audit::nothing_is_left(&mut ended, tasks_before).await;
        let outcome = ended.into_outcome(self, log, over);
        audit::account_is_exact(&outcome, stopped, credits);
        recorder::is_exact(&outcome);
        outcome
    }
}

struct Tree {
    context: Arc<RunContext>,
    stage: StageId,
    account: Arc<Mutex<Account>>,
    told: Option<TelemetryRecorder>,
    /// Told whenever something was noted in the account.
    noted: Arc<Notify>,
    feed: Feed,
    batcher: JoinHandle<()>,
    devices: Vec<(ActorRef<DeviceMsg>, JoinHandle<()>)>,
    probes: Vec<(ractor::ActorCell, JoinHandle<()>)>,
    /// The other stage, if there is one.
    idle: Option<(StageId, Grown)>,
    looking: Option<tokio::task::JoinHandle<()>>,
}

/// What follows a stage, and the stage.
type Grown = (BatchStage, JoinHandle<()>);

pub struct Ended {
    pub context: Arc<RunContext>,
    pub pool: Arc<SlotPool>,
    pub account: Arc<Mutex<Account>>,
    /// What the tracer was told.
    pub told: Option<TelemetryRecorder>,
}

/// What the source of items needs.
#[derive(Clone)]
struct Feed {
    context: Arc<RunContext>,
    pool: Arc<SlotPool>,
    batcher: ActorRef<BatcherMsg>,
}

impl Tree {
    async fn grow(
        stage: &Stage,
        log: Log,
        script_of: impl Fn(Launch) -> Script + Send + Sync + 'static,
    ) -> Self {
        let plan = Arc::new(plan_of(stage));
        let account = Arc::new(Mutex::new(Account::default()));
        let exits = Arc::clone(&account);
        let told = stage.traced.then(TelemetryRecorder::default);
        let mut engine = FakeEngine::new(log, script_of).on(stage.gpus.clone());
        engine.beats_while_busy = stage.beats_while_busy;
        engine.spec_bytes = stage.spec_bytes;
        let options = RunOptions {
            timeouts: stage.timeouts,
            restart: stage.restart,
            trace: told.clone().map(|told| Arc::new(told) as Arc<dyn Tracer>),
            events: Some(Arc::new(move |event| exits.lock().unwrap().worker_says(event))),
            devices: DeviceOptions {
                probe: stage.gpus.as_ref().map(|gpus| Arc::new(gpus.clone()) as Arc<dyn GpuProbe>),
                ..DeviceOptions::default()
            },
            ..options_with(&plan, engine)
        };
        let context = Arc::new(RunContext::new(Arc::clone(&plan), "fake-run".to_owned(), options));
        let noted = Arc::new(Notify::new());
        let watcher = Watcher { account: Arc::clone(&account), wake: vec![noted.clone()] };
        let (root, root_end) = Probe::spawn(watcher.clone(), Account::root_says).await;
        let (pipeline, pipeline_end) = Probe::spawn(watcher.clone(), Account::pipeline_says).await;
        let ends: Arc<dyn Ends> = Arc::new(watcher);
        let probes = vec![(root.get_cell(), root_end), (pipeline.get_cell(), pipeline_end)];
        let tell = root.clone();
        let ended = move |device| drop(tell.cast(RootMsg::DeviceEnded(device)));
        let devices =
            DeviceManager::start_all(&context, &root.get_cell(), &BTreeSet::new(), ended).await.unwrap();
        let managers: Vec<_> = devices.iter().map(|(manager, _)| manager.clone()).collect();
        let mut stages = Vec::new();
        for (id, batch) in plan.batch_stages() {
            let stage = Self::grow_stage(&context, id, batch, &ends, &pipeline, &managers).await;
            stages.push((id, stage));
        }
        let idle = if stages.len() > 1 { stages.pop() } else { None };
        let (id, (BatchStage { pool, batcher }, end)) = stages.pop().expect("the plan has an infer stage");
        let looking = stage.gpus.clone().map(|gpus| tokio::spawn(gpus::look(Arc::downgrade(&context), gpus)));
        let feed = Feed { context: Arc::clone(&context), pool, batcher };
        let batcher = end;
        Self { context, stage: id, account, told, noted, feed, batcher, devices, probes, idle, looking }
    }

    /// As the pipeline does it.
    async fn grow_stage(
        context: &Arc<RunContext>,
        id: StageId,
        batch: &BatchPlan,
        ends: &Arc<dyn Ends>,
        pipeline: &ActorRef<PipelineMsg>,
        devices: &[ActorRef<DeviceMsg>],
    ) -> Grown {
        let chain = Chain::new(context, ends, Origin::Stage(id), &ChainTargets::default());
        let completion = Arc::new(Processor::new(id, chain, pipeline.clone()));
        let arena = Arena::create("fake", batch.layout.clone()).unwrap();
        let batch = BatchStage::start(context, id, arena, completion, devices, pipeline.get_cell());
        batch.await.unwrap()
    }

    fn slots_in_use(&self) -> u64 {
        self.context.stats.slots_in_use()
    }

    /// Waits until every item has its end, no device is left, or it is time to stop. Says whether it was stopped.
    async fn over(&self, stage: &Stage, log: &Log) -> bool {
        let stop = async {
            match stage.stop {
                Some((at, _)) => tokio::time::sleep(at).await,
                None => pending().await,
            }
        };
        let all_ended = async {
            while !self.account.lock().unwrap().is_over(stage.items) {
                self.noted.notified().await;
            }
        };
        tokio::select! {
            biased;
            () = all_ended => false,
            () = stop => true,
            () = tokio::time::sleep(stage.bound) => {
                log.lives().iter().for_each(|life| eprintln!("{life}"));
                let account = self.account.lock().unwrap();
                let left: Vec<u64> = (0..stage.items).filter(|i| !account.has_ended(*i)).collect();
                eprintln!("{stage:?}; {} slots are taken; without an end: {left:?}", self.slots_in_use());
                panic!("`{}`: after {:?} of its time: {account}", stage.label, stage.bound);
            }
        }
    }

    /// As the pipeline and the root do it.
    async fn end(self, stage: &Stage) -> Ended {
        let Self { context, account, told, noted, feed, batcher, devices, probes, idle, looking, .. } = self;
        let Feed { pool, batcher: batcher_ref, .. } = feed;
        let now = stage.stop.is_some_and(|(_, how)| how == Stop::AtOnce);
        if now {
            devices.iter().for_each(|(d, _)| drop(d.cast(DeviceMsg::Shutdown { now: true })));
        }
        pool.shut();
        devices.iter().for_each(|(d, _)| drop(d.cast(DeviceMsg::Retire(self.stage))));
        batcher_ref.stop(None);
        drop(batcher_ref);
        batcher.await.unwrap();
        if let Some((id, (BatchStage { pool, batcher }, end))) = idle {
            pool.shut();
            devices.iter().for_each(|(d, _)| drop(d.cast(DeviceMsg::Retire(id))));
            batcher.stop(None);
            end.await.unwrap();
        }
        devices.iter().for_each(|(d, _)| drop(d.cast(DeviceMsg::Shutdown { now: false })));
        let n_devices = devices.len();
        let all_ended = async {
            while account.lock().unwrap().devices_ended < n_devices {
                noted.notified().await;
            }
            for (_, end) in devices {
                end.await.unwrap();
            }
        };
        let label = &stage.label;
        let bound = secs(60);
        tokio::time::timeout(bound, all_ended).await.unwrap_or_else(|_| {
            panic!("`{label}`: the devices have not ended {bound:?} after they were told to")
        });
        for (probe, end) in probes {
            probe.stop(None);
            end.await.unwrap();
        }
        if let Some(looking) = looking {
            looking.abort();
        }
        Ended { context, pool, account, told }
    }
}

impl Ended {
    fn into_outcome(self, stage: Stage, log: Log, over: Duration) -> Outcome {
        let stats = &self.context.stats;
        let mut account = std::mem::take(&mut *self.account.lock().unwrap());
        let of_devices =
            |what: fn(&crate::account::stats::DeviceStats) -> u64| stats.devices.iter().map(what).sum();
        Outcome {
            over,
            lives: log.lives(),
            starts: of_devices(|d| d.starts.get()),
            restarts: of_devices(|d| d.restarts.get()),
            added: of_devices(|d| d.added.get()),
            retries: stats.retries.get(),
            exits: std::mem::take(&mut account.exits),
            told: self.told,
            account,
            stage,
        }
    }
}

/// Puts the items into rows, as loaders do, as long as there are free ones.
async fn feed(stage: Stage, feed: Feed) {
    tokio::time::sleep(stage.first_item).await;
    for index in 0..stage.items {
        if index > 0 && stage.pause > Duration::ZERO {
            tokio::time::sleep(stage.pause).await;
        }
        // Without blocking: all actors share this thread, and a slot that another thread gives back may wake no claim that blocks.
        let Some(mut lease) = feed.pool.claim_async(1).await else { return };
        lease.input_mut(0).copy_from_slice(&(index as f32).to_ne_bytes());
        let id = ItemId { source: SourceId(0), index };
        let ticket = Ticket::alone(id, index, &index.to_string(), b"");
        if let Some(timeline) = ticket.timeline().filter(|_| feed.context.tracer.is_on()) {
            timeline.queued(StageId(1), feed.context.clock.now());
        }
        lease.publish(Token::whole(ticket));
    }
    drop(feed.batcher.cast(BatcherMsg::Drained));
}

/// Whether a plan is what the stage asked for: a mistake of these tests shows here and not in a property.
pub fn check_plan(plan: &Plan, stage: &Stage) {
    let (_, batch) = plan.batch_stages().next().expect("the plan has an infer stage");
    assert_eq!(plan.devices.len(), stage.devices);
    assert!(batch.workers.iter().all(|w| w.most() == stage.workers));
    assert_eq!((batch.max_batch, batch.wait), (stage.max_batch, ms(5)));
    assert_eq!(batch.layout.outputs[0].is_none(), stage.dynamic);
    assert_eq!(plan.limits.batch_timeout, stage.batch_timeout);
    assert!(matches!(plan.stages[0].runs, Shape::Map(_)));
}
