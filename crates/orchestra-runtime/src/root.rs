//! Root of the actor tree: starts devices and pipelines, publishes snapshots, rebuilds a pipeline that fell over a bug, and ends the run in order. It sees
//! neither items nor batches.
//!
//! ```text
//! Running => Stopping => (all pipelines over, and their last records written) => DevicesEnding => Closing => over
//! ```

mod pipelines;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::{DeviceId, PipelineId, locked};
use orchestra_store::{Counts, OutputFolder};
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorProcessingErr, ActorRef, ActorStatus, MessagingErr, SupervisionEvent};
use tokio::sync::{oneshot, watch};

use crate::account::status::RunStatus;
use crate::context::RunContext;
use crate::fleet::device_manager::DeviceManager;
use crate::fleet::launcher::{Engines, load_frame};
use crate::flow::endpoints::Endpoints;
use crate::messages::{
    DeviceMsg, LimitReached, PipelineEnd, PipelineMsg, Replacement, ReplacementEnds, RootMsg, Stopped,
};
use crate::tasks::actor::{Tasks, TasksActorArgs, TasksEnd, TasksMsg, TasksProblem};
use crate::tasks::earlier::KnownTasks;
use crate::tasks::part_schedule;

const LOOK_EVERY: Duration = Duration::from_millis(200);

pub struct RunRoot;

pub struct RootArgs {
    pub context: Arc<RunContext>,
    pub endpoints: Arc<dyn Endpoints>,
    /// What is known of the tasks, where the plan has some.
    pub tasks: Option<KnownTasks>,
    pub publish: watch::Sender<RunStatus>,
    pub done: oneshot::Sender<RunEnding>,
}

#[derive(Debug)]
pub struct RunEnding {
    pub pipelines: BTreeMap<PipelineId, PipelineEnd>,
    pub tasks: TasksEnd,
    /// Why a limit on failures stopped all of it.
    pub failure_limit: Option<LimitReached>,
    /// What the journal holds; an error if it could not be closed.
    pub journal: Result<Counts, String>,
    /// Locked until the account of the run is written: a start in between would find that of another one.
    pub folder: Option<OutputFolder>,
}

pub struct RootState {
    context: Arc<RunContext>,
    endpoints: Arc<dyn Endpoints>,
    rebuilds: BTreeMap<PipelineId, u32>,
    devices: Vec<ActorRef<DeviceMsg>>,
    devices_left: BTreeSet<DeviceId>,
    /// `None` where there are none.
    tasks: Option<ActorRef<TasksMsg>>,
    tasks_end: Option<TasksEnd>,
    /// Those that have been started.
    pipelines: BTreeMap<PipelineId, ActorRef<PipelineMsg>>,
    /// Those whose items all have an end, while the last records are written.
    writing: BTreeSet<PipelineId>,
    ended: BTreeMap<PipelineId, PipelineEnd>,
    stopping: bool,
    aborted: bool,
    failure_limit: Option<LimitReached>,
    /// Pipelines that limits of their own stopped, and why.
    over_their_limits: BTreeMap<PipelineId, LimitReached>,
    /// The bug for which all pipelines are aborted.
    bug: Option<PipelineEnd>,
    closing: bool,
    /// Ends when a run that was told to stop has had its time.
    grace: Option<JoinHandle<Result<(), MessagingErr<RootMsg>>>>,
    done: Option<oneshot::Sender<RunEnding>>,
    publish: watch::Sender<RunStatus>,
}

impl Actor for RunRoot {
    type Msg = RootMsg;
    type State = RootState;
    type Arguments = RootArgs;

