//! Tasks: owns the leases of all commands, starts those that the schedule names, and knows when all are over. It touches no process.
//!
//! ```text
//! Running => Stopping (commands are asked to end) => over
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::tasks::{After, EndClass, Schedule, TaskEnd, TaskState};
use orchestra_core::{DeviceId, PipelineId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;
use tokio::task::JoinError;

use crate::actor_threads::waiting_threads;
use crate::child::spawn::ProcessLauncher;
use crate::context::RunContext;
use crate::messages::{DeviceMsg, PipelineEnd, RootMsg};
use crate::panics::caught;
use crate::tasks::attempt::{AttemptOutcome, Control, TasksShared, attempt};
use crate::tasks::best::LastEnd;
use crate::tasks::board::TaskStanding;
use crate::tasks::command_watch::CommandWatch;
use crate::tasks::earlier::KnownTasks;
use crate::tasks::groups::Groups;
use crate::tasks::keepers::Keepers;
use crate::tasks::part_schedule;

pub struct Tasks;

pub struct TasksActorArgs {
    pub context: Arc<RunContext>,
    pub launcher: ProcessLauncher,
    pub known: KnownTasks,
    pub devices: Vec<ActorRef<DeviceMsg>>,
    pub root: ActorRef<RootMsg>,
}

pub enum TasksMsg {
    Go,
    /// The same, for what waits until others give back memory of a GPU.
    LookAgain,
    /// An attempt has ended, and nothing of it is left.
    Ended(usize, Box<AttemptOutcome>),
    /// A pipeline has ended, and is not built anew.
    PipelineEnded(PipelineId, PipelineEnd),
    /// No worker of a model is left on a device.
    DeviceEnded(DeviceId),
    /// Ask the commands to end, and start none.
    Stop,
    Abort,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TasksEnd {
    /// Some were not done because the run was stopped.
    pub was_stopped: bool,
    /// Tasks that have failed, and those that were not started for that.
    pub failed: u64,
    /// Where each task stands of which an attempt has ended, by its id.
    pub ended: BTreeMap<String, TaskStanding>,
    pub problem: Option<TasksProblem>,
}

/// Why no other commands were started, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TasksProblem {
    /// The end of one could not be noted.
    Journal(String),
    /// A bug of ours: what carried one out panicked.
    Bug(String),
}

impl TasksProblem {
    pub fn of(error: &io::Error) -> Self {
        let inner = error.get_ref();
        match inner.is_some_and(|inner| inner.is::<JoinError>()) {
            true => Self::Bug(format!("an attempt at a task fell over: {error}")),
            false => Self::Journal(format!("the journal of tasks could not be written: {error}")),
        }
    }

    pub fn why(&self) -> &str {
        let (Self::Journal(why) | Self::Bug(why)) = self;
        why
    }
}

pub struct TasksState {
    args: Arc<TasksShared>,
    root: ActorRef<RootMsg>,
    schedule: Schedule,
    devices: Vec<ActorRef<DeviceMsg>>,
    /// Those that models have or wait for, and what they are for commands.
    of_models: BTreeMap<DeviceId, usize>,
    /// Of each GPU of commands: when it last changed hands, or was looked at. Only looks that begin later say something new.
    seen_at: Vec<Duration>,
    /// Some wait for memory that others hold.
    waits_for_others: bool,
    /// A [`TasksMsg::LookAgain`] is on its way.
    looks_again: bool,
    /// When the [`TasksMsg::Go`] comes that is on its way.
    wakes_at: Option<Duration>,
    /// Pipelines that have not ended, where some task waits for one.
    pipelines: BTreeSet<PipelineId>,
    control: watch::Sender<Control>,
    end: TasksEnd,
    is_over: bool,
}

impl Actor for Tasks {
    type Msg = TasksMsg;
    type State = TasksState;
    type Arguments = TasksActorArgs;

    async fn pre_start(
        &self,
        me: ActorRef<TasksMsg>,
        args: TasksActorArgs,
    ) -> Result<TasksState, ActorProcessingErr> {
        let TasksActorArgs { context, launcher, known, devices, root } = args;
        let plan = &context.plan;
        let of_models = part_schedule::of_models(&context);
        let schedule = part_schedule::schedule(&context, &known.known);
        let has_failed = |task: &usize| known.known[*task].first_part == Some(TaskStanding::Failed);
        let failed: Vec<usize> = (0..known.known.len()).filter(has_failed).collect();
        let waits = plan.tasks.tasks.iter().any(|task| !task.after_sinks.is_empty());
        let n_pipelines = if waits { plan.pipelines.len() } else { 0 };
        let seen_at = vec![Duration::ZERO; plan.tasks.gpus.len()];
        let ends = known.known.iter().map(LastEnd::of_known).collect();
        let shared = TasksShared {
            watch: CommandWatch::start(&context),
            groups: Groups::prepare(context.options.group_owner),
            context,
            keepers: Keepers::new(launcher),
            journal: Mutex::new(known.journal),
            ends: Mutex::new(ends),
        };
        let mut state = TasksState {
            args: Arc::new(shared),
            root,
            schedule,
            devices,
            of_models,
            seen_at,
            waits_for_others: false,
            looks_again: false,
            wakes_at: None,
            pipelines: (0..).map(PipelineId).take(n_pipelines).collect(),
            control: watch::Sender::new(Control::GoOn),
            end: TasksEnd::default(),
            is_over: false,
        };
        state.take_over(&failed);
        state.hand_over();
        state.say_what_models_wait_for();
        drop(me.cast(TasksMsg::Go)); // It cannot be gone yet.
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<TasksMsg>,
        message: TasksMsg,
        state: &mut TasksState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            TasksMsg::Go => state.wakes_at = None,
            TasksMsg::LookAgain => state.looks_again = false,
            TasksMsg::Ended(task, outcome) => state.ended(task, *outcome),
            TasksMsg::PipelineEnded(pipeline, end) => state.pipeline_ended(pipeline, &end),
            TasksMsg::DeviceEnded(device) => {
                let place = state.of_models.remove(&device);
                if let Some(place) = place.filter(|place| !state.of_models.values().any(|it| it == place)) {
                    state.schedule.leases().models_ended(place);
                    state.has_changed(&[place]);
                }
            }
            TasksMsg::Stop => state.stop(Control::Stop),
            TasksMsg::Abort => state.stop(Control::Kill),
        }
        state.go(&me);
        Ok(())
    }
}

