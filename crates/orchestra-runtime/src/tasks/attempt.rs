//! One attempt at a task, from top to bottom: noted, started, stopped if need be, ended, noted.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::locked;

use orchestra_core::tasks::{Lease, Start, TaskEnd};
use orchestra_plan::{TaskPlan, TasksPlan};
use orchestra_store::{TaskEnded, TaskJournal, TaskStarted};
use orchestra_worker::keeper::{CommandEnd, CommandOrder, KeeperReport, ToKeeper};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::actor_threads::join_blocking;
use crate::context::RunContext;
use crate::tasks::best::{self, EarlierTasks, LastEnd};
use crate::tasks::board::log_file;
use crate::tasks::command_watch::CommandWatch;
use crate::tasks::credentials::passed;
use crate::tasks::earlier::{
    curves_file, done, end_file, end_of, entry, forget, lock_file, measured, read_end,
};
use crate::tasks::groups::Groups;
use crate::tasks::keeper_link::Keeper;
use crate::tasks::keepers::Keepers;
use crate::tasks::unchanged;
use crate::trace::TaskTrace;

/// What all running commands are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Control {
    GoOn,
    /// Ask each to end.
    Stop,
    Kill,
}

pub struct TasksShared {
    pub context: Arc<RunContext>,
    pub keepers: Keepers,
    pub groups: Option<Groups>,
    pub watch: CommandWatch,
    pub journal: Mutex<TaskJournal>,
    pub ends: Mutex<Vec<LastEnd>>,
}

/// How an attempt ended; an error where that could not be noted.
pub type AttemptOutcome = io::Result<(TaskEnd, TaskEnded)>;

/// What a task depends on, and its command with the values of others.
struct Dependencies {
    digest: [u8; 32],
    command: Vec<String>,
    env: Vec<(String, String)>,
}

enum Begun {
    Ordered(TaskStarted, Box<CommandOrder>),
    NotStarted(TaskStarted, TaskEnd),
    /// It was done before, as is known only now: with the same best of others, which have ended in this start.
    Unchanged(Box<TaskEnded>),
}

/// Carries an attempt out. When it returns, nothing of its command is left.
pub async fn attempt(
    shared: Arc<TasksShared>,
    start: Start,
    mut control: watch::Receiver<Control>,
) -> AttemptOutcome {
    let task = start.task;
    let began = shared.context.clock.now();
    let begun = {
        let shared = Arc::clone(&shared);
        let start = start.clone();
        join_blocking(move || shared.begin(&start)).await??
    };
    let (end, ended, started) = match begun {
        Begun::Unchanged(ended) => return Ok((TaskEnd::Done, *ended)),
        Begun::NotStarted(started, end) => (end, None, started),
        Begun::Ordered(started, order) => {
            let (end, ended) = shared.run(&start, &order, &started, &mut control).await;
            (end, ended, started)
        }
    };
    shared.finish(began, task, (end, ended), started).await
}

impl TasksShared {
    fn plan(&self) -> &TasksPlan {
        &self.context.plan.tasks
    }

    fn output(&self) -> &Path {
        &self.context.plan.output
    }

