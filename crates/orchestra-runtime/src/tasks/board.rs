//! Where each task stands, for the progress, the summary and `run.json`. No decision depends on it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use orchestra_core::tasks::{EndClass, Start, TaskMetrics, best};
use orchestra_core::{locked, named_enum};
use orchestra_plan::{TaskPlan, TasksPlan};
use orchestra_store::TaskEnded;
use serde::{Deserialize, Serialize};

use crate::tasks::earlier::KnownTask;

/// Commands that are named in a snapshot.
const SHOWN: usize = 8;

named_enum! {
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TaskStanding {
        /// It was not started.
        #[default]
        Waiting = "waiting",
        /// Its command runs.
        Running = "running",
        /// It has ended well.
        Done = "done",
        /// It has failed, and is not tried again in this start.
        Failed = "failed",
        /// A task that it comes after has failed.
        Skipped = "skipped",
        /// The run was stopped while its command ran.
        Stopped = "stopped",
    }
}

/// A task in `run.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TaskReport {
    pub task: String,
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
    /// The class of the last end: `done`, `code`, `signal`, `timeout`, `out_of_memory`, `device_lost`, `not_started`, `missing` or
    /// `stopped`.
    pub end: Option<String>,
    /// What happened, where it is not done.
    pub why: Option<String>,
    /// The log of the last attempt, relative to the output folder.
    pub log: Option<PathBuf>,
    /// What the last attempt has reported so far.
    pub metrics: TaskMetrics,
    /// It is the best of its table, of those that are done.
    pub best: bool,
}

impl TaskReport {
    /// What is known of the tasks of a plan before they are started.
    pub fn all(plan: &TasksPlan, known: &[KnownTask]) -> Vec<Self> {
        let before = |(task, known): (&TaskPlan, &KnownTask)| Self::before(task, known);
        let mut reports: Vec<Self> = plan.tasks.iter().zip(known).map(before).collect();
        Self::mark_best(plan, &mut reports);
        reports
    }

    fn before(plan: &TaskPlan, known: &KnownTask) -> Self {
        let state = if known.is_done { TaskStanding::Done } else { TaskStanding::Waiting };
        let mut report = Self { task: plan.id.clone(), state, before: known.is_done, ..Self::default() };
        if let Some(ended) = &known.ended {
            report.note(plan, ended);
        }
        report.attempts = known.attempts;
        report
    }

    fn mark_best(plan: &TasksPlan, reports: &mut [Self]) {
        // The tasks of a table follow one another.
        let mut begin = 0;
        for table in plan.tasks.chunk_by(|a, b| a.name == b.name) {
            let of_table = &mut reports[begin..begin + table.len()];
            begin += table.len();
            let Some(objective) = table[0].best else { continue };
            let name = &table[0].metrics[objective.metric].name;
            let value = |report: &Self| {
                report.metrics.get(name).map(|m| m.last).filter(|_| report.state == TaskStanding::Done)
            };
            let values = of_table.iter().enumerate().filter_map(|(at, report)| Some((at, value(report)?)));
            if let Some(best) = best(objective.goal, values) {
                of_table[best].best = true;
            }
        }
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
        self.metrics.clone_from(&ended.metrics);
    }
}

/// The log of an attempt, relative to the output folder.
pub fn log_file(plan: &TaskPlan, attempt: u32) -> PathBuf {
    plan.folder.join(format!("attempt-{attempt}.log"))
}

/// How far the tasks of a run are.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TasksSnapshot {
    pub total: u64,
    /// Ended well or early, also those of earlier starts.
    pub done: u64,
    /// Failed, and those that were not started for that.
    pub failed: u64,
    pub running: u64,
    /// Some of these, the oldest first.
    pub commands: Vec<RunningCommand>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningCommand {
    pub task: String,
    pub attempt: u32,
    /// Its slot, and its devices.
    pub place: String,
    pub elapsed: Duration,
    /// Most bytes of main memory that all its processes together were seen to have; what they share counts for each.
    pub memory: u64,
    /// What it has reported so far.
    pub metrics: TaskMetrics,
}

/// What the tasks of a run come to, as numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskNumbers {
    pub standings: BTreeMap<TaskStanding, u64>,
    /// Attempts of this start that have ended, by the class of their end.
    pub ends: BTreeMap<EndClass, u64>,
    /// The table, the slot and the metrics of each command that runs.
    pub running: Vec<(String, usize, TaskMetrics)>,
}

#[derive(Debug, Default)]
pub struct TaskBoard(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reports: Vec<TaskReport>,
    /// The slots of running commands, by the time of their starts since that of the run.
    running: BTreeMap<(Duration, usize), usize>,
    done: u64,
    failed: u64,
    ends: BTreeMap<EndClass, u64>,
}

impl TaskBoard {
    /// `first_part`: the tasks after the first part of this start; empty where there was none.
    pub fn begin(&self, plan: &TasksPlan, known: &[KnownTask], first_part: &[TaskReport]) {
        let mut board = locked(&self.0);
        board.reports = TaskReport::all(plan, known);
        for report in &mut board.reports {
            let has_run = |first: &&TaskReport| {
                first.task == report.task && first.state == TaskStanding::Done && report.before
            };
            if let Some(first) = first_part.iter().find(has_run) {
                report.before = first.before;
            }
        }
        board.done = known.iter().filter(|known| known.is_done).count() as u64;
    }

