//! The counters of a run for whoever exports them, during the run and after it. It reads only, knows no exporter, and keeps nothing of a run
//! alive but its plan and its numbers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orchestra_plan::Plan;

use crate::account::stats::Stats;
use crate::context::RunContext;
use crate::fleet::device_watch::DeviceWatch;

/// Reads the counters of a run. Cheap to clone; may be kept and read after the end of the run.
#[derive(Clone)]
pub struct Meter {
    plan: Arc<Plan>,
    stats: Arc<Stats>,
    devices: Arc<DeviceWatch>,
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
