//! What a host sees of a run, during it and after it: its counters, and what of it is still there. It reads only, knows no exporter, and keeps
//! nothing of a run alive but its plan and its numbers.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use orchestra_plan::Plan;

use crate::account::stats::Stats;
use crate::context::RunContext;
use crate::fleet::device_watch::DeviceWatch;
use crate::tasks::board::TaskBoard;

/// Reads the counters of a run. Cheap to clone; may be kept and read after the end of the run.
#[derive(Clone)]
pub struct Meter {
    plan: Arc<Plan>,
    stats: Arc<Stats>,
    devices: Arc<DeviceWatch>,
    tasks: Arc<TaskBoard>,
    run_id: Arc<str>,
    started: SystemTime,
}

impl Meter {
    pub(crate) fn of(context: &RunContext) -> Self {
        let now = SystemTime::now();
        Self {
            plan: Arc::clone(&context.plan),
            stats: Arc::clone(&context.stats),
            devices: Arc::clone(&context.watch),
            tasks: Arc::clone(&context.tasks),
            run_id: context.run_id.as_str().into(),
            started: now.checked_sub(context.clock.now()).unwrap_or(now),
        }
    }

    /// What runs: names for the ids that the counters are kept by.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What devices and worker processes take, as it was at the last look.
    pub fn devices(&self) -> &DeviceWatch {
        &self.devices
    }

    pub fn tasks(&self) -> &TaskBoard {
        &self.tasks
    }

    /// Id of the run, as in `run.json`.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// When this start of the run began, since the Unix epoch.
    pub fn started(&self) -> Duration {
        self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

/// Looks at a run from outside, also after its end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RunObserver {
    context: Weak<RunContext>,
    stats: Arc<Stats>,
}

impl RunObserver {
    pub(crate) fn of(context: &Arc<RunContext>) -> Self {
        Self { context: Arc::downgrade(context), stats: Arc::clone(&context.stats) }
    }

    /// Actors, loader threads, tasks and handles that belong to the run. 0 a moment after its end; a thread that was given up, because
    /// it hangs on a file, counts for as long as it hangs.
    pub fn holders(&self) -> usize {
        self.context.strong_count()
    }

    /// Batch slots that are taken now, of all stages: the credits of the data path that have not come home.
    pub fn slots_in_use(&self) -> u64 {
        self.stats.slots_in_use()
    }

    /// Batch slots that were still taken when every batch of their stage had its end, so that they could never be filled again. Always 0:
    /// anything else is a bug.
    pub fn slots_lost(&self) -> u64 {
        self.stats.slots_lost.get()
    }

    /// One line for each of these that is not 0.
    pub fn left(&self) -> Vec<String> {
        let figures = [
            ("holders (actors, threads, tasks, handles)", self.holders() as u64),
            ("batch slots in use", self.slots_in_use()),
            ("batch slots lost", self.slots_lost()),
        ];
        figures.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect()
    }
}
