//! Counters of a run, written by whoever does the work and read by the observer. Counts only: nobody decides by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orchestra_core::batching::LeaveReason;
use orchestra_core::{DeviceId, StageId};
use orchestra_plan::Plan;

/// A number that only its writers change and that may be read at any time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds a duration, in nanoseconds.
    pub fn add_time(&self, d: Duration) {
        self.add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Takes `n` away.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Notes a duration, in nanoseconds, unless one was noted before.
    pub fn note_first(&self, d: Duration) {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).max(1);
        // An error means that another one was first.
        let _ = self.0.compare_exchange(0, nanos, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The sum of the durations added.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.get())
    }
}

/// Counters of one stage.
#[derive(Debug, Default)]
pub struct StageStats {
    /// Items that reached it.
    pub entered: Counter,
    /// Items that left it with a result.
    pub left: Counter,
    /// Items that ended here.
    pub failed: Counter,
    /// Time that threads or workers spent on it.
    pub busy: Counter,
}

/// Counters of one device.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Workers that serve now.
    pub ready: Counter,
    /// Spares that are ready now.
    pub standing_by: Counter,
    /// Worker processes started, spares included.
    pub starts: Counter,
    /// Dead workers that were replaced, by a start or by a spare.
    pub restarts: Counter,
    /// Times that a spare took a worker's place.
    pub spare_takeovers: Counter,
    /// Batches done.
    pub batches: Counter,
    /// Rows of these.
    pub rows: Counter,
    /// Time in which a session ran.
    pub busy: Counter,
    /// Time that workers served, summed over workers that are gone.
    pub ready_time: Counter,
}

/// Counters of the whole run.
#[derive(Debug, Default)]
pub struct Stats {
    /// Items that the sources name.
    pub total: Counter,
    /// Items handed out in this run.
    pub handed: Counter,
    /// Items with records, in this run and those before it that it continues.
    pub done: Counter,
    /// Items with failures, likewise.
    pub failed: Counter,
    /// Of `done + failed`: what earlier runs had finished.
    pub resumed: Counter,
    /// When a worker finished the first batch, since the start; 0: none yet.
    pub first_batch: Counter,
    /// Time that loaders read and decoded.
    pub loading: Counter,
    /// Time that loaders waited for a free row.
    pub waiting_for_row: Counter,
    /// Time that loaders waited for items because the window of items in flight was full.
    pub waiting_for_sinks: Counter,
    /// Batches of fewer rows that follow from a failure, and whole ones sent again.
    pub retries: Counter,
    /// Batch slots that are taken now, of all stages. The pools of the stages change it.
    pub slots_in_use: Arc<Counter>,
    /// Batch slots that were still taken when every batch of their stage had its end.
    pub slots_lost: Counter,
    /// By stage.
    pub stages: Vec<StageStats>,
    /// By device.
    pub devices: Vec<DeviceStats>,
    reasons: [Counter; LeaveReason::ALL.len()],
}

impl Stats {
    /// Zeros for this plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            stages: plan.stages.iter().map(|_| StageStats::default()).collect(),
            devices: plan.devices.iter().map(|_| DeviceStats::default()).collect(),
            ..Self::default()
        }
    }

    /// Counters of a stage.
    #[must_use]
    pub fn stage(&self, id: StageId) -> &StageStats {
        &self.stages[id.index()]
    }

    /// Counters of a device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> &DeviceStats {
        &self.devices[id.index()]
    }

    /// Batches that left for this reason.
    #[must_use]
    pub fn reason(&self, reason: LeaveReason) -> &Counter {
        &self.reasons[reason as usize]
    }
}
