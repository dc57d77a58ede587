//! Which task starts next, and what becomes of the others when one ends. Time comes in; starts go out.
//!
//! ```text
//! Waiting => Ready => Running => (Done | Failed | Paused => Ready)
//! Waiting => Skipped        a task that it comes after has failed, and must not
//! ```
//!
//! Tasks are looked at by their priorities, then in the order of the plan, and one whose lease is not free lets those behind it go first: a slot is
//! never idle while a task could use it. A large demand may so wait for the end of many small ones, and no longer, since there are no others. What
//! a task comes after has at least its priority.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::tasks::end::{Retries, TaskEnd};
use crate::tasks::lease::{Demand, Gpus, Lease, Leases, WHOLE};

/// A task, as far as decisions depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// The tasks that must have ended before, well unless they are in `may_fail`.
    pub after: Vec<usize>,
    /// Those of `after` that may also have failed, in order.
    pub may_fail: Vec<usize>,
    pub demand: Demand,
    /// How often it is tried again.
    pub retries: Retries,
    /// Attempts that earlier starts have made.
    pub attempts_before: u32,
    /// It ended well in an earlier start, and nothing has changed since.
    pub is_done: bool,
    /// It is not started: [`Schedule::pass`] or [`Schedule::give_up`] says how it ended. Such a task stands for what is no command, or is left to
    /// another part of the run.
    pub is_held: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskState {
    /// So many of those that it comes after have not ended.
    Waiting(usize),
    /// It waits for a lease.
    Ready,
    Running(Lease),
    /// It is tried again at this time.
    Paused(Duration),
    Done,
    /// It is not tried again.
    Failed,
    /// It was not started, because this task has failed.
    Skipped(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its place in the plan.
    pub task: usize,
    /// Counted from 1, over all starts of the run.
    pub attempt: u32,
    /// What it has to itself until its end.
    pub lease: Lease,
}

/// What the end of an attempt comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// The task has ended well.
    Done,
    Again,
    /// It has failed, and so these are not started.
    Failed {
        /// All that come after it, directly or not.
        skipped: Vec<usize>,
    },
    /// The run is stopping: the next start decides.
    Stopped,
}

#[derive(Debug)]
struct Task {
    spec: TaskSpec,
    state: TaskState,
    /// Attempts of this start.
    attempts: u32,
    /// Ends of this start, to count those of a class.
    ends: Vec<TaskEnd>,
    before: Vec<usize>,
    /// It comes after what is held, a pipeline perhaps: models do not wait for it.
    is_behind: bool,
}

#[derive(Debug)]
pub struct Schedule {
    tasks: Vec<Task>,
    leases: Leases,
    /// By their priorities and places.
    ready: BTreeSet<(Reverse<u32>, usize)>,
    paused: BTreeSet<(Duration, usize)>,
    running: usize,
    stopping: bool,
    /// Demands for which there was no lease at the last start.
    refused: Vec<Demand>,
    /// Demands that differ, at most.
    n_demands: usize,
}

impl Schedule {
    /// The tasks of `after` are places in `tasks`, without cycles; every demand could be met.
    pub fn new(mut specs: Vec<TaskSpec>, leases: Leases) -> Self {
        raise_priorities(&mut specs);
        let mut before = vec![Vec::new(); specs.len()];
        for (task, spec) in specs.iter().enumerate() {
            spec.after.iter().for_each(|earlier| before[*earlier].push(task));
        }
        let behind = behind((0..specs.len()).filter(|task| specs[*task].is_held), &before);
        let open: Vec<usize> =
            specs.iter().map(|spec| spec.after.iter().filter(|t| !specs[**t].is_done).count()).collect();
        let task = |(((spec, before), open), is_behind): (((TaskSpec, Vec<usize>), usize), bool)| {
            let state = match (spec.is_done, open + usize::from(spec.is_held)) {
                (true, _) => TaskState::Done,
                (false, 0) => TaskState::Ready,
                (false, n) => TaskState::Waiting(n),
            };
            Task { spec, state, attempts: 0, ends: Vec::new(), before, is_behind }
        };
        let tasks: Vec<Task> = specs.into_iter().zip(before).zip(open).zip(behind).map(task).collect();
        let is_ready = |t: &usize| tasks[*t].state == TaskState::Ready;
        let ready = (0..tasks.len()).filter(is_ready).map(|t| tasks[t].in_turn(t)).collect();
        let n_demands = count_demands(&tasks);
        Self {
            tasks,
            leases,
            ready,
            paused: BTreeSet::new(),
            running: 0,
            stopping: false,
            refused: Vec::new(),
            n_demands,
        }
    }