    pub fn started(&self, start: &Start, place: &str, log: PathBuf, now: Duration) {
        let mut board = locked(&self.0);
        board.running.insert((now, start.task), start.lease.slot);
        let report = &mut board.reports[start.task];
        (report.state, report.attempts, report.end, report.why) =
            (TaskStanding::Running, start.attempt, None, None);
        report.place = place.to_owned();
        report.log = Some(log);
        report.metrics.clear();
        report.peak_memory = 0;
    }

    /// The processes of its command have so much memory together.
    pub fn has_memory(&self, task: usize, bytes: u64) {
        let report = &mut locked(&self.0).reports[task];
        report.peak_memory = report.peak_memory.max(bytes);
    }

    pub fn measured(&self, task: usize, metrics: TaskMetrics) {
        locked(&self.0).reports[task].metrics = metrics;
    }

    pub fn ended(
        &self,
        task: usize,
        state: TaskStanding,
        class: EndClass,
        plan: &TaskPlan,
        ended: &TaskEnded,
    ) {
        let mut board = locked(&self.0);
        board.running.retain(|(_, running), _| *running != task);
        board.reports[task].note(plan, ended);
        board.reports[task].state = state;
        *board.ends.entry(class).or_default() += 1;
        match state {
            TaskStanding::Done => board.done += 1,
            TaskStanding::Failed => board.failed += 1,
            _ => {}
        }
    }

    /// An attempt is over, and no end of it is noted.
    pub fn unnoted(&self, task: usize, why: &str) {
        let mut board = locked(&self.0);
        board.running.retain(|(_, running), _| *running != task);
        let report = &mut board.reports[task];
        report.state = TaskStanding::Stopped;
        report.why = Some(format!("{why}: the next start runs it again"));
    }

    /// It has failed in the first part of this start, and is not tried again.
    pub fn has_failed(&self, task: usize) {
        let mut board = locked(&self.0);
        board.failed += 1;
        board.reports[task].state = TaskStanding::Failed;
    }

    /// `why`: what has happened instead, as a sentence.
    pub fn skipped(&self, task: usize, why: &str) {
        let mut board = locked(&self.0);
        board.failed += 1;
        let report = &mut board.reports[task];
        report.state = TaskStanding::Skipped;
        report.why = Some(format!("was not started, because {why}"));
    }

    pub fn snapshot(&self, now: Duration) -> TasksSnapshot {
        let board = locked(&self.0);
        TasksSnapshot {
            total: board.reports.len() as u64,
            done: board.done,
            failed: board.failed,
            running: board.running.len() as u64,
            commands: board.commands(now).take(SHOWN).collect(),
        }
    }

    /// All commands that run, the oldest first.
    pub fn commands(&self, now: Duration) -> Vec<RunningCommand> {
        locked(&self.0).commands(now).collect()
    }

    /// Of all tasks, in the order of the plan.
    pub fn reports(&self, plan: &TasksPlan) -> Vec<TaskReport> {
        let mut reports = locked(&self.0).reports.clone();
        // Those of an earlier start may be better no more.
        reports.iter_mut().for_each(|report| report.best = false);
        TaskReport::mark_best(plan, &mut reports);
        reports
    }

    pub fn numbers(&self, plan: &TasksPlan) -> TaskNumbers {
        let board = locked(&self.0);
        let mut standings = BTreeMap::new();
        for report in &board.reports {
            *standings.entry(report.state).or_default() += 1;
        }
        let running = |((_, task), slot): (&(Duration, usize), &usize)| {
            (plan.tasks[*task].name.clone(), *slot, board.reports[*task].metrics.clone())
        };
        TaskNumbers {
            standings,
            ends: board.ends.clone(),
            running: board.running.iter().map(running).collect(),
        }
    }
}

impl Inner {
    fn commands(&self, now: Duration) -> impl Iterator<Item = RunningCommand> {
        self.running.keys().map(move |&(since, task)| {
            let report = &self.reports[task];
            RunningCommand {
                task: report.task.clone(),
                attempt: report.attempts,
                place: report.place.clone(),
                elapsed: now.saturating_sub(since),
                memory: report.peak_memory,
                metrics: report.metrics.clone(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::tasks::{Demand, Gpus, Leases};

    use super::*;

    impl TaskBoard {
        pub fn of_one_that_runs() -> Self {
            let board = Self::default();
            locked(&board.0).reports.push(TaskReport::default());
            let demand =
                Demand { gpus: Gpus::None, gpu_memory: 0, cpu: 1, cores: 0, priority: 10, after_loss: false };
            let lease = Leases::new(&[], 1, 1).take(&demand).unwrap();
            board.started(&Start { task: 0, attempt: 1, lease }, "slot 0", PathBuf::new(), Duration::ZERO);
            board
        }
    }

    #[test]
    fn a_task_whose_end_could_not_be_noted_does_not_run() {
        let board = TaskBoard::of_one_that_runs();
        board.unnoted(0, "disk full");
        let report = &board.reports(&TasksPlan::default())[0];
        assert_eq!((report.state, board.snapshot(Duration::ZERO).running), (TaskStanding::Stopped, 0));
        assert!(report.why.as_ref().is_some_and(|why| why.contains("disk full")));
    }
}
