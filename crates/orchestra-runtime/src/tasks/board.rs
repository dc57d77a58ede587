//! Where each task stands, for the progress, the summary and `run.json`. No decision depends on it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use orchestra_plan::{TaskPlan, TasksPlan};
use orchestra_store::TaskEnded;
use serde::Serialize;

use crate::tasks::known::KnownTask;

/// Commands that are named in a snapshot.
const SHOWN: usize = 8;

/// Where a task stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStanding {
    /// It was not started.
    #[default]
    Waiting,
    /// Its command runs.
    Running,
    /// It has ended well.
    Done,
    /// It has failed, and is not tried again in this start.
    Failed,
    /// A task that it comes after has failed.
    Skipped,
    /// The run was stopped while its command ran.
    Stopped,
}

/// A task in `run.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TaskReport {
    /// Its id.
    pub task: String,
    /// Where it stands.
    pub state: TaskStanding,
    /// It was done before this start, and nothing has changed since.
    pub before: bool,
    /// Attempts, over all starts of the run.
    pub attempts: u32,
    /// Seconds that the command of the last attempt ran.
    pub seconds: f64,
    /// The slot of the last attempt, and its devices.
    pub place: String,
    /// Most bytes of memory of its command, or of a process that it has waited for.
    pub peak_memory: u64,
    /// Most bytes that all its processes together were seen to hold of one GPU.
    pub gpu_memory: u64,
    /// The class of the last end: `done`, `code`, `signal`, `timeout`, `out_of_memory`, `device_lost`, `wrong_device`, `not_started`, `missing` or `stopped`.
    pub end: Option<String>,
    /// What happened, where it is not done.
    pub why: Option<String>,
    /// The log of the last attempt, relative to the output folder.
    pub log: Option<PathBuf>,
}

impl TaskReport {
    /// What is known of a task that has not been started.
    #[must_use]
    pub fn before(plan: &TaskPlan, known: &KnownTask) -> Self {
        let state = if known.is_done { TaskStanding::Done } else { TaskStanding::Waiting };
        let mut report = Self { task: plan.id.clone(), state, before: known.is_done, ..Self::default() };
        if let Some(ended) = &known.ended {
            report.note(plan, ended);
        }
        report.attempts = known.attempts;
        report
    }

    fn note(&mut self, plan: &TaskPlan, ended: &TaskEnded) {
        self.attempts = ended.started.attempt;
        self.seconds = ended.milliseconds as f64 / 1e3;
        self.place.clone_from(&ended.started.place);
        self.peak_memory = ended.peak_memory;
        self.gpu_memory = ended.gpu_memory;
        self.end = Some(ended.class.clone());
        self.why = Some(ended.why.clone()).filter(|why| !why.is_empty());
        self.log = Some(log_file(plan, ended.started.attempt));
    }
}

/// The log of an attempt, relative to the output folder.
#[must_use]
pub fn log_file(plan: &TaskPlan, attempt: u32) -> PathBuf {
    plan.folder.join(format!("attempt-{attempt}.log"))
}

/// How far the tasks of a run are.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TasksSnapshot {
    /// All tasks.
    pub total: u64,
    /// Ended well, also those of earlier starts.
    pub done: u64,
    /// Failed, and those that were not started for that.
    pub failed: u64,
    /// Commands that run.
    pub running: u64,
    /// Some of these, the oldest first.
    pub commands: Vec<RunningCommand>,
}

/// A command that runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunningCommand {
    /// The id of its task.
    pub task: String,
    /// Its attempt.
    pub attempt: u32,
    /// Its slot, and its devices.
    pub place: String,
    /// Since its start.
    pub elapsed: Duration,
}

/// The board of a run.
#[derive(Debug, Default)]
pub struct TaskBoard(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reports: Vec<TaskReport>,
    /// With the time of its start, since that of the run.
    running: BTreeSet<(Duration, usize)>,
    done: u64,
    failed: u64,
}

impl TaskBoard {
    pub fn begin(&self, plan: &TasksPlan, known: &[KnownTask]) {
        let mut board = self.lock();
        board.reports =
            plan.tasks.iter().zip(known).map(|(task, known)| TaskReport::before(task, known)).collect();
        board.done = known.iter().filter(|known| known.is_done).count() as u64;
    }

    pub fn started(&self, task: usize, attempt: u32, place: &str, log: PathBuf, now: Duration) {
        let mut board = self.lock();
        board.running.insert((now, task));
        let report = &mut board.reports[task];
        (report.state, report.attempts, report.end, report.why) =
            (TaskStanding::Running, attempt, None, None);
        report.place = place.to_owned();
        report.log = Some(log);
    }

    pub fn ended(&self, task: usize, state: TaskStanding, plan: &TaskPlan, ended: &TaskEnded) {
        let mut board = self.lock();
        board.running.retain(|(_, running)| *running != task);
        board.reports[task].note(plan, ended);
        board.reports[task].state = state;
        match state {
            TaskStanding::Done => board.done += 1,
            TaskStanding::Failed => board.failed += 1,
            _ => {}
        }
    }

    /// An attempt is over, and the journal could not be told of it.
    pub fn unnoted(&self, task: usize, why: &str) {
        let mut board = self.lock();
        board.running.retain(|(_, running)| *running != task);
        let report = &mut board.reports[task];
        report.state = TaskStanding::Stopped;
        report.why =
            Some(format!("the journal of tasks cannot be written ({why}): the next start runs it again"));
    }

    pub fn skipped(&self, task: usize, failed: &str) {
        let mut board = self.lock();
        board.failed += 1;
        let report = &mut board.reports[task];
        report.state = TaskStanding::Skipped;
        report.why = Some(format!("was not started, because `{failed}` has failed"));
    }

    pub fn snapshot(&self, now: Duration) -> TasksSnapshot {
        let board = self.lock();
        let command = |&(since, task): &(Duration, usize)| {
            let TaskReport { task, attempts, place, .. } = &board.reports[task];
            let elapsed = now.saturating_sub(since);
            RunningCommand { task: task.clone(), attempt: *attempts, place: place.clone(), elapsed }
        };
        TasksSnapshot {
            total: board.reports.len() as u64,
            done: board.done,
            failed: board.failed,
            running: board.running.len() as u64,
            commands: board.running.iter().take(SHOWN).map(command).collect(),
        }
    }

    /// Of all tasks, in the order of the plan.
    pub fn reports(&self) -> Vec<TaskReport> {
        self.lock().reports.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Each change is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_whose_end_could_not_be_noted_does_not_run() {
        let board = TaskBoard::default();
        board.lock().reports.push(TaskReport::default());
        board.started(0, 1, "slot 0", PathBuf::new(), Duration::ZERO);
        board.unnoted(0, "disk full");
        let report = &board.reports()[0];
        assert_eq!((report.state, board.snapshot(Duration::ZERO).running), (TaskStanding::Stopped, 0));
        assert!(report.why.as_ref().is_some_and(|why| why.contains("disk full")));
    }
}