/// Commands end with the actor, whatever it dies of.
impl Drop for TasksState {
    fn drop(&mut self) {
        self.control.send_replace(Control::Kill);
        self.args.watch.over();
    }
}

impl TasksState {
    fn now(&self) -> Duration {
        self.args.context.clock.now()
    }

    /// Starts what can be started, and says when all is over.
    fn go(&mut self, me: &ActorRef<TasksMsg>) {
        self.hand_over();
        self.see_gpus();
        for start in self.schedule.start(self.now()) {
            let task = start.task;
            self.has_changed(&start.lease.gpus);
            let attempt = attempt(Arc::clone(&self.args), start, self.control.subscribe());
            carry_out(me, task, attempt);
        }
        let waits = self.schedule.waits_for_others();
        if waits && !std::mem::replace(&mut self.waits_for_others, waits) {
            tracing::info!("commands wait for memory of a GPU that others hold");
        }
        if waits && !std::mem::replace(&mut self.looks_again, true) {
            me.send_after(self.args.context.options.devices.look_every, || TasksMsg::LookAgain);
        }
        if let Some(at) = self.schedule.wake_at().filter(|at| self.wakes_at.is_none_or(|wakes| *at < wakes)) {
            self.wakes_at = Some(at);
            me.send_after(at.saturating_sub(self.now()), || TasksMsg::Go);
        }
        let waits = !self.pipelines.is_empty() && !self.is_stopping();
        if self.schedule.is_over() && !waits && !self.is_over {
            self.is_over = true;
            let (shared, root, end) = (Arc::clone(&self.args), self.root.clone(), self.end.clone());
            // Its disk may be slow.
            waiting_threads().spawn_blocking(move || {
                let ended =
                    caught("the end of the commands", || shared.journal().sync().and(shared.link_best()));
                shared.watch.over();
                let problem = match ended {
                    Ok(ended) => ended.err().as_ref().map(TasksProblem::of),
                    Err(bug) => Some(TasksProblem::Bug(bug)),
                };
                let problem = end.problem.or(problem);
                drop(root.cast(RootMsg::TasksEnded(TasksEnd { problem, ..end }))); // A root that is gone has ended.
            });
        }
    }

    /// Tells the leases what is free of their GPUs, as far as that was looked at since something of ours began or ended there.
    fn see_gpus(&mut self) {
        let gpus = &self.args.context.plan.tasks.gpus;
        for (at, (gpu, seen_at)) in gpus.iter().zip(&mut self.seen_at).enumerate() {
            if let Some((began, free)) =
                self.args.watch.free(&gpu.uuid).filter(|(began, _)| *began > *seen_at)
            {
                *seen_at = began;
                self.schedule.leases().saw_free(at, Some(free.saturating_sub(gpu.headroom)));
            }
        }
    }

    fn has_changed(&mut self, gpus: &[usize]) {
        let now = self.now();
        for gpu in gpus {
            // Without GPUs place 0 is the CPU.
            if let Some(at) = self.seen_at.get_mut(*gpu) {
                *at = now;
            }
        }
    }

    /// Lets models have the devices that no command is to have before them.
    fn hand_over(&mut self) {
        for place in self.schedule.hand_over() {
            for (device, _) in self.of_models.iter().filter(|(_, it)| **it == place) {
                drop(self.devices[device.index()].cast(DeviceMsg::Begin)); // A manager that is gone has no workers.
            }
        }
    }

    fn say_what_models_wait_for(&mut self) {
        let awaited: Vec<usize> = self.schedule.leases().awaited().collect();
        for (device, _) in self.of_models.iter().filter(|(_, place)| awaited.contains(place)) {
            let device = &self.args.context.plan.devices[device.index()].spec;
            tracing::info!(%device, "models wait for commands of a higher priority, or that have the device");
        }
    }

