//! One run of the workflow from start to end, in peace or under faults. It only looks and strikes from outside.

use std::sync::Arc;
use std::time::Duration;

use orchestra_plan::Plan;
use orchestra_runtime::{Remains, RunOptions, RunOutcome, RunReport, Snapshot};
use orchestra_trial::{Cancel, Ended, Threads, TrialError};

use crate::error::ChaosError;
use crate::scene::Scene;
use crate::striker::{Striker, Strikes};
use crate::tracker::Tracker;

/// What is known of a run that came to its end.
#[derive(Debug)]
pub struct Ran {
    /// The account of it, as in `run.json`.
    pub report: RunReport,
    /// Its workers.
    pub tracker: Tracker,
    /// Strikes that found nobody.
    pub missed: u64,
    /// What is still there of it.
    pub remains: Remains,
}

impl Ran {
    /// Items per second until the last batch was done. A process that is stopped at the very end holds the end of the run up for seconds,
    /// and no item with it.
    pub fn items_per_second(&self) -> f64 {
        let last = self.tracker.last_batch.unwrap_or(Duration::from_secs_f64(self.report.seconds.max(0.0)));
        divide(self.report.items.read as f64, last.as_secs_f64())
    }

    /// From the first batch to the last one.
    pub fn seconds_at_work(&self) -> f64 {
        let span = self.tracker.last_batch.zip(self.tracker.first_batch);
        span.map_or(0.0, |(last, first)| last.saturating_sub(first).as_secs_f64())
    }
}

/// Runs `plan`. What lies in its output folder is discarded first. Blocks.
pub fn run(
    plan: &Arc<Plan>,
    options: RunOptions,
    strikes: Option<Strikes>,
    cancel: &Cancel,
    look: &mut dyn FnMut(&Snapshot),
) -> Result<Ran, ChaosError> {
    let prepared = orchestra_runtime::prepare(Arc::clone(plan), true).map_err(TrialError::from)?;
    let threads = Threads::start(plan)?;
    let scene = Scene::new();
    let options = RunOptions { events: Some(scene.hook()), ..options };
    let striker = strikes.map(|strikes| Striker::start(Arc::clone(&scene), strikes)).transpose();
    let striker = striker.map_err(TrialError::io("starting the thread that strikes"))?;
    let ended = threads.run(prepared, options, cancel, look);
    let missed = striker.map_or(0, Striker::stop);
    drop(threads);
    let tracker = scene.end();
    let Ended { outcome: RunOutcome { report, exit_code, problems }, remains } = ended?;
    if !matches!(exit_code, 0 | 65) {
        let which = if strikes.is_some() { "with faults" } else { "without faults" };
        return Err(ChaosError::Run { which, exit_code, problems });
    }
    Ok(Ran { report, tracker, missed, remains })
}

/// 0 where nothing was measured.
pub fn divide(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
