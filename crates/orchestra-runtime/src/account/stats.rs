//! Counters of a run, written where the work is done and read for snapshots, the report and metrics. No decision reads them but the limits on failed items.

use std::sync::{Arc, OnceLock};

use orchestra_core::batching::LeaveReason;
use orchestra_core::first_items::FirstItems;
use orchestra_core::worker_exit::ExitKind;
use orchestra_core::{DeviceId, FailureKind, PipelineId, SourceId, StageId};
use orchestra_plan::{Origin, Plan};
use orchestra_store::{Extent, Growth};

use crate::account::counter::Counter;
use crate::account::histogram::{BATCH_SIZES, Histogram, TIMES};
use crate::account::left_out::LeftOutCounts;
use crate::fleet::live_workers::LiveWorkers;

/// Counters of one pipeline, of this start of the run alone.
#[derive(Debug, Default)]
pub struct PipelineStats {
    /// Items that earlier starts had finished.
    pub resumed: Counter,
    /// Of these: with a failure.
    pub failed_before: Counter,
    /// Items handed to loaders; those that a pipeline held when it fell over are handed to its successor again.
    pub handed: Counter,
    /// Of these: what went back, since the pipeline that held them fell over.
    pub returned: Counter,
    pub done: Counter,
    pub failed: Counter,
    /// Bytes of the files that loaders have read.
    pub bytes_read: Counter,
}

impl PipelineStats {
    /// Items that are neither done nor failed and were handed to loaders that live.
    pub fn in_flight(&self) -> u64 {
        // What ends is counted after what begins, so the other order could give less than none.
        let ended = self.done.get() + self.failed.get() + self.returned.get();
        self.handed.get().saturating_sub(ended)
    }
}

#[derive(Debug, Default)]
pub struct StageStats {
    pub entered: Counter,
    /// Items that left it with a result.
    pub left: Counter,
    pub failed: Counter,
    /// Time that threads or workers spent on it.
    pub busy: Counter,
    /// Workers that were added to those at the start.
    pub added: Counter,
    /// Batch slots of it that are taken now. Its pool changes it.
    pub slots_in_use: Arc<Counter>,
    /// Items in each batch that was sent, halves and repeats included; of batch stages.
    pub batch_size: Option<Histogram>,
    /// From the moment the first row of a batch was claimed until it was first sent: how long its oldest item waited; of batch stages.
    pub queue_time: Option<Histogram>,
    pub first_items: FirstItems,
    /// What it does on each device, by device; empty for a stage that runs on none.
    pub on: Vec<StageOnDevice>,
    /// Items whose failure names this stage and is written, by kind.
    failures: [Counter; FailureKind::ALL.len()],
    reasons: [Counter; LeaveReason::ALL.len()],
}

#[derive(Debug)]
pub struct StageOnDevice {
    /// The plan gives it workers there.
    pub is_planned: bool,
    /// Time that a worker spent on one batch: binding, the session's run, copying out.
    pub run_time: Histogram,
    /// Items of the largest batch that is sent there now.
    pub ceiling: Counter,
    /// Bytes that one worker takes of the GPU, as measured in this run; 0: it was not.
    pub worker_bytes: Counter,
}

impl StageStats {
    /// Items whose failure names this stage.
    pub fn failures(&self, kind: FailureKind) -> &Counter {
        &self.failures[kind as usize]
    }

    pub fn reason(&self, reason: LeaveReason) -> &Counter {
        &self.reasons[reason as usize]
    }

    /// What it does on a device, if it may run there.
    pub fn on(&self, device: DeviceId) -> Option<&StageOnDevice> {
        self.on.get(device.index())
    }

    fn of(plan: &Plan, stage: usize) -> Self {
        let Some(batch) = plan.stages[stage].batch() else { return Self::default() };
        let on = (0..plan.devices.len()).map(|device| {
            let ceiling = Counter::default();
            ceiling.set(batch.max_batch as u64);
            StageOnDevice {
                is_planned: batch.workers.iter().any(|w| w.device.index() == device && w.count > 0),
                run_time: Histogram::new(TIMES),
                ceiling,
                worker_bytes: Counter::default(),
            }
        });
        Self {
            batch_size: Some(Histogram::new(BATCH_SIZES)),
            queue_time: Some(Histogram::new(TIMES)),
            on: on.collect(),
            ..Self::default()
        }
    }
}

