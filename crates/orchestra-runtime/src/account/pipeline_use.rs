//! Adds up what the workers of each pipeline took of a device that it may share with others. Looks at nothing itself.

use std::time::Duration;

use orchestra_core::{DeviceId, PipelineId, StageId};
use serde::Serialize;

use crate::fleet::device_use::WorkerUse;

/// Times on cores come in hundredths of a second: over less than this they say nothing.
const MIN_SPAN: Duration = Duration::from_millis(500);
/// What a pipeline took of one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PipelineUse {
    pub pipeline: PipelineId,
    pub device: DeviceId,
    pub latest: PipelineLook,
    /// Most bytes of the GPU that its workers held together.
    pub gpu_memory_max: Option<u64>,
    /// Most main memory of its workers together in bytes.
    pub memory_max: Option<u64>,
    /// Time that its workers have spent on cores, as far as it was seen; those that are gone included.
    pub cpu_time: Option<Duration>,
}

/// What a pipeline took of one device at a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PipelineLook {
    /// Bytes of the GPU that its workers hold: as the driver counts, or where it does not, as much as a worker was measured or declared to
    /// take.
    pub gpu_memory: Option<u64>,
    /// Main memory of its workers in bytes. Batch slots count in each worker that has touched them.
    pub memory: u64,
    /// Cores that its workers kept busy since a look before; `None` after the first.
    pub cores: Option<f64>,
}

/// The pipelines that have workers on a device, and the sums behind their [`PipelineUse`].
#[derive(Debug, Default)]
pub(crate) struct Shares(Vec<Share>);

#[derive(Debug)]
struct Share {
    stages: Vec<StageId>,
    usage: PipelineUse,
    /// When its time on cores was looked at, and what it was.
    cpu_at: Option<(Duration, Duration)>,
}

/// What a look at a device has seen.
pub(crate) struct Look<'a> {
    /// Those that live.
    pub workers: &'a [WorkerUse],
    /// What all workers up to now have spent on cores, by stage.
    pub cpu_times: &'a [(StageId, Duration)],
    /// Bytes of the GPU that one worker of a stage takes, where that is known.
    pub worker_bytes: &'a dyn Fn(StageId) -> Option<u64>,
    /// When the times on cores were read.
    pub now: Duration,
}

impl Shares {
    /// Of the pipelines that these stages belong to.
    pub(crate) fn new(device: DeviceId, stages: &[(StageId, PipelineId)]) -> Self {
        let mut pipelines: Vec<PipelineId> = stages.iter().map(|(_, pipeline)| *pipeline).collect();
        pipelines.sort_unstable();
        pipelines.dedup();
        let of = |pipeline: PipelineId| Share {
            stages: stages.iter().filter(|(_, p)| *p == pipeline).map(|(stage, _)| *stage).collect(),
            usage: PipelineUse {
                pipeline,
                device,
                latest: PipelineLook::default(),
                gpu_memory_max: None,
                memory_max: None,
                cpu_time: None,
            },
            cpu_at: None,
        };
        Self(pipelines.into_iter().map(of).collect())
    }

    /// What each took up to now.
    pub(crate) fn usages(&self) -> Vec<PipelineUse> {
        self.0.iter().map(|share| share.usage).collect()
    }

    /// Takes what a look has seen.
    pub(crate) fn look(&mut self, look: &Look<'_>) {
        self.0.iter_mut().for_each(|share| share.workers(look));
    }
}

impl Share {
    fn workers(&mut self, look: &Look<'_>) {
        let ours = || look.workers.iter().filter(|worker| self.stages.contains(&worker.stage));
        let memory = ours().map(|worker| worker.resident_bytes).sum();
        // A driver that counts knows nothing of a worker that holds nothing yet. One that cannot says nothing, or 0, of all.
        let counted: u64 = ours().filter_map(|worker| worker.gpu_memory).sum();
        let known = || ours().map(|worker| (look.worker_bytes)(worker.stage)).sum::<Option<u64>>();
        let gpu_memory = if counted > 0 { Some(counted) } else { known().filter(|bytes| *bytes > 0) };
        let times = look.cpu_times.iter().filter(|(stage, _)| self.stages.contains(stage));
        let cpu_time: Duration = times.map(|(_, time)| *time).sum();
        let usage = &mut self.usage;
        usage.latest.memory = memory;
        usage.latest.gpu_memory = gpu_memory;
        usage.gpu_memory_max = usage.gpu_memory_max.max(gpu_memory);
        usage.memory_max = usage.memory_max.max((memory > 0).then_some(memory));
        usage.cpu_time = usage.cpu_time.max((!cpu_time.is_zero()).then_some(cpu_time));
        let (then, before) = *self.cpu_at.get_or_insert((look.now, cpu_time));
        let span = look.now.saturating_sub(then);
        if span >= MIN_SPAN {
            usage.latest.cores = Some(cpu_time.saturating_sub(before).as_secs_f64() / span.as_secs_f64());
            self.cpu_at = Some((look.now, cpu_time));
        }
    }
}

#[cfg(test)]
#[path = "pipeline_use_tests.rs"]
mod tests;