    fn is_stopping(&self) -> bool {
        self.end.was_stopped || self.end.problem.is_some()
    }

    /// What has failed in the first part of this start is not tried again in this one; and what comes after a pipeline that will not be, is not
    /// started.
    fn take_over(&mut self, failed: &[usize]) {
        let context = Arc::clone(&self.args.context);
        for at in failed {
            let skipped = self.schedule.give_up(*at);
            self.skip(&skipped, &format!("`{}` has failed", context.plan.tasks.tasks[*at].id));
            self.end.failed += 1;
        }
        if context.plan.deferred.is_some() && context.options.first_part.is_some() {
            let skipped = self.schedule.give_up(part_schedule::place_of(&context.plan, None));
            self.skip(&skipped, "the sources, stages and sinks of the file were not started");
        }
    }

    fn skip(&mut self, skipped: &[usize], why: &str) {
        self.end.failed += skipped.len() as u64;
        skipped.iter().for_each(|later| self.args.context.tasks.skipped(*later, why));
    }

    fn pipeline_ended(&mut self, pipeline: PipelineId, end: &PipelineEnd) {
        // A second end is no news; and a run that stops leaves to the next start what comes later.
        if !self.pipelines.remove(&pipeline) || self.is_stopping() {
            return;
        }
        let plan = &self.args.context.plan;
        let (place, name) =
            (part_schedule::place_of(plan, Some(pipeline)), &plan.pipelines[pipeline.index()].name);
        let why = format!("pipeline `{name}` has not ended well");
        match end {
            PipelineEnd::Complete => self.schedule.pass(place),
            _ => {
                let skipped = self.schedule.give_up(place);
                self.skip(&skipped, &why);
            }
        }
    }

    fn stop(&mut self, how: Control) {
        if self.schedule.is_over() && self.pipelines.is_empty() {
            return;
        }
        self.end.was_stopped = true;
        self.schedule.stop();
        self.control.send_if_modified(|now| std::mem::replace(now, (*now).max(how)) < how);
    }

    fn ended(&mut self, task: usize, outcome: AttemptOutcome) {
        let args = Arc::clone(&self.args);
        let (plan, board) = (&args.context.plan.tasks, &args.context.tasks);
        let gpus = match self.schedule.state(task) {
            TaskState::Running(lease) => lease.gpus.clone(),
            _ => Vec::new(),
        };
        self.has_changed(&gpus);
        let (end, entry) = match outcome {
            Ok(ended) => ended,
            Err(error) => {
                // What is not noted would be run again without a word: nothing else is started.
                let problem = TasksProblem::of(&error);
                tracing::error!(task = %plan.tasks[task].id, "no other commands are started: {}", problem.why());
                board.unnoted(task, problem.why());
                self.end.problem.get_or_insert(problem);
                self.schedule.stop();
                self.control.send_replace(Control::Stop);
                drop(self.schedule.ended(task, TaskEnd::Stopped, self.now()));
                return;
            }
        };
        let id = &plan.tasks[task].id;
        let (how, class) = (end.to_string(), end.class());
        let after = self.schedule.ended(task, end, self.now());
        let left_out = gpus.into_iter().filter(|gpu| self.schedule.leases().is_left_out(*gpu));
        for gpu in left_out.filter(|_| class == EndClass::DeviceLost) {
            let gpu = &plan.gpus[gpu].name;
            tracing::error!(%gpu, "commands have lost this GPU again and again: others are used, as long as there are enough");
        }
        let standing = match &after {
            After::Done => TaskStanding::Done,
            After::Again => TaskStanding::Waiting,
            After::Failed { .. } => TaskStanding::Failed,
            After::Stopped => TaskStanding::Stopped,
        };
        self.end.ended.insert(id.clone(), standing);
        board.ended(task, standing, class, &plan.tasks[task], &entry);
        let (attempt, seconds) = (entry.started.attempt, entry.milliseconds as f64 / 1e3);
        match after {
            After::Done => tracing::info!(task = %id, attempt, seconds, "task done"),
            After::Stopped => tracing::info!(task = %id, attempt, "task stopped with the run"),
            After::Again => {
                tracing::warn!(task = %id, attempt, %how, "the command is tried again")
            }
            After::Failed { skipped } => {
                tracing::error!(task = %id, attempt, %how, "task failed");
                self.end.failed += 1;
                self.skip(&skipped, &format!("`{id}` has failed"));
                if !skipped.is_empty() {
                    let skipped = skipped.len();
                    tracing::error!(failed = %id, skipped, "the tasks that come after it are not started");
                }
            }
        }
    }
}

fn carry_out(
    me: &ActorRef<TasksMsg>,
    task: usize,
    attempt: impl Future<Output = AttemptOutcome> + Send + 'static,
) {
    let me = me.clone();
    tokio::spawn(async move {
        // Spawned by itself: where it panics, its end is told as well. Its keeper, which is dropped, ends the command.
        let outcome = tokio::spawn(attempt).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        drop(me.cast(TasksMsg::Ended(task, Box::new(outcome)))); // An actor that is gone has ended its commands.
    });
}
