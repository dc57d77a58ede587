//! What every actor of a run shares: the plan, the clock, the counters, the way to start workers. Nothing here changes during a run
//! but counters.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use orchestra_core::restart::RestartPolicy;
use orchestra_core::{DeviceId, PipelineId, StageId, WorkerId};
use orchestra_plan::{DeferredPlan, MaxFailed, PipelinePlan, Plan};
use orchestra_store::Extent;
use tokio::time::Instant;

use crate::account::outcome::RunOutcome;
use crate::account::stats::Stats;
use crate::child::spawn::ProcessLauncher;
use crate::events::{EventHook, WorkerEvent};
use crate::fleet::device_watch::{DeviceOptions, DeviceWatch};
use crate::fleet::launcher::Engines;
use crate::flow::loader::ExclusiveLoads;
use crate::messages::{LimitReached, Stopped};
use crate::panics::RunBug;
use crate::tasks::board::TaskBoard;
use crate::tasks::groups::GroupOwner;
use crate::trace::{MaybeTracer, RunBegan, Tracer, WorkerStep, WorkerTrace};

/// Durations that bound what a worker may take. The defaults suit real machines; tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the start of the process to its first frame, which it sends before it loads anything; of a loader, until it is ready for items.
    pub handshake: Duration,
    /// Silence after which a process counts as frozen (it sends a heartbeat every 250 ms).
    pub heartbeat: Duration,
    /// From the request to end to the exit; then it is killed.
    pub shutdown: Duration,
    /// From SIGKILL until a process counts as one that nothing can end: it hangs in the kernel, most likely in the driver of its device.
    pub kill: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            heartbeat: Duration::from_secs(3),
            shutdown: Duration::from_secs(5),
            kill: Duration::from_secs(30),
        }
    }
}

/// What engines load to make results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineVersion {
    /// Stands for it in the identity of a run, where no part of a plan may be called so.
    pub name: &'static str,
    /// `None`: not known yet.
    pub version: Option<String>,
}

/// How a run shall be carried out.
#[derive(Clone)]
pub struct RunOptions {
    /// What runs the batches of each batch stage.
    pub engines: Engines,
    /// What the engines load, where its version decides about results: a run with results of another version is not continued.
    pub engine: Option<EngineVersion>,
    /// What starts the processes that read and decode items; `None`: that is done in this process, by code that is trusted with what files
    /// hold.
    pub loaders: Option<ProcessLauncher>,
    /// What starts the keepers of commands; `None`: a plan with tasks does not start.
    pub keepers: Option<ProcessLauncher>,
    /// Whose the control group of this process is. Commands get groups below it.
    pub group_owner: GroupOwner,
    /// Run the tasks of the plan, and none of its pipelines.
    pub tasks_only: bool,
    /// What the first part of this start has come to: the tasks that the rest of the file was planned with. See [`Plan::deferred`].
    pub first_part: Option<Arc<RunOutcome>>,
    pub timeouts: Timeouts,
    pub restart: RestartPolicy,
    /// Follows the run, its batches and its items. Without a tracer nothing is noted for it.
    pub trace: Option<Arc<dyn Tracer>>,
    /// Is told what happens to workers.
    pub events: Option<EventHook>,
    /// How GPUs are asked, and what their workers need.
    pub devices: DeviceOptions,
}

/// The time since the start of the run. Follows tokio's clock, so tests may pause it.
#[derive(Debug, Clone, Copy)]
pub struct RunClock(Instant);

impl RunClock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }

    /// When `instant` was, since the start; zero if it was before.
    pub fn at(&self, instant: std::time::Instant) -> Duration {
        Instant::from_std(instant).saturating_duration_since(self.0)
    }
}

pub struct RunContext {
    pub plan: Arc<Plan>,
    /// Id of the run, as in `run.json`.
    pub run_id: String,
    pub clock: RunClock,
    pub stats: Arc<Stats>,
    pub options: RunOptions,
    pub tracer: MaybeTracer,
    pub watch: Arc<DeviceWatch>,
    pub tasks: Arc<TaskBoard>,
    pub loads_alone: ExclusiveLoads,
    pub bug: RunBug,
    /// Cores that this process may keep busy.
    pub cores: usize,
    /// What runs the batches of each batch stage now.
    pub engines: Mutex<Engines>,
    /// A stage has lost a device because the model did not fit into its memory.
    pub lacks_memory: AtomicBool,
    next_worker: AtomicU32,
}

impl RunContext {
    /// What is planned after this run, where it is the first of two parts: only the tasks run whose values that uses, and what they come after.
    pub fn planned_next(&self) -> Option<&DeferredPlan> {
        let RunOptions { first_part, tasks_only, .. } = &self.options;
        self.plan.deferred.as_ref().filter(|_| first_part.is_none() && !tasks_only)
    }

