//! The history of a run: its starts, its statuses and its workers, on a clock that stands still while no start runs.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use orchestra_launch::{HistoryEvent, PlannedRun, RunStatus, WorkerId, each_history_line};
use orchestra_machine::MachineUse;

/// Workers that are told apart; of more only those are kept that did not end as asked.
const MOST_WORKERS: usize = 4000;
/// Statuses that curves are drawn from.
const MOST_MOMENTS: usize = 300;
/// Places of a curve of rates.
const MOST_RATES: f64 = 60.0;

#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    pub starts: Vec<RunStart>,
    pub moments: Vec<Moment>,
    pub workers: Vec<WorkerLife>,
    /// When a device was lost, which, and why.
    pub losses: Vec<(f64, String, String)>,
    /// Of the last start.
    pub plan: Option<PlannedRun>,
    pub orchestra: String,
}

/// Times are seconds since 1970.
#[derive(Debug, Clone, Default)]
pub struct RunStart {
    pub at: f64,
    /// Of its last line.
    pub until: f64,
    /// `None`: it goes on, or was killed.
    pub exit_code: Option<i32>,
    /// It goes on with the items of the start before, whose tasks have ended.
    pub is_second_part: bool,
}

#[derive(Debug, Clone)]
pub struct Moment {
    pub at: f64,
    /// By its place in `starts`.
    pub start: usize,
    /// Seconds that all cores of the machine were busy, and bytes of memory that were taken.
    pub machine: Option<(f64, u64)>,
    pub status: RunStatus,
}

#[derive(Debug, Clone)]
pub struct WorkerLife {
    pub start: usize,
    pub device: String,
    pub stage: String,
    pub began: f64,
    pub ready: Option<f64>,
    /// When it ended, and how.
    pub ended: Option<(f64, String)>,
}

impl WorkerLife {
    /// It was not asked to end, and not only cut off by the end of its run.
    pub fn died(&self) -> bool {
        self.ended.as_ref().is_some_and(|(_, exit)| exit != "ended as asked")
    }
}

impl RunHistory {
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut history = Self::default();
        let mut living: HashMap<WorkerId, usize> = HashMap::new();
        each_history_line(folder, |line| {
            let at = line.at;
            if let HistoryEvent::Start { plan, orchestra, .. } = line.event {
                let is_second_part = plan.as_ref().is_some_and(|plan| plan.is_second_part);
                history.starts.push(RunStart { at, until: at, exit_code: None, is_second_part });
                history.plan = plan.map(|plan| *plan).or(history.plan.take());
                history.orchestra = orchestra;
                living.clear();
                return;
            }
            let Some(start) = history.starts.len().checked_sub(1) else { return };
            history.starts[start].until = at;
            let machine = line.machine.map(|machine| (machine.cpu_seconds, machine.memory_used));
            match line.event {
                HistoryEvent::Start { .. } => {}
                HistoryEvent::Status(status) => {
                    history.moments.push(Moment { at, start, machine, status: *status });
                }
                HistoryEvent::WorkerStarted { worker, device, stage, .. } => {
                    living.insert(worker, history.workers.len());
                    let life = WorkerLife { start, device, stage, began: at, ready: None, ended: None };
                    history.workers.push(life);
                }
                HistoryEvent::WorkerReady { worker, .. } => {
                    if let Some(life) = living.get(&worker) {
                        history.workers[*life].ready = Some(at);
                    }
                }
                HistoryEvent::WorkerEnded { worker, exit } => {
                    if let Some(life) = living.remove(&worker) {
                        history.workers[life].ended = Some((at, exit));
                    }
                }
                HistoryEvent::DeviceLost { device, why } => history.losses.push((at, device, why)),
                HistoryEvent::End { exit_code } => history.starts[start].exit_code = Some(exit_code),
            }
        })?;
        let step = history.moments.len().div_ceil(MOST_MOMENTS).max(1);
        let last = history.moments.len().saturating_sub(1);
        let mut at = 0;
        history.moments.retain(|_| {
            at += 1;
            (at - 1) % step == 0 || at - 1 == last
        });
        if history.workers.len() > MOST_WORKERS {
            history.workers.retain(WorkerLife::died);
            history.workers.truncate(MOST_WORKERS);
        }
        Ok(history)
    }

    /// Notes a status of what goes on, which has no file. Of more than are kept, every other one goes.
    pub fn note(&mut self, at: f64, status: RunStatus) {
        if self.starts.is_empty() {
            self.starts.push(RunStart { at, ..RunStart::default() });
        }
        self.starts[0].until = at;
        if self.moments.len() >= MOST_MOMENTS {
            let mut n = 0;
            self.moments.retain(|_| {
                n += 1;
                n % 2 == 0
            });
        }
        let machine = MachineUse::read("/".as_ref());
        let machine = Some((machine.cpu_seconds, machine.memory_used));
        self.moments.push(Moment { at, start: 0, machine, status });
    }

    /// The last start has no end: it runs, or was killed.
    pub fn goes_on(&self) -> bool {
        self.starts.last().is_some_and(|start| start.exit_code.is_none())
    }

    /// Starts of the command: the two parts of one are one.
    pub fn n_starts(&self) -> usize {
        self.starts.iter().filter(|start| !start.is_second_part).count()
    }

    /// Seconds that starts ran until `at`: the time between them is left out.
    pub fn clock(&self, at: f64) -> f64 {
        let of = |start: &RunStart| (at.min(start.until) - start.at).max(0.0);
        self.starts.iter().map(of).sum()
    }

    /// Seconds that all starts ran.
    pub fn length(&self) -> f64 {
        self.clock(f64::INFINITY)
    }

    /// When each start began, by that clock.
    pub fn start_times(&self) -> Vec<f64> {
        self.starts.iter().map(|start| self.clock(start.at)).collect()
    }

    /// The rate of a counter by the clock: how much it grew by per second since the last one. A short run has fewer, or batches that end would be peaks.
    pub fn rate(&self, counter: impl Fn(&Moment) -> Option<f64>) -> Vec<(f64, Option<f64>)> {
        let mut before: Option<(usize, f64, f64)> = None;
        let mut rates = Vec::with_capacity(self.moments.len());
        let shortest = self.length() / MOST_RATES;
        for moment in &self.moments {
            let began = self.starts[moment.start].at;
            let Some(now) = counter(moment) else {
                rates.push((self.clock(moment.at), None));
                continue;
            };
            let (at, value) = match before {
                Some((start, at, value)) if start == moment.start => (at, value),
                _ => (began, 0.0),
            };
            if moment.at - at < shortest {
                continue;
            }
            let rate = (now - value).max(0.0) / (moment.at - at).max(1e-3);
            rates.push((self.clock(moment.at), Some(rate)));
            before = Some((moment.start, moment.at, now));
        }
        rates
    }

    /// A figure at each status, by the clock.
    pub fn figure(&self, figure: impl Fn(&Moment) -> Option<f64>) -> Vec<(f64, Option<f64>)> {
        self.moments.iter().map(|moment| (self.clock(moment.at), figure(moment))).collect()
    }
}

/// The place of a node in the graph of a plan.
pub fn place_in_plan(plan: &PlannedRun, name: &str) -> usize {
    let mut nodes = plan.pipelines.iter().flat_map(|pipeline| &pipeline.nodes);
    nodes.position(|node| node.name == name).unwrap_or(usize::MAX)
}
