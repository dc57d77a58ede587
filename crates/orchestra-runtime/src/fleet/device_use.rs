//! Adds up what was seen of a device and of its workers. Looks at nothing itself.

use std::time::Duration;

use orchestra_core::{DeviceId, WorkerId};
use orchestra_machine::{Gpu, GpuProcess};
use serde::{Deserialize, Serialize};

/// A worker process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerUse {
    pub worker: WorkerId,
    pub device: DeviceId,
    pub pid: u32,
    /// Its main memory in bytes, batch slots included.
    pub resident_bytes: u64,
    /// Time that it has spent on cores.
    pub cpu_time: Duration,
    /// Bytes that it holds of its GPU, where the driver tells (in a container it often cannot).
    pub gpu_memory: Option<u64>,
}

/// What a device and its workers took over a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceUse {
    /// Most bytes of the GPU that were taken at a look, those of others included.
    pub memory_used_max: Option<u64>,
    /// Mean utilisation of the GPU, 0 to 1.
    pub utilization_mean: Option<f64>,
    /// Mean power of the GPU in watts.
    pub power_mean_watts: Option<f64>,
    /// Highest temperature of the GPU in degrees Celsius.
    pub temperature_max_c: Option<u32>,
    /// Most bytes of the GPU that a single worker held, where the driver tells, at looks while none was loading.
    pub worker_gpu_memory_max: Option<u64>,
    /// Most main memory of a single worker in bytes, batch slots included.
    pub worker_memory_max: Option<u64>,
    /// Seconds that all of its workers together have spent on cores, as far as it was seen.
    pub worker_cpu_seconds: Option<f64>,
}

#[derive(Debug, Default)]
pub(crate) struct UseTally {
    usage: DeviceUse,
    utilization: Mean,
    milliwatts: Mean,
    live: Vec<WorkerUse>,
    /// Time on cores of the workers that are gone, at their last look; `None`: none was seen.
    cpu_time_of_gone: Option<Duration>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Mean {
    sum: f64,
    n: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.n = self.n.saturating_add(1);
        }
    }

    fn get(self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / f64::from(self.n))
    }
}

impl UseTally {
    pub(crate) fn usage(&self) -> DeviceUse {
        DeviceUse {
            utilization_mean: self.utilization.get(),
            power_mean_watts: self.milliwatts.get().map(|mw| mw / 1000.0),
            worker_cpu_seconds: sum_of_times(self.cpu_time_of_gone, &self.live)
                .map(|time| time.as_secs_f64()),
            ..self.usage
        }
    }

    /// The workers that lived at the last look.
    pub(crate) fn workers(&self) -> &[WorkerUse] {
        &self.live
    }

    pub(crate) fn gpu(&mut self, gpu: &Gpu) {
        self.usage.memory_used_max = self.usage.memory_used_max.max(Some(gpu.memory_used()));
        self.usage.temperature_max_c = self.usage.temperature_max_c.max(gpu.temperature_c);
        self.utilization.add(gpu.utilization.map(|percent| f64::from(percent) / 100.0));
        self.milliwatts.add(gpu.power_mw.map(f64::from));
    }

    /// The workers that live now, and all processes that the driver sees on the GPU. `settled`: workers serve, and none is loading. Only
    /// then what they take is all that they need.
    pub(crate) fn processes(&mut self, mut workers: Vec<WorkerUse>, of_gpu: &[GpuProcess], settled: bool) {
        for worker in &mut workers {
            worker.gpu_memory = of_gpu.iter().find(|p| p.pid == worker.pid).and_then(|p| p.memory);
            let usage = &mut self.usage;
            usage.worker_memory_max = usage.worker_memory_max.max(Some(worker.resident_bytes));
            if let Some(bytes) = worker.gpu_memory.filter(|bytes| settled && *bytes > 0) {
                usage.worker_gpu_memory_max = usage.worker_gpu_memory_max.max(Some(bytes));
            }
        }
        let is_gone = |worker: &WorkerUse| workers.iter().all(|other| other.worker != worker.worker);
        self.live.retain(is_gone);
        self.cpu_time_of_gone = sum_of_times(self.cpu_time_of_gone, &self.live);
        self.live = workers;
    }
}

fn sum_of_times(before: Option<Duration>, workers: &[WorkerUse]) -> Option<Duration> {
    before.into_iter().chain(workers.iter().map(|worker| worker.cpu_time)).reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(used: u64, utilization: Option<u8>, power_mw: Option<u32>) -> Gpu {
        let (memory_total, memory_free) = (24 * GIB, 24 * GIB - used * GIB);
        Gpu {
            memory_total,
            memory_free,
            utilization,
            power_mw,
            temperature_c: Some(40 + used as u32),
            ..Gpu::default()
        }
    }

    fn worker(id: u32, resident_gib: u64, cpu_seconds: u64) -> WorkerUse {
        WorkerUse {
            worker: WorkerId(id),
            device: DeviceId(0),
            pid: 100 + id,
            resident_bytes: resident_gib * GIB,
            cpu_time: Duration::from_secs(cpu_seconds),
            gpu_memory: None,
        }
    }

    #[test]
    fn means_are_over_the_looks_that_told_and_maxima_stay() {
        let mut tally = UseTally::default();
        tally.gpu(&gpu(1, Some(0), Some(50_000)));
        tally.gpu(&gpu(7, Some(100), Some(150_000)));
        tally.gpu(&gpu(9, None, None));
        let usage = tally.usage();
        assert_eq!(usage.memory_used_max, Some(9 * GIB));
        assert_eq!((usage.utilization_mean, usage.power_mean_watts), (Some(0.5), Some(100.0)));
        assert_eq!(usage.temperature_max_c, Some(49));
    }

    #[test]
    fn the_time_of_workers_that_are_gone_still_counts() {
        let mut tally = UseTally::default();
        let on_gpu = |pid, gib| GpuProcess { pid, memory: Some(gib * GIB) };
        tally.processes(vec![worker(1, 2, 5), worker(2, 3, 1)], &[on_gpu(101, 4), on_gpu(999, 20)], true);
        tally.processes(vec![worker(2, 1, 4)], &[GpuProcess { pid: 102, memory: None }], true);
        tally.processes(vec![worker(2, 1, 4)], &[on_gpu(102, 9)], false);
        let usage = tally.usage();
        assert_eq!(usage.worker_cpu_seconds, Some(9.0));
        assert_eq!(usage.worker_memory_max, Some(3 * GIB));
        assert_eq!(usage.worker_gpu_memory_max, Some(4 * GIB));
        assert_eq!(tally.workers(), [WorkerUse { gpu_memory: Some(9 * GIB), ..worker(2, 1, 4) }]);
    }
}