    /// The context of a run that starts now.
    pub fn new(plan: Arc<Plan>, run_id: String, options: RunOptions) -> Self {
        let stats = Arc::new(Stats::new(&plan));
        let (clock, zero) = (RunClock::start(), SystemTime::now());
        let began = || RunBegan { plan: Arc::clone(&plan), run_id: run_id.clone(), zero };
        let tracer = MaybeTracer::begin(options.trace.as_ref(), began);
        let watch = Arc::new(DeviceWatch::new(&plan));
        let engines = Mutex::new(options.engines.clone());
        Self {
            plan,
            run_id,
            clock,
            stats,
            options,
            tracer,
            watch,
            tasks: Arc::default(),
            loads_alone: ExclusiveLoads::default(),
            bug: RunBug::default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            engines,
            lacks_memory: AtomicBool::new(false),
            next_worker: AtomicU32::new(0),
        }
    }

    /// What is stopped because more items have failed than its `max_failed` allows: the run, else the pipeline. A share of items whose number is
    /// not known yet is not exceeded.
    pub fn too_many_failed(&self, pipeline: PipelineId) -> Option<LimitReached> {
        let stats = &self.stats;
        let exceeds = |limit: Option<MaxFailed>, failed: u64, extent: Extent| {
            limit.is_some_and(|limit| limit.is_exceeded(failed, extent.known().unwrap_or(u64::MAX)))
        };
        if exceeds(self.plan.limits.max_failed, stats.failed.get(), stats.extent()) {
            let why = "more items failed than `limits.max_failed` allows".to_owned();
            let lifted = "limits.max_failed=100%".to_owned();
            return Some(LimitReached { stopped: Stopped::Run, why, lifted });
        }
        let own = &stats.pipelines[pipeline.index()];
        let failed = own.failed.get() + own.failed_before.get();
        let PipelinePlan { name, limits, .. } = &self.plan.pipelines[pipeline.index()];
        exceeds(limits.max_failed, failed, stats.extent_of(pipeline)).then(|| {
            let why = format!("pipeline `{name}` was stopped: more of its items failed than `pipelines.{name}.max_failed` allows");
            let lifted = format!("pipelines.{name}.max_failed=100%");
            LimitReached { stopped: Stopped::Pipeline(pipeline), why, lifted }
        })
    }

    /// Where in a pipeline the first items have all failed, so many that its `first_failed` stops it, and what that comes to. Items that were done before prove
    /// that others can be.
    pub fn first_failed(&self, pipeline: PipelineId) -> Option<LimitReached> {
        let PipelinePlan { name, sources, stages, sinks, limits, .. } =
            &self.plan.pipelines[pipeline.index()];
        let (plan, stats, limit) = (&self.plan, &self.stats, limits.first_failed);
        let own = &stats.pipelines[pipeline.index()];
        if own.resumed.get() > own.failed_before.get() {
            return None;
        }
        let of_sources = sources
            .iter()
            .map(|id| ("source", &plan.sources[id.index()].name, &stats.first_of_sources[id.index()]));
        let of_stages =
            stages.iter().map(|id| ("stage", &plan.stages[id.index()].name, &stats.stage(*id).first_items));
        let of_sinks =
            sinks.iter().map(|id| ("sink", &plan.sinks[id.index()].name, &stats.first_of_sinks[id.index()]));
        let mut places = of_sources.chain(of_stages).chain(of_sinks);
        let (what, place, _) = places.find(|(.., first)| first.all_failed(limit))?;
        let key = limits.called("first_failed");
        let (stopped, who) = match key.starts_with("limits.") {
            true => (Stopped::Run, "the run".to_owned()),
            false => (Stopped::Pipeline(pipeline), format!("pipeline `{name}`")),
        };
        // A script or a file that was mended is of another run, which nothing is lost by.
        let flag =
            if stats.done.get() == 0 { "start over with `--fresh`" } else { "go on with `--retry-failed`" };
        let why = format!(
            "{who} was stopped: the first {limit} items that came to {what} `{place}` all failed there; mend the cause and {flag}, or go on regardless with `{key} = 0`"
        );
        Some(LimitReached { stopped, why, lifted: format!("{key}=0") })
    }

    /// An id that no other worker of this run has or had.
    pub fn new_worker_id(&self) -> WorkerId {
        WorkerId(self.next_worker.fetch_add(1, Ordering::Relaxed))
    }

    /// Tells the hook. Without one the event is not even made. What goes wrong in there is no matter of the run.
    #[inline]
    pub fn tell(&self, event: impl FnOnce() -> WorkerEvent) {
        if let Some(hook) = &self.options.events {
            let event = event();
            if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                tracing::error!(?event, "the program that was told of a worker panicked; the run goes on");
            }
        }
    }

    /// Tells the tracer, if there is one, what happened to a worker.
    pub fn trace_worker(
        &self,
        worker: WorkerId,
        stage: StageId,
        device: DeviceId,
        step: impl FnOnce() -> WorkerStep,
    ) {
        if let Some(tracer) = self.tracer.get() {
            tracer.worker(WorkerTrace { at: self.clock.now(), worker, stage, device, step: step() });
        }
    }
}
