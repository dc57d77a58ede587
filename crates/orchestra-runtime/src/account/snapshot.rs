//! How far a run is, as data: what the progress bar, the summary and tests look at.

use std::time::Duration;

use orchestra_core::bottleneck::{Bottleneck, TimeSpent};
use orchestra_core::{DeviceId, DeviceKind};
use orchestra_machine::Gpu;
use orchestra_store::Extent;
use serde::Serialize;

use crate::context::RunContext;
use crate::tasks::board::TasksSnapshot;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Since the start of this run (not of those that it continues).
    pub elapsed: Duration,
    /// How many items the sources name.
    pub extent: Extent,
    pub done: u64,
    pub failed: u64,
    /// Of both: what earlier runs had finished.
    pub resumed: u64,
    /// Items handed out and not finished yet.
    pub in_flight: u64,
    /// By stage, in the order of the plan.
    pub stages: Vec<StageSnapshot>,
    /// By device, in the order of the plan.
    pub devices: Vec<DeviceSnapshot>,
    pub tasks: TasksSnapshot,
    pub restarts: u64,
    /// Batches sent more than once, whole or in parts.
    pub retries: u64,
    #[serde(skip)]
    pub time: TimeSpent,
    /// The part that sets the pace.
    pub bottleneck: Bottleneck,
}

/// Counts as in [`StageReport`](crate::StageReport).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StageSnapshot {
    pub name: String,
    pub entered: u64,
    pub left: u64,
    pub failed: u64,
    pub busy: Duration,
}

/// Counts as in [`DeviceReport`](crate::DeviceReport), and what is there now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceSnapshot {
    pub name: String,
    pub ready: u64,
    pub workers: u64,
    pub starts: u64,
    pub restarts: u64,
    pub batches: u64,
    pub rows: u64,
    /// Time in which sessions ran, summed over workers.
    pub busy: Duration,
    /// The GPU as it was seen last; `None` for a CPU, and where nothing is known.
    pub gpu: Option<Gpu>,
}

impl Snapshot {
    pub fn take(context: &RunContext) -> Self {
        let (plan, stats) = (&context.plan, &context.stats);
        let elapsed = context.clock.now();
        let stages = plan.stages.iter().zip(&stats.stages).map(|(plan, s)| StageSnapshot {
            name: plan.name.clone(),
            entered: s.entered.get(),
            left: s.left.get(),
            failed: s.failed.get(),
            busy: s.busy.time(),
        });
        let planned = |device: usize| -> u64 {
            let all = plan.batch_stages().flat_map(|(_, batch)| &batch.workers);
            all.filter(|w| w.device.index() == device).map(|w| w.count as u64).sum()
        };
        let devices =
            plan.devices.iter().zip(&stats.devices).enumerate().map(|(i, (plan, s))| DeviceSnapshot {
                name: plan.spec.name.clone(),
                ready: s.ready.get(),
                workers: planned(i) + s.added.get(),
                starts: s.starts.get(),
                restarts: s.restarts.get(),
                batches: s.batches.get(),
                rows: s.rows.get(),
                busy: s.busy.time(),
                gpu: context.watch.latest(DeviceId(i as u16)),
            });
        let devices: Vec<DeviceSnapshot> = devices.collect();
        let worker_time: Duration =
            devices.iter().map(|d| elapsed * u32::try_from(d.workers).unwrap_or(u32::MAX)).sum();
        let running: Duration = devices.iter().map(|d| d.busy).sum();
        let time = TimeSpent {
            loading: stats.loading.time(),
            waiting_for_row: stats.waiting_for_row.time(),
            waiting_for_sinks: stats.waiting_for_sinks.time(),
            running,
            idle: worker_time.saturating_sub(running),
        };
        let shared_cpu = plan.devices.iter().all(|d| d.spec.kind == DeviceKind::Cpu);
        let (done, failed, resumed) = (stats.done.get(), stats.failed.get(), stats.resumed.get());
        let in_flight = stats.in_flight();
        Self {
            elapsed,
            // After the items that are counted above, each of which is listed.
            extent: stats.extent(),
            done,
            failed,
            resumed,
            in_flight,
            stages: stages.collect(),
            restarts: devices.iter().map(|d| d.restarts).sum(),
            devices,
            tasks: context.tasks.snapshot(elapsed),
            retries: stats.retries.get(),
            bottleneck: Bottleneck::judge(time, shared_cpu),
            time,
        }
    }
}