    /// Notes that the attempt begins, and makes its folder.
    fn begin(&self, start: &Start) -> io::Result<Begun> {
        let task = &self.plan().tasks[start.task];
        let depends = self.depends(start.task);
        // A copy: to look at the outputs may take long, and no other attempt waits for the journal meanwhile.
        let record = self.journal().records().get(&task.id).cloned();
        if let Ok(depends) = &depends
            && let Some(ended) =
                record.as_ref().and_then(|record| done(self.plan(), task, record, &depends.digest))
        {
            locked(&self.ends)[start.task] = LastEnd::of(ended);
            return Ok(Begun::Unchanged(Box::new(ended.clone())));
        }
        let (id, attempt) = (task.id.clone(), start.attempt);
        let place = place(self.plan(), &start.lease);
        let before = unchanged::state(&task.outputs, &self.plan().folder).ok();
        let digest = depends.as_ref().map_or([0; 32], |depends| depends.digest);
        let started = TaskStarted { task: id, attempt, digest, place, before };
        self.journal().started(started.clone())?;
        let log = log_file(task, attempt);
        let now = self.context.clock.now();
        self.context.tasks.started(start, &started.place, log.clone(), now);
        let Dependencies { command, env, .. } = match depends {
            Ok(depends) => depends,
            Err(missing) => return Ok(Begun::NotStarted(started, missing)),
        };
        let output = self.output().join(&task.folder).join("output");
        if let Err(error) = fs::create_dir_all(&output) {
            let why = format!("its folder `{}` cannot be made: {error}", output.display());
            return Ok(Begun::NotStarted(started, TaskEnd::NotStarted(why)));
        }
        let end = end_file(task, self.output(), attempt);
        // Of an attempt of this number that was not noted.
        drop(fs::remove_file(&end));
        let groups = self.groups.as_ref().filter(|_| task.memory.is_some() || task.demand.cores > 0);
        let group = groups.map(|groups| groups.of_slot(start.lease.slot));
        // The planner has refused what is no UTF-8.
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let curves = curves_file(&self.output().join(&log));
        let order = CommandOrder {
            command,
            cwd: text(&task.cwd),
            env: environment(task, env, start, &text(&output), self.plan()),
            log: text(&self.output().join(log)),
            end: text(&end),
            lock: text(&lock_file(self.output())),
            stop_signal: task.stop_signal,
            grace_ms: u64::try_from(task.grace.as_millis()).unwrap_or(u64::MAX),
            memory: task.memory,
            cores: start.lease.cores.iter().map(|core| u32::try_from(*core).unwrap_or_default()).collect(),
            metrics: task.metrics.clone(),
            curves: Some(text(&curves)).filter(|_| !task.metrics.is_empty()),
            quiet_ms: task.quiet.map(|quiet| u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX)),
            open_files: self.keepers.open_files,
            group,
        };
        Ok(Begun::Ordered(started, Box::new(order)))
    }

    /// What a task depends on, with the best of others linked; or why there is nothing to depend on.
    fn depends(&self, at: usize) -> Result<Dependencies, TaskEnd> {
        let task = &self.plan().tasks[at];
        let earlier = best::earlier(self.plan(), task, &locked(&self.ends))?;
        for best in &earlier.best {
            best::link(self.plan(), self.output(), *best, at).map_err(|error| {
                TaskEnd::NotStarted(format!("`{}` cannot be linked: {error}", best.0.name))
            })?;
        }
        let digest = unchanged::digest(task, &self.plan().folder, &earlier)
            .map_err(|missing| TaskEnd::InputMissing(missing.display().to_string()))?;
        let EarlierTasks { command, env, .. } = earlier;
        Ok(Dependencies { digest, command, env })
    }

    /// Links the best of the tables that what is planned later uses, at the end of the first part of a run.
    pub fn link_best(&self) -> io::Result<()> {
        let Some(next) = self.context.planned_next() else { return Ok(()) };
        best::link_all(self.plan(), self.output(), &next.best, &locked(&self.ends))
    }

    /// Gives the command to a keeper, and waits until nothing of it is left.
    async fn run(
        &self,
        start: &Start,
        order: &CommandOrder,
        started: &TaskStarted,
        control: &mut watch::Receiver<Control>,
    ) -> (TaskEnd, Option<CommandEnd>) {
        let keeper = tokio::select! {
            biased;
            _ = control.wait_for(|now| *now != Control::GoOn) => return (TaskEnd::Stopped, None),
            keeper = self.keepers.start(order) => keeper,
        };
        match keeper {
            Ok(keeper) => self.follow(start, keeper, started, control).await,
            Err(error) => (TaskEnd::NotStarted(format!("no process can be started: {error}")), None),
        }
    }

    /// Waits until nothing of the command is left.
    async fn follow(
        &self,
        start: &Start,
        mut keeper: Keeper,
        started: &TaskStarted,
        control: &mut watch::Receiver<Control>,
    ) -> (TaskEnd, Option<CommandEnd>) {
        let plan = &self.plan().tasks[start.task];
        let gpus = start.lease.gpus.iter().map(|gpu| self.plan().gpus[*gpu].uuid.clone()).collect();
        self.watch.begin(start.task, &plan.id, keeper.pid, gpus);
        let mut deadline: Option<Instant> = None;
        let mut timed_out = false;
        let mut told = Control::GoOn;
        let report = loop {
            let time_is_over = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                report = keeper.report() => match report {
                    Some(KeeperReport::Started(_)) => deadline = plan.timeout.map(|timeout| Instant::now() + timeout),
                    Some(KeeperReport::Metrics(metrics)) => {
                        self.context.tasks.measured(start.task, measured(plan, &metrics));
                    }
                    Some(KeeperReport::CannotBeKilled(pid)) => tracing::error!(
                        task = %plan.id, pid,
                        "a command was killed and does not end: it hangs in the kernel, and keeps what it has, such as memory of a GPU"
                    ),
                    ended => break ended,
                },
                () = time_is_over => {
                    (timed_out, deadline) = (true, None);
                    drop(keeper.tell(&ToKeeper::Stop).await);
                }
                changed = control.changed(), if told != Control::Kill => {
                    // The actor is gone, and with it the run.
                    let now = if changed.is_ok() { *control.borrow_and_update() } else { Control::Kill };
                    told = told.max(now);
                    let what = if told == Control::Kill { ToKeeper::Kill } else { ToKeeper::Stop };
                    drop(keeper.tell(&what).await);
                }
            }
        };
        keeper.end(report.is_some()).await;
        self.keepers.has_ended();
        // A keeper notes the end before it tells.
        let report =
            report.or_else(|| read_end(plan, self.output(), started.attempt).map(KeeperReport::Ended));
        match report {
            Some(KeeperReport::Ended(ended)) => {
                let is_told = told != Control::GoOn;
                let end = end_of(self.plan(), plan, &ended, is_told || timed_out, started.before);
                let is_late = timed_out && end != TaskEnd::Done && !(is_told && end == TaskEnd::Stopped);
                (plan.timeout.filter(|_| is_late).map_or(end, TaskEnd::Timeout), Some(ended))
            }
            Some(KeeperReport::NotStarted(_)) if told != Control::GoOn => (TaskEnd::Stopped, None),
            Some(KeeperReport::NotStarted(why)) => (TaskEnd::NotStarted(why), None),
            // Something outside has killed the keeper, and with it the command.
            Some(KeeperReport::Started(_) | KeeperReport::Metrics(_) | KeeperReport::CannotBeKilled(_))
            | None => (if told == Control::GoOn { TaskEnd::Signal(9) } else { TaskEnd::Stopped }, None),
        }
    }

    /// Notes an end, and has it traced.
    async fn finish(
        self: Arc<Self>,
        began: Duration,
        task: usize,
        (end, ended): (TaskEnd, Option<CommandEnd>),
        started: TaskStarted,
    ) -> AttemptOutcome {
        let noted = join_blocking({
            let shared = Arc::clone(&self);
            move || shared.note_end(task, end, ended, started)
        });
        let (end, entry) = noted.await??;
        if let Some(tracer) = self.context.tracer.get() {
            let (ended, class) = (self.context.clock.now(), end.class());
            tracer.task(TaskTrace { began, ended, class, entry: entry.clone() });
        }
        Ok((end, entry))
    }

    fn note_end(
        &self,
        task: usize,
        end: TaskEnd,
        ended: Option<CommandEnd>,
        started: TaskStarted,
    ) -> AttemptOutcome {
        let plan = &self.plan().tasks[task];
        if let Some(error) = ended.as_ref().and_then(|ended| ended.log_error.as_ref()) {
            tracing::warn!(task = %plan.id, %error, "the log of a command or its metrics are incomplete");
        }
        if let Some(n) = ended.as_ref().map(|ended| ended.left_behind).filter(|n| *n > 0) {
            tracing::warn!(task = %plan.id, processes = n, "a command has left processes behind, which were killed");
        }
        let attempt = started.attempt;
        let entry = entry(self.plan(), plan, started, &end, ended.as_ref(), self.watch.end(task));
        self.journal().ended(entry.clone())?;
        forget(plan, self.output(), attempt);
        locked(&self.ends)[task] = LastEnd::of(&entry);
        Ok((end, entry))
    }

    pub fn journal(&self) -> std::sync::MutexGuard<'_, TaskJournal> {
        // A thread that panics within leaves an entry that is not accepted, and written over.
        locked(&self.journal)
    }
}