    pub fn state(&self, task: usize) -> &TaskState {
        &self.tasks[task].state
    }

    /// Devices that models have from now on: those that no task comes first on, or has alone. Before anything is started.
    pub fn hand_over(&mut self) -> Vec<usize> {
        let is_held_up = |device: &usize| {
            self.tasks.iter().any(|task| match &task.state {
                TaskState::Running(lease) => self.leases.holds_up(lease, *device),
                TaskState::Waiting(_) | TaskState::Ready | TaskState::Paused(_) => {
                    let may_start = !self.stopping && !task.is_behind && !task.spec.is_held;
                    may_start && self.leases.comes_first(&task.demand(), *device)
                }
                TaskState::Done | TaskState::Failed | TaskState::Skipped(_) => false,
            })
        };
        let devices: Vec<usize> = self.leases.awaited().filter(|device| !is_held_up(device)).collect();
        devices.iter().for_each(|device| self.leases.hand_over(*device));
        devices
    }

    pub fn start(&mut self, now: Duration) -> Vec<Start> {
        while let Some((_, task)) = self.paused.first().copied().filter(|(at, _)| *at <= now) {
            self.paused.pop_first();
            self.make_ready(task);
        }
        let mut refused = std::mem::take(&mut self.refused);
        refused.clear();
        if self.stopping {
            return Vec::new();
        }
        let mut starts: Vec<Start> = Vec::new();
        for &(_, task) in &self.ready {
            let demand = self.tasks[task].demand();
            // Of many tasks that ask for the same one answer is enough.
            if refused.len() == self.n_demands {
                break;
            }
            if refused.contains(&demand) {
                continue;
            }
            let Some(lease) = self.leases.take(&demand) else {
                refused.push(demand);
                continue;
            };
            let of = &mut self.tasks[task];
            of.attempts += 1;
            of.state = TaskState::Running(lease.clone());
            starts.push(Start { task, attempt: of.spec.attempts_before + of.attempts, lease });
        }
        for start in &starts {
            self.ready.remove(&self.tasks[start.task].in_turn(start.task));
        }
        self.running += starts.len();
        self.refused = refused;
        starts
    }

    /// Whether a task was not started for what others than the run hold of the GPUs: look again.
    pub fn waits_for_others(&self) -> bool {
        self.refused.iter().any(|demand| self.leases.waits_for_others(demand))
    }

    /// An attempt has ended, and nothing of it is left: its lease is free.
    ///
    /// # Panics
    /// The task does not run.
    pub fn ended(&mut self, task: usize, end: TaskEnd, now: Duration) -> After {
        let gpus = self.give_back(task);
        let of = &mut self.tasks[task];
        match end {
            TaskEnd::DeviceLost => self.leases.lost(&gpus),
            TaskEnd::Done => {
                self.leases.works(&gpus);
                for next in of.before.clone() {
                    self.one_less(next);
                }
                return After::Done;
            }
            TaskEnd::Stopped => {
                self.make_ready(task);
                return After::Stopped;
            }
            _ => {}
        }
        of.ends.push(end.clone());
        let class = end.class();
        let ends = of.ends.iter().filter(|earlier| earlier.class() == class).count();
        if ends <= of.spec.retries.after(&end) as usize {
            let at = now + of.spec.retries.pause;
            of.state = TaskState::Paused(at);
            self.paused.insert((at, task));
            return After::Again;
        }
        of.state = TaskState::Failed;
        After::Failed { skipped: self.skip_after(task) }
    }

    /// The leases, to say what models use.
    pub fn leases(&mut self) -> &mut Leases {
        &mut self.leases
    }

    /// A task that is held has ended well.
    pub fn pass(&mut self, task: usize) {
        self.tasks[task].state = TaskState::Done;
        for next in self.tasks[task].before.clone() {
            self.one_less(next);
        }
    }

    /// A task that does not run has failed: all that come after it, directly or not, are skipped.
    pub fn give_up(&mut self, task: usize) -> Vec<usize> {
        self.ready.remove(&self.tasks[task].in_turn(task));
        self.tasks[task].state = TaskState::Failed;
        self.skip_after(task)
    }

