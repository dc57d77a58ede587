//! Where each task stands, for the progress, the summary and `run.json`. No decision depends on it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::tasks::{EndClass, Goal, Start, TaskMetrics};
use orchestra_core::{locked, named_enum};
use orchestra_plan::{TaskPlan, TasksPlan};
use orchestra_store::TaskEnded;
use serde::{Deserialize, Serialize};

use crate::tasks::earlier::KnownTask;

named_enum! {
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// A task in `run.json`, and in the file of the commands that run now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    pub task: String,
    pub state: TaskStanding,
    /// It was done before this start, and nothing has changed since.
    pub before: bool,
    /// Attempts, over all starts of the run.
    pub attempts: u32,
    /// Seconds that the command of the last attempt ran, or runs.
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
    /// What of these is better, by their names, where tasks are compared by them.
    #[serde(default)]
    pub goals: BTreeMap<String, Goal>,
    /// Of what it is the best, of those that are done, as placeholders call it: `tasks.train.best`, `best.winner`.
    pub best: Vec<String>,
    /// The slot of the last attempt in this start.
    #[serde(skip)]
    pub slot: usize,
    /// When that began, since the start of the run.
    #[serde(skip)]
    pub began: Duration,
}

impl TaskReport {
    /// What is known of the tasks of a plan before they are started.
    pub fn all(plan: &TasksPlan, known: &[KnownTask]) -> Vec<Arc<Self>> {
        let before = |(task, known): (&TaskPlan, &KnownTask)| Arc::new(Self::before(task, known));
        let mut reports: Vec<_> = plan.tasks.iter().zip(known).map(before).collect();
        for of in &plan.best {
            for task in &of.tasks {
                let goals = &mut Arc::make_mut(&mut reports[*task]).goals;
                goals.entry(of.objective.metric.clone()).or_insert(of.objective.goal);
            }
        }
        Self::mark_best(plan, &mut reports);
        reports
    }

    pub fn metrics_if_done(&self) -> Option<&TaskMetrics> {
        (self.state == TaskStanding::Done).then_some(&self.metrics)
    }

    fn before(plan: &TaskPlan, known: &KnownTask) -> Self {
        let state = match known.first_part {
            _ if known.is_done => TaskStanding::Done,
            Some(TaskStanding::Failed) => TaskStanding::Failed,
            _ => TaskStanding::Waiting,
        };
        let before = known.is_done && known.first_part != Some(TaskStanding::Done);
        let mut report = Self { task: plan.id.clone(), state, before, ..Self::default() };
        if let Some(ended) = &known.ended {
            report.note(plan, ended);
        }
        report.attempts = known.attempts;
        report
    }

    /// Those of an earlier start may be better no more.
    fn mark_best(plan: &TasksPlan, reports: &mut [Arc<Self>]) {
        if reports.is_empty() {
            return; // The board was not begun.
        }
        for of in &plan.best {
            let best = of.winner(|task| reports[task].metrics_if_done());
            for task in &of.tasks {
                let report = &mut reports[*task];
                let at = report.best.iter().position(|name| *name == of.name);
                match (at, best == Some(*task)) {
                    (None, true) => {
                        let names = &mut Arc::make_mut(report).best;
                        names.push(of.name.clone());
                        names.sort_unstable();
                    }
                    (Some(at), false) => drop(Arc::make_mut(report).best.remove(at)),
                    _ => {}
                }
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

#[derive(Debug, Default)]
pub struct TaskBoard(Mutex<BoardState>);

#[derive(Debug, Default)]
struct BoardState {
    /// Shared with those that look on, who are many times a second.
    reports: Vec<Arc<TaskReport>>,
    ends: BTreeMap<EndClass, u64>,
}

impl TaskBoard {
    pub fn begin(&self, plan: &TasksPlan, known: &[KnownTask]) {
        locked(&self.0).reports = TaskReport::all(plan, known);
    }

    fn change(&self, task: usize, change: impl FnOnce(&mut TaskReport)) {
        change(Arc::make_mut(&mut locked(&self.0).reports[task]));
    }

    pub fn started(&self, start: &Start, place: &str, log: PathBuf, now: Duration) {
        self.change(start.task, |report| {
            (report.state, report.attempts) = (TaskStanding::Running, start.attempt);
            (report.slot, report.began) = (start.lease.slot, now);
            (report.end, report.why, report.log) = (None, None, Some(log));
            report.place = place.to_owned();
            report.metrics.clear();
            report.peak_memory = 0;
        });
    }

    /// The processes of its command have so much memory together.
    pub fn has_memory(&self, task: usize, bytes: u64) {
        self.change(task, |report| report.peak_memory = report.peak_memory.max(bytes));
    }

    pub fn measured(&self, task: usize, metrics: TaskMetrics) {
        self.change(task, |report| report.metrics = metrics);
    }

    pub fn ended(
        &self,
        task: usize,
        state: TaskStanding,
        class: EndClass,
        plan: &TaskPlan,
        ended: &TaskEnded,
    ) {
        self.change(task, |report| {
            report.note(plan, ended);
            report.state = state;
        });
        *locked(&self.0).ends.entry(class).or_default() += 1;
    }

    /// An attempt is over, and no end of it is noted.
    pub fn unnoted(&self, task: usize, why: &str) {
        self.change(task, |report| {
            report.state = TaskStanding::Stopped;
            report.why = Some(format!("{why}: the next start runs it again"));
        });
    }

    /// `why`: what has happened instead, as a sentence.
    pub fn skipped(&self, task: usize, why: &str) {
        self.change(task, |report| {
            report.state = TaskStanding::Skipped;
            report.why = Some(format!("was not started, because {why}"));
        });
    }

    /// Of all tasks, in the order of the plan.
    pub fn reports(&self, plan: &TasksPlan, now: Duration) -> Vec<Arc<TaskReport>> {
        let mut reports = locked(&self.0).reports.clone();
        for report in reports.iter_mut().filter(|report| report.state == TaskStanding::Running) {
            Arc::make_mut(report).seconds = now.saturating_sub(report.began).as_secs_f64();
        }
        TaskReport::mark_best(plan, &mut reports);
        reports
    }

    /// Attempts of this start that have ended with this class.
    pub fn ends(&self, class: EndClass) -> u64 {
        locked(&self.0).ends.get(&class).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::tasks::{Demand, Gpus, Leases};

    use super::*;

    impl TaskBoard {
        pub fn of_one_that_runs() -> Self {
            let board = Self::default();
            locked(&board.0).reports.push(Arc::default());
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
        let report = &board.reports(&TasksPlan::default(), Duration::ZERO)[0];
        assert_eq!(report.state, TaskStanding::Stopped);
        assert!(report.why.as_ref().is_some_and(|why| why.contains("disk full")));
    }
}