/// The variables of a command: those of its table, and what orchestra tells it.
fn environment(
    task: &TaskPlan,
    env: Vec<(String, String)>,
    start: &Start,
    output: &str,
    plan: &TasksPlan,
) -> Vec<(String, String)> {
    let devices: Vec<&str> = start.lease.gpus.iter().map(|gpu| &plan.gpus[*gpu].uuid[..]).collect();
    let own = [
        ("ORCHESTRA_TASK", task.id.clone()),
        ("ORCHESTRA_ATTEMPT", start.attempt.to_string()),
        ("ORCHESTRA_SLOT", start.lease.slot.to_string()),
        ("ORCHESTRA_OUTPUT", output.to_owned()),
        ("CUDA_VISIBLE_DEVICES", devices.join(",")),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
    ];
    // Without it the lines of Python's log would have the time of its end.
    let unbuffered = std::env::var_os("PYTHONUNBUFFERED").is_none();
    let python = unbuffered.then(|| ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()));
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    python.into_iter().chain(passed(task)).chain(env).chain(own).collect()
}

/// The slot and the devices of a lease, for people.
fn place(plan: &TasksPlan, lease: &Lease) -> String {
    let gpus = lease.gpus.iter().map(|gpu| plan.gpus[*gpu].name.clone());
    std::iter::once(format!("slot {}", lease.slot)).chain(gpus).collect::<Vec<_>>().join(", ")
}