    async fn pre_start(
        &self,
        me: ActorRef<RootMsg>,
        args: RootArgs,
    ) -> Result<RootState, ActorProcessingErr> {
        let context = args.context;
        me.send_interval(LOOK_EVERY, || RootMsg::Look);
        let tell = me.clone();
        let ended = move |device| drop(tell.cast(RootMsg::DeviceEnded(device)));
        // Where no tasks are started, none would tell them to begin.
        let held = match args.tasks.is_some() {
            true => part_schedule::of_models(&context).into_keys().collect(),
            false => BTreeSet::new(),
        };
        let devices = DeviceManager::start_all(&context, &me.get_cell(), &held, ended).await?;
        let devices: Vec<ActorRef<DeviceMsg>> = devices.into_iter().map(|(device, _)| device).collect();
        let mut state = RootState {
            rebuilds: BTreeMap::new(),
            devices_left: (0..devices.len()).map(|i| DeviceId(i as u16)).collect(),
            context,
            endpoints: args.endpoints,
            devices,
            tasks: None,
            tasks_end: None,
            pipelines: BTreeMap::new(),
            writing: BTreeSet::new(),
            ended: BTreeMap::new(),
            stopping: false,
            aborted: false,
            failure_limit: None,
            over_their_limits: BTreeMap::new(),
            bug: None,
            closing: false,
            grace: None,
            done: Some(args.done),
            publish: args.publish,
        };
        match (args.tasks, state.context.options.keepers.clone()) {
            (Some(known), Some(launcher)) => {
                let (context, root) = (Arc::clone(&state.context), me.clone());
                let args = TasksActorArgs { context, launcher, known, devices: state.devices.clone(), root };
                state.tasks = Some(Actor::spawn_linked(None, Tasks, args, me.get_cell()).await?.0);
            }
            _ => state.tasks_end = Some(TasksEnd::default()),
        }
        state.start_pipelines(&me).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<RootMsg>,
        message: RootMsg,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMsg::PipelineEnded(pipeline, end) => state.pipeline_ended(&me, pipeline, end),
            RootMsg::PipelineWritten(pipeline, written) => {
                let end = written.map_or_else(|end| end, |()| PipelineEnd::Complete);
                state.record_end(pipeline, end);
            }
            RootMsg::Rebuild(pipeline) => state.rebuild(&me, pipeline).await?,
            RootMsg::TasksEnded(end) => state.tasks_ended(end),
            RootMsg::DeviceEnded(device) => {
                state.devices_left.remove(&device);
                state.tell_tasks(TasksMsg::DeviceEnded(device));
            }
            RootMsg::FailureLimit(reached) => match reached.stopped {
                Stopped::Pipeline(pipeline) => {
                    state.over_their_limits.entry(pipeline).or_insert(reached);
                    if let Some(actor) = state.pipelines.get(&pipeline) {
                        drop(actor.cast(PipelineMsg::Stop)); // One that is gone has ended.
                    }
                }
                Stopped::Run => {
                    state.failure_limit.get_or_insert(reached);
                    state.stopping = true;
                    state.stop_pipelines(|| PipelineMsg::Stop);
                    state.tell_tasks(TasksMsg::Stop);
                }
            },
            RootMsg::Interrupt => {
                state.stopping = true;
                state.stop_pipelines(|| PipelineMsg::Stop);
                state.tell_tasks(TasksMsg::Stop);
                // Commands have a grace of their own, and those that need it longer get it.
                let tasks = &state.context.plan.tasks.tasks;
                let of_tasks = tasks.iter().map(|task| task.grace + Duration::from_secs(1)).max();
                let grace = state.context.plan.limits.grace.max(of_tasks.unwrap_or_default());
                state.grace.get_or_insert_with(|| me.send_after(grace, || RootMsg::GraceOver));
            }
            RootMsg::ReplaceWorkers(engines, ended) => state.replace_workers(engines, &ended),
            RootMsg::Look => {
                state.look();
                state.look_for_a_bug();
            }
            RootMsg::GraceOver => state.grace_over(),
            RootMsg::Abort => state.abort(),
            RootMsg::JournalClosed(result, folder) => {
                state.over(result, folder);
                me.stop(None);
                return Ok(());
            }
        }
        state.start_pipelines(&me).await?;
        state.close_when_everything_ended(&me);
        Ok(())
    }

    /// Pipelines and device managers report their own end; what comes here without that is a bug, and the run ends resumable.
    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<RootMsg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(who, error) = event {
            tracing::error!(%error, "an actor failed; this is a bug");
            state.actor_failed(who.get_id(), &error.to_string());
            state.start_pipelines(&me).await?;
            state.close_when_everything_ended(&me);
        }
        Ok(())
    }
}

