//! Adds up what each pipeline took of a device that it may share with others. Looks at nothing itself.
//!
//! A driver tells what a whole GPU does. Of that, a pipeline has the part that its sessions had of the time in which sessions ran there;
//! those that run at once count each. What other programs do on that GPU is shared out with it.

use std::time::Duration;

use orchestra_core::{DeviceId, PipelineId, StageId};
use orchestra_machine::Gpu;
use serde::Serialize;

use crate::fleet::device_use::{DeviceUse, WorkerUse};

/// Times on cores come in hundredths of a second: over less than this they say nothing.
const MIN_SPAN: Duration = Duration::from_millis(500);
/// What weighs so much less at each look is forgotten within some twenty: a batch counts when it is done, and one may take many looks.
const FADING: f64 = 0.85;

/// What a pipeline took of one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PipelineUse {
    pub pipeline: PipelineId,
    pub device: DeviceId,
    pub latest: PipelineLook,
    /// Its part of the mean utilisation of the GPU, 0 to 1.
    pub utilization_mean: Option<f64>,
    /// Its part of the mean power of the GPU in watts.
    pub power_mean_watts: Option<f64>,
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
    /// Its part of the utilisation of the GPU, 0 to 1.
    pub utilization: Option<f64>,
    /// Its part of the power of the GPU in watts.
    pub power_watts: Option<f64>,
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
    /// Time in which its sessions have run.
    ran: Duration,
    /// Of that, what was new at the last looks, in seconds that fade.
    lately: f64,
    /// When its time on cores was looked at, and what it was.
    cpu_at: Option<(Duration, Duration)>,
}

/// What is known of a stage on a device beside what a look sees.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StageFacts {
    /// Time in which its sessions have run.
    pub ran: Duration,
    /// Bytes of the GPU that one worker takes, where that is known.
    pub worker_bytes: Option<u64>,
}

/// What a look at a device has seen.
pub(crate) struct Look<'a> {
    /// `None` also if it gave no answer.
    pub gpu: Option<&'a Gpu>,
    /// Those that live.
    pub workers: &'a [WorkerUse],
    /// What all workers up to now have spent on cores, by stage.
    pub cpu_times: &'a [(StageId, Duration)],
    pub facts: &'a dyn Fn(StageId) -> StageFacts,
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
                utilization_mean: None,
                power_mean_watts: None,
                gpu_memory_max: None,
                memory_max: None,
                cpu_time: None,
            },
            ran: Duration::ZERO,
            lately: 0.0,
            cpu_at: None,
        };
        Self(pipelines.into_iter().map(of).collect())
    }

    /// What each took up to now, given what the device took.
    pub(crate) fn usages(&self, whole: &DeviceUse) -> Vec<PipelineUse> {
        let of_run = self.parts(|share| share.ran.as_secs_f64());
        let usage = |(share, part): (&Share, f64)| PipelineUse {
            utilization_mean: whole.utilization_mean.map(|mean| mean * part),
            power_mean_watts: whole.power_mean_watts.map(|mean| mean * part),
            ..share.usage
        };
        self.0.iter().zip(of_run).map(usage).collect()
    }

    /// Shares out what a look has seen.
    pub(crate) fn look(&mut self, look: &Look<'_>) {
        for share in &mut self.0 {
            share.ran(look.facts);
            share.workers(look);
        }
        let utilization = look.gpu.and_then(|gpu| gpu.utilization).map(|percent| f64::from(percent) / 100.0);
        let watts = look.gpu.and_then(|gpu| gpu.power_mw).map(|mw| f64::from(mw) / 1000.0);
        let parts = self.parts(|share| share.lately);
        for (share, part) in self.0.iter_mut().zip(parts) {
            share.usage.latest.utilization = utilization.map(|of_gpu| of_gpu * part);
            share.usage.latest.power_watts = watts.map(|of_gpu| of_gpu * part);
        }
    }

    /// The part of each of all; the same for all before the first batch.
    fn parts(&self, weight: fn(&Share) -> f64) -> Vec<f64> {
        let all: f64 = self.0.iter().map(weight).sum();
        let part = |share: &Share| if all > 0.0 { weight(share) / all } else { 1.0 / self.0.len() as f64 };
        self.0.iter().map(part).collect()
    }
}

impl Share {
    fn ran(&mut self, facts: &dyn Fn(StageId) -> StageFacts) {
        let ran: Duration = self.stages.iter().map(|stage| facts(*stage).ran).sum();
        self.lately = self.lately * FADING + ran.saturating_sub(self.ran).as_secs_f64();
        self.ran = ran;
    }

    fn workers(&mut self, look: &Look<'_>) {
        let ours = || look.workers.iter().filter(|worker| self.stages.contains(&worker.stage));
        let memory = ours().map(|worker| worker.resident_bytes).sum();
        // A driver that counts knows nothing of a worker that holds nothing yet. One that cannot says nothing, or 0, of all.
        let counted: u64 = ours().filter_map(|worker| worker.gpu_memory).sum();
        let known = || ours().map(|worker| (look.facts)(worker.stage).worker_bytes).sum::<Option<u64>>();
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
