//! Tasks: owns the leases of all commands, starts those that the schedule names, and knows when all are over. It touches no process.
//!
//! ```text
//! Running => Stopping (commands are asked to end) => over
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::tasks::{After, Schedule, Start, TaskEnd, TaskSpec};
use orchestra_plan::TasksPlan;
use orchestra_store::TaskEnded;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;

use crate::context::RunContext;
use crate::fleet::launcher::ProcessLauncher;
use crate::messages::RootMsg;
use crate::tasks::attempt::{Control, Outcome, Shared, attempt, go_on};
use crate::tasks::board::{TaskStanding, log_file};
use crate::tasks::gpu_watch::GpuWatch;
use crate::tasks::groups::Groups;
use crate::tasks::keepers::Keepers;
use crate::tasks::known::{GoingOn, KnownTasks};

pub struct Tasks;

pub struct TasksArgs {
    pub context: Arc<RunContext>,
    pub launcher: ProcessLauncher,
    pub known: KnownTasks,
    pub root: ActorRef<RootMsg>,
}

pub enum TasksMsg {
    /// Start what can be started.
    Go,
    /// An attempt has ended, and nothing of it is left.
    Ended(usize, Box<Outcome>),
    /// Ask the commands to end, and start none.
    Stop,
    /// Kill the commands.
    Abort,
}

/// How the tasks of a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TasksEnd {
    /// Some were not done because the run was stopped.
    pub was_stopped: bool,
    /// Tasks that have failed, and those that were not started for that.
    pub failed: u64,
    /// Why their ends could not be noted.
    pub problem: Option<String>,
}

pub struct TasksState {
    args: Arc<Shared>,
    root: ActorRef<RootMsg>,
    schedule: Schedule,
    control: watch::Sender<Control>,
    end: TasksEnd,
    is_over: bool,
}

impl Actor for Tasks {
    type Msg = TasksMsg;
    type State = TasksState;
    type Arguments = TasksArgs;

    async fn pre_start(
        &self,
        me: ActorRef<TasksMsg>,
        args: TasksArgs,
    ) -> Result<TasksState, ActorProcessingErr> {
        let TasksArgs { context, launcher, known, root } = args;
        let plan = &context.plan.tasks;
        let spec = |(task, known): (&orchestra_plan::TaskPlan, &crate::tasks::known::KnownTask)| TaskSpec {
            after: task.after.clone(),
            demand: task.demand,
            retries: task.retries,
            attempts_before: known.attempts,
            is_done: known.is_done,
        };
        let specs = plan.tasks.iter().zip(&known.known).map(spec).collect();
        let mut schedule = Schedule::new(specs, plan.leases());
        for (at, known) in known.known.iter().enumerate() {
            learn(&mut schedule, plan, at, known.ended.as_ref());
        }
        let going_on: Vec<(GoingOn, Start)> = known
            .going_on
            .into_iter()
            .map(|of| {
                let (slot, gpus, cores) = of.survivor.command.lease(plan);
                let start = schedule.go_on(of.task, slot, &gpus, &cores);
                (of, start)
            })
            .collect();
        let ends = known.known.iter().map(|known| known.ended.as_ref().map_or(0, |ended| ended.at)).collect();
        let shared = Shared {
            gpus: GpuWatch::start(&context),
            context,
            keepers: Keepers::new(launcher),
            groups: Groups::prepare(),
            trees: known.trees,
            journal: Mutex::new(known.journal),
            ends: Mutex::new(ends),
        };
        let state = TasksState {
            args: Arc::new(shared),
            root,
            schedule,
            control: watch::Sender::new(Control::GoOn),
            end: TasksEnd::default(),
            is_over: false,
        };
        going_on.into_iter().for_each(|(of, start)| state.follow(&me, of, start));
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
            TasksMsg::Go => {}
            TasksMsg::Ended(task, outcome) => state.ended(task, *outcome),
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
    }
}

impl TasksState {
    fn now(&self) -> Duration {
        self.args.context.clock.now()
    }