/// The last snapshot is that of the end. Also when the runtime of the host is dropped: nothing waits for an answer for ever.
impl Drop for RootState {
    fn drop(&mut self) {
        self.look();
        let gone = PipelineEnd::Bug("its actors are gone".to_owned());
        self.pipelines.keys().for_each(|pipeline| self.endpoints.over(*pipeline, &gone));
    }
}

impl RootState {
    /// Publishes what there is to see, and says which devices give no answer.
    fn look(&self) {
        self.context.watch.note_silence(self.context.clock.now());
        self.publish.send_replace(RunStatus::now(&self.context));
    }

    /// Devices that are gone tell nothing, and their stages have ended.
    fn replace_workers(&self, engines: Engines, ended: &ReplacementEnds) {
        let plan = &self.context.plan;
        for (stage, batch) in plan.batch_stages() {
            for workers in batch.workers.iter().filter(|workers| workers.count > 0) {
                let device = &plan.devices[workers.device.index()].spec.kind;
                let engine = engines.get(&stage).cloned().ok_or_else(|| "it has no engine".to_owned());
                let replacement = engine.and_then(|engine| {
                    let load = load_frame(&*engine, batch, device, workers.threads)?;
                    Ok(Replacement { stage, engine, load, ended: ended.clone() })
                });
                match replacement {
                    Ok(of) => drop(self.devices[workers.device.index()].cast(DeviceMsg::Replace(of))),
                    Err(why) => drop(ended.send(Err(why))), // Nobody waits any more.
                }
            }
        }
        *locked(&self.context.engines) = engines;
    }

    fn stop_pipelines(&self, message: impl Fn() -> PipelineMsg) {
        for (id, pipeline) in &self.pipelines {
            if !self.ended.contains_key(id) {
                drop(pipeline.cast(message()));
            }
        }
    }

    fn tell_tasks(&self, message: TasksMsg) {
        if let Some(tasks) = &self.tasks {
            drop(tasks.cast(message)); // Tasks that are gone have ended.
        }
    }

    fn tasks_ended(&mut self, mut end: TasksEnd) {
        if let Some(bug) = self.bug.as_ref().filter(|_| end.was_stopped) {
            let problem = end.problem.unwrap_or_else(|| TasksProblem::Bug(bug.to_string()));
            end = TasksEnd { was_stopped: false, problem: Some(problem), ..end };
        }
        self.tasks_end.get_or_insert(end);
        self.end_devices_without_pipelines();
    }

    fn grace_over(&mut self) {
        if !self.aborted && !self.closing {
            let seconds = self.context.plan.limits.grace.as_secs_f64();
            tracing::warn!(
                seconds,
                "what is in flight takes longer than `limits.grace`: stopping now, workers are killed"
            );
            self.abort();
        }
    }

    fn abort(&mut self) {
        self.stopping = true;
        self.aborted = true;
        for device in &self.devices {
            drop(device.cast(DeviceMsg::Shutdown { now: true }));
        }
        self.stop_pipelines(|| PipelineMsg::Abort);
        self.tell_tasks(TasksMsg::Abort);
    }

    /// Commands may have a device for themselves once all pipelines that use it have ended.
    fn end_devices_without_pipelines(&mut self) {
        if self.aborted {
            return;
        }
        let plan = &self.context.plan;
        let is_running = |id: &&PipelineId| !self.ended.contains_key(id) && !self.writing.contains(id);
        let running: Vec<PipelineId> = self.all_pipelines().filter(|id| is_running(&id)).collect();
        let stages = running.iter().flat_map(|id| &plan.pipelines[id.index()].stages);
        let batches = stages.filter_map(|stage| plan.stages[stage.index()].batch());
        let used: BTreeSet<DeviceId> =
            batches.flat_map(|batch| &batch.workers).map(|workers| workers.device).collect();
        for (id, device) in (0..).map(DeviceId).zip(&self.devices) {
            if !used.contains(&id) {
                drop(device.cast(DeviceMsg::Shutdown { now: false }));
            }
        }
    }