    /// From now on nothing is started.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether nothing runs and nothing else will.
    pub fn is_over(&self) -> bool {
        let has_none_to_start = self.ready.is_empty() && self.paused.is_empty();
        self.running == 0 && (self.stopping || has_none_to_start)
    }

    /// The lease of a task that runs, whose GPUs are returned; its state is `Done` until the caller knows better.
    fn give_back(&mut self, task: usize) -> Vec<usize> {
        let of = &mut self.tasks[task];
        let TaskState::Running(lease) = std::mem::replace(&mut of.state, TaskState::Done) else {
            panic!("task {task} has ended without running");
        };
        let gpus = lease.gpus.clone();
        self.leases.give_back(lease);
        self.running -= 1;
        gpus
    }

    /// When the next pause is over.
    pub fn wake_at(&self) -> Option<Duration> {
        self.paused.first().map(|(at, _)| *at)
    }

    fn make_ready(&mut self, task: usize) {
        self.tasks[task].state = TaskState::Ready;
        self.ready.insert(self.tasks[task].in_turn(task));
    }

    fn one_less(&mut self, task: usize) {
        if let TaskState::Waiting(open) = &mut self.tasks[task].state {
            *open -= 1;
            if *open == 0 {
                self.make_ready(task);
            }
        }
    }

    fn skip_after(&mut self, failed: usize) -> Vec<usize> {
        let mut skipped = Vec::new();
        let mut open = vec![failed];
        while let Some(ended) = open.pop() {
            for next in self.tasks[ended].before.clone() {
                let of = &mut self.tasks[next];
                if of.spec.may_fail.binary_search(&ended).is_ok() {
                    self.one_less(next);
                } else if matches!(of.state, TaskState::Waiting(_)) {
                    of.state = TaskState::Skipped(failed);
                    skipped.push(next);
                    open.push(next);
                }
            }
        }
        skipped.sort_unstable();
        skipped
    }
}

impl Task {
    /// Its place among those that are ready.
    fn in_turn(&self, task: usize) -> (Reverse<u32>, usize) {
        (Reverse(self.spec.demand.priority), task)
    }

    /// After an end for lack of memory a task with a share of a GPU gets one to itself: those that it shared with may have taken the rest.
    fn demand(&self) -> Demand {
        let demand = Demand { after_loss: self.ends.contains(&TaskEnd::DeviceLost), ..self.spec.demand };
        if self.ends.contains(&TaskEnd::OutOfMemory) { alone(demand) } else { demand }
    }
}

/// What a task comes after is as urgent as the task.
fn raise_priorities(specs: &mut [TaskSpec]) {
    let mut by_priority: Vec<usize> = (0..specs.len()).collect();
    by_priority.sort_by_key(|task| Reverse(specs[*task].demand.priority));
    for task in by_priority {
        let priority = specs[task].demand.priority;
        let mut open = specs[task].after.clone();
        while let Some(earlier) = open.pop() {
            // Those that have as much were here before.
            if specs[earlier].demand.priority < priority {
                specs[earlier].demand.priority = priority;
                open.extend(specs[earlier].after.clone());
            }
        }
    }
}

/// Which tasks come after one of these, directly or not.
fn behind(held: impl Iterator<Item = usize>, before: &[Vec<usize>]) -> Vec<bool> {
    let mut behind = vec![false; before.len()];
    let mut open: Vec<usize> = held.collect();
    while let Some(earlier) = open.pop() {
        for &task in &before[earlier] {
            if !std::mem::replace(&mut behind[task], true) {
                open.push(task);
            }
        }
    }
    behind
}

/// How many demands there are that differ, of tasks as they are, with a GPU to themselves, and after the loss of one.
fn count_demands(tasks: &[Task]) -> usize {
    let mut demands: Vec<Demand> = Vec::new();
    for task in tasks {
        let may_lose: &[bool] = if task.spec.retries.device_lost > 0 { &[false, true] } else { &[false] };
        for &after_loss in may_lose {
            let shared = Demand { after_loss, ..task.spec.demand };
            for demand in [shared, alone(shared)] {
                if !demands.contains(&demand) {
                    demands.push(demand);
                }
            }
        }
    }
    demands.len()
}

/// The same with a GPU to itself instead of a share of one.
fn alone(demand: Demand) -> Demand {
    match demand.gpus {
        Gpus::Share(_) => Demand { gpus: Gpus::Share(WHOLE), ..demand },
        Gpus::None | Gpus::Instead | Gpus::Count(_) | Gpus::This(_) => demand,
    }
}