    /// Starts what can be started, and says when all is over.
    fn go(&mut self, me: &ActorRef<TasksMsg>) {
        for start in self.schedule.start(self.now()) {
            let task = start.task;
            let attempt = attempt(Arc::clone(&self.args), start, self.control.subscribe());
            carry_out(me, task, attempt);
        }
        if let Some(at) = self.schedule.wake_at() {
            me.send_after(at.saturating_sub(self.now()), || TasksMsg::Go);
        }
        if self.schedule.is_over() && !self.is_over {
            self.is_over = true;
            let (shared, root, end) = (Arc::clone(&self.args), self.root.clone(), self.end.clone());
            // Its disk may be slow.
            tokio::task::spawn_blocking(move || {
                let synced = shared.journal().sync();
                let problem = end.problem.or(synced.err().map(|error| error.to_string()));
                drop(root.cast(RootMsg::TasksEnded(TasksEnd { problem, ..end }))); // A root that is gone has ended.
            });
        }
    }

    /// Goes on with a command of an earlier start.
    fn follow(&self, me: &ActorRef<TasksMsg>, of: GoingOn, start: Start) {
        let context = &self.args.context;
        let log = log_file(&context.plan.tasks.tasks[of.task], start.attempt);
        context.tasks.started(of.task, start.attempt, &of.started.place, log, self.now());
        carry_out(me, of.task, go_on(Arc::clone(&self.args), of, start, self.control.subscribe()));
    }

    fn stop(&mut self, how: Control) {
        if self.schedule.is_over() {
            return;
        }
        self.end.was_stopped = true;
        self.schedule.stop();
        self.control.send_if_modified(|now| std::mem::replace(now, (*now).max(how)) < how);
    }

    fn ended(&mut self, task: usize, outcome: Outcome) {
        let args = Arc::clone(&self.args);
        let (plan, board) = (&args.context.plan.tasks, &args.context.tasks);
        let (end, entry) = match outcome {
            Ok(ended) => ended,
            Err(error) => {
                // What is not noted would be run again without a word: nothing else is started.
                tracing::error!(%error, "the journal of tasks cannot be written");
                self.end.problem.get_or_insert(error.to_string());
                board.unnoted(task, &error.to_string());
                self.schedule.stop();
                self.control.send_replace(Control::Stop);
                drop(self.schedule.ended(task, TaskEnd::Stopped, self.now()));
                return;
            }
        };
        learn(&mut self.schedule, plan, task, Some(&entry));
        let id = &plan.tasks[task].id;
        let how = end.to_string();
        let after = self.schedule.ended(task, end, self.now());
        let standing = match &after {
            After::Done => TaskStanding::Done,
            After::Again => TaskStanding::Waiting,
            After::Failed { .. } => TaskStanding::Failed,
            After::Stopped => TaskStanding::Stopped,
        };
        board.ended(task, standing, &plan.tasks[task], &entry);
        let (attempt, seconds) = (entry.started.attempt, entry.milliseconds as f64 / 1e3);
        match after {
            After::Done => tracing::info!(task = %id, attempt, seconds, "task done"),
            After::Stopped => tracing::info!(task = %id, attempt, "task stopped with the run"),
            After::Again => {
                tracing::warn!(task = %id, attempt, %how, "the command is tried again")
            }
            After::Failed { skipped } => {
                tracing::error!(task = %id, attempt, %how, "task failed");
                self.end.failed += 1 + skipped.len() as u64;
                for &later in &skipped {
                    board.skipped(later, id);
                }
                if !skipped.is_empty() {
                    let skipped = skipped.len();
                    tracing::error!(failed = %id, skipped, "the tasks that come after it are not started");
                }
            }
        }
    }
}

/// What this end says of the memory of GPUs, for all tasks of its table: they take about the same.
fn learn(schedule: &mut Schedule, plan: &TasksPlan, task: usize, ended: Option<&TaskEnded>) {
    if let Some(bytes) = ended.map(|ended| ended.gpu_memory).filter(|bytes| *bytes > 0) {
        let is_like = |other: &usize| plan.tasks[*other].name == plan.tasks[task].name;
        schedule.learn((0..plan.tasks.len()).filter(is_like), bytes);
    }
}

fn carry_out(me: &ActorRef<TasksMsg>, task: usize, attempt: impl Future<Output = Outcome> + Send + 'static) {
    let me = me.clone();
    tokio::spawn(async move { drop(me.cast(TasksMsg::Ended(task, Box::new(attempt.await)))) });
}