    fn actor_failed(&mut self, who: ractor::ActorId, error: &str) {
        let bug = |what: &str| PipelineEnd::Bug(format!("{what}: {error}"));
        if self.tasks.as_ref().is_some_and(|tasks| tasks.get_id() == who) {
            let problem = TasksProblem::Bug(format!("the owner of the commands fell over: {error}"));
            self.tasks_end.get_or_insert(TasksEnd { problem: Some(problem), ..TasksEnd::default() });
            self.devices.iter().for_each(|device| drop(device.cast(DeviceMsg::Begin)));
            self.end_devices_without_pipelines();
            return;
        }
        let pipeline = self.pipelines.iter().find(|(_, p)| p.get_id() == who).map(|(id, _)| *id);
        if let Some(id) = pipeline {
            // Its workers are of no use to others.
            for stage in &self.context.plan.pipelines[id.index()].stages {
                self.devices.iter().for_each(|device| drop(device.cast(DeviceMsg::Retire(*stage))));
            }
            self.record_end(id, bug("the pipeline"));
            return;
        }
        let device = self.devices.iter().position(|d| d.get_id() == who);
        if let Some(index) = device {
            // Its links are dead with it, and the owners of their processes kill these.
            self.devices_left.remove(&DeviceId(index as u16));
            self.bug.get_or_insert_with(|| bug("a device manager"));
            // Each ends with its loaders, and says so.
            self.abort();
        }
    }

    /// Where a thread of the run has panicked, all is aborted. A pipeline whose actor is gone may wait for that thread: nothing else would end it.
    fn look_for_a_bug(&mut self) {
        let Some(bug) = self.context.bug.get().cloned().map(PipelineEnd::Bug) else { return };
        if self.bug.is_none() {
            self.bug = Some(bug.clone());
            self.abort();
        }
        for (id, actor) in self.pipelines.clone() {
            if actor.get_status() == ActorStatus::Stopped && !self.ended.contains_key(&id) {
                self.record_end(id, bug.clone());
            }
        }
    }

    fn close_when_everything_ended(&mut self, me: &ActorRef<RootMsg>) {
        let ended = self.ended.len() == self.all_pipelines().count()
            && self.devices_left.is_empty()
            && self.tasks_end.is_some();
        if !ended || self.closing {
            return;
        }
        self.closing = true;
        let tasks = self.tasks_end.clone().unwrap_or_default();
        // A run of some tasks alone leaves the others to the next start.
        let complete = self.ended.values().all(|e| *e == PipelineEnd::Complete)
            && !self.context.options.tasks_only
            && self.context.plan.deferred.is_none()
            && !tasks.was_stopped
            && tasks.problem.is_none();
        let has_failed = self.context.stats.failed.get() > 0 || tasks.failed > 0;
        let code = complete.then_some(if has_failed { 65 } else { 0 });
        let me = me.clone();
        let closed = move |result, folder| drop(me.cast(RootMsg::JournalClosed(result, folder)));
        self.endpoints.close(code, Box::new(closed));
    }

    fn over(&mut self, journal: Result<Counts, String>, folder: Option<OutputFolder>) {
        let tasks = self.tasks_end.clone().unwrap_or_default();
        let ending = RunEnding {
            pipelines: self.ended.clone(),
            tasks,
            failure_limit: self.failure_limit.take(),
            journal,
            folder,
        };
        if let Some(grace) = self.grace.take() {
            grace.abort();
        }
        if let Some(done) = self.done.take() {
            drop(done.send(ending)); // A handle that was dropped does not wait.
        }
    }
}