#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Workers that the plan gives it.
    planned: u64,
    pub ready: Counter,
    /// Workers that were asked to end, or are being killed, and are not gone yet.
    pub ending: Counter,
    /// Workers that were added to those at the start, once it was known that they fit.
    pub added: Counter,
    pub starts: Counter,
    pub restarts: Counter,
    pub batches: Counter,
    pub rows: Counter,
    /// Time in which a session ran.
    pub busy: Counter,
    /// Time that workers served, summed over workers that are gone.
    pub ready_time: Counter,
    exits: [Counter; ExitKind::ALL.len()],
}

impl DeviceStats {
    fn of(plan: &Plan, device: usize) -> Self {
        let workers = plan.batch_stages().flat_map(|(_, batch)| &batch.workers);
        let here = workers.filter(|workers| workers.device.index() == device);
        Self { planned: here.map(|workers| workers.count as u64).sum(), ..Self::default() }
    }

    /// Workers that the plan gives it, and those that were added.
    pub fn workers(&self) -> u64 {
        self.planned + self.added.get()
    }

    /// Workers that are gone, by how they ended.
    pub fn exits(&self, kind: ExitKind) -> &Counter {
        &self.exits[kind as usize]
    }

    /// Workers that were started and do not serve yet. A look between two counters may be off by one.
    pub fn starting(&self) -> u64 {
        let gone: u64 = self.exits.iter().map(Counter::get).sum();
        let others = gone + self.ready.get() + self.ending.get();
        self.starts.get().saturating_sub(others)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitCounts {
    pub done: u64,
    pub failed: u64,
    pub by_source: Vec<(SourceId, u64)>,
    /// Where and why each of those with failures ended.
    pub failures: Vec<(StageId, FailureKind)>,
}

impl CommitCounts {
    pub fn add(&mut self, other: &CommitCounts) {
        self.done += other.done;
        self.failed += other.failed;
        self.failures.extend_from_slice(&other.failures);
        for &(source, n) in &other.by_source {
            match self.by_source.iter_mut().find(|(s, _)| *s == source) {
                Some((_, all)) => *all += n,
                None => self.by_source.push((source, n)),
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Stats {
    /// How far the lists of all sources have grown, in the order of the plan; set once.
    pub growths: OnceLock<Vec<Arc<Growth>>>,
    /// Items handed out in this run.
    pub handed: Counter,
    /// Of these: what went back, since the pipeline that held them fell over.
    pub returned: Counter,
    /// Items with records, in this run and those before it that it continues.
    pub done: Counter,
    /// Items with failures, likewise.
    pub failed: Counter,
    /// Of `done + failed`: what earlier runs had finished.
    pub resumed: Counter,
    /// When a worker finished the first batch, since the start; 0: none yet.
    pub first_batch: Counter,
    /// When the last pipeline ended, since the start; 0: none has.
    pub pipelines_ended: Counter,
    /// Time that loaders read and decoded.
    pub loading: Counter,
    /// Time that loaders waited for a free row.
    pub waiting_for_row: Counter,
    /// Time that loaders waited for items because the window of items in flight was full.
    pub waiting_for_sinks: Counter,
    /// Loader processes that were started in place of others.
    pub loader_restarts: Counter,
    /// Batches of fewer rows that follow from a failure, and whole ones sent again.
    pub retries: Counter,
    /// Batch slots that were still taken when every batch of their stage had its end.
    pub slots_lost: Counter,
    pub pipelines: Vec<PipelineStats>,
    /// What became of the first items of each source: whether they could be read.
    pub first_of_sources: Vec<FirstItems>,
    /// And of those that came to each sink: whether they could be written.
    pub first_of_sinks: Vec<FirstItems>,
    /// The part files of each sink, once the journal is closed.
    pub n_part_files: Vec<Counter>,
    pub stages: Vec<StageStats>,
    pub devices: Vec<DeviceStats>,
    pub workers: LiveWorkers,
    /// What items hold that no stage was given.
    pub left_out: LeftOutCounts,
    pipeline_of_source: Vec<PipelineId>,
    /// Per source whether stages of another pipeline make its items: they do not count before they are there.
    is_made: Vec<bool>,
}

impl Stats {
    pub fn new(plan: &Plan) -> Self {
        Self {
            pipelines: plan.pipelines.iter().map(|_| PipelineStats::default()).collect(),
            first_of_sources: plan.sources.iter().map(|_| FirstItems::default()).collect(),
            first_of_sinks: plan.sinks.iter().map(|_| FirstItems::default()).collect(),
            n_part_files: plan.sinks.iter().map(|_| Counter::default()).collect(),
            stages: (0..plan.stages.len()).map(|stage| StageStats::of(plan, stage)).collect(),
            devices: (0..plan.devices.len()).map(|device| DeviceStats::of(plan, device)).collect(),
            pipeline_of_source: plan.sources.iter().map(|source| source.pipeline).collect(),
            is_made: plan.sources.iter().map(|source| source.reduced.is_some()).collect(),
            ..Self::default()
        }
    }

    pub fn stage(&self, id: StageId) -> &StageStats {
        &self.stages[id.index()]
    }

    pub fn device(&self, id: DeviceId) -> &DeviceStats {
        &self.devices[id.index()]
    }

    /// What became of the first rows of a source or a stage.
    pub fn first_items(&self, of: Origin) -> &FirstItems {
        match of {
            Origin::Source(source) => &self.first_of_sources[source.index()],
            Origin::Stage(stage) => &self.stage(stage).first_items,
        }
    }

    /// Counters of the pipeline that reads a source.
    pub fn pipeline_of(&self, source: SourceId) -> &PipelineStats {
        &self.pipelines[self.pipeline_of_source[source.index()].index()]
    }

    pub fn count(&self, counts: &CommitCounts) {
        self.done.add(counts.done);
        self.failed.add(counts.failed);
        // All sources of one commit are of one pipeline.
        if let Some((source, _)) = counts.by_source.first() {
            let pipeline = self.pipeline_of(*source);
            pipeline.done.add(counts.done);
            pipeline.failed.add(counts.failed);
        }
        for (stage, kind) in &counts.failures {
            self.stage(*stage).failures(*kind).add(1);
        }
    }

    /// How many items all sources name.
    pub fn extent(&self) -> Extent {
        self.extents().map(|(_, extent)| extent).sum()
    }

    /// How many items the sources of a pipeline name.
    pub fn extent_of(&self, pipeline: PipelineId) -> Extent {
        self.extents().filter(|(of, _)| *of == pipeline).map(|(_, extent)| extent).sum()
    }

    fn extents(&self) -> impl Iterator<Item = (PipelineId, Extent)> {
        let growths = self.growths.get().into_iter().flatten();
        let extents = growths.zip(&self.is_made).map(|(growth, is_made)| match (is_made, growth.extent()) {
            (true, extent) => Extent::Known(extent.listed()),
            (false, extent) => extent,
        });
        self.pipeline_of_source.iter().copied().zip(extents)
    }

    /// Items that are neither done nor failed and were handed to loaders that live.
    pub fn in_flight(&self) -> u64 {
        let ended = self.done.get() + self.failed.get() + self.returned.get();
        (self.handed.get() + self.resumed.get()).saturating_sub(ended)
    }

    /// A pipeline has fallen over, and all that it did is counted: what it held is handed out again.
    pub fn fell_over(&self, pipeline: PipelineId) {
        let of_pipeline = &self.pipelines[pipeline.index()];
        let held = of_pipeline.in_flight();
        of_pipeline.returned.add(held);
        self.returned.add(held);
        self.left_out.forget(|source| self.pipeline_of_source[source.index()] == pipeline);
    }

    /// Batches that left for this reason, of all stages.
    pub fn reason(&self, reason: LeaveReason) -> u64 {
        self.stages.iter().map(|stage| stage.reason(reason).get()).sum()
    }

    /// Batch slots that are taken now, of all stages.
    pub fn slots_in_use(&self) -> u64 {
        self.stages.iter().map(|stage| stage.slots_in_use.get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pipeline_held_that_fell_over_is_not_in_flight_any_more() {
        let stats = Stats { pipelines: vec![PipelineStats::default()], ..Stats::default() };
        let pipeline = &stats.pipelines[0];
        let add = |counter: fn(&PipelineStats) -> &Counter, of_all: &Counter, n| {
            counter(pipeline).add(n);
            of_all.add(n);
        };
        add(|p| &p.handed, &stats.handed, 10);
        add(|p| &p.done, &stats.done, 3);
        add(|p| &p.failed, &stats.failed, 1);
        assert_eq!((pipeline.in_flight(), stats.in_flight()), (6, 6));
        stats.fell_over(PipelineId(0));
        assert_eq!((pipeline.in_flight(), stats.in_flight()), (0, 0));
        // The six are handed out again.
        add(|p| &p.handed, &stats.handed, 6);
        add(|p| &p.done, &stats.done, 5);
        assert_eq!((pipeline.in_flight(), stats.in_flight()), (1, 1));
    }

    #[test]
    fn workers_that_are_neither_ready_nor_gone_are_starting() {
        let device = DeviceStats::default();
        device.starts.add(4);
        device.ready.add(2);
        device.exits(ExitKind::Killed).add(1);
        assert_eq!(device.starting(), 1);
        device.ready.add(7);
        assert_eq!(device.starting(), 0, "never less than none");
    }
}
