//! What was measured of a stage whose inputs are ready. Measures nothing.

use orchestra_core::{DeviceId, StageId};
use serde::Serialize;

use crate::stats::divide;

/// A stage on one device, with batches of one size. Of several workers the times are those of the slowest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InferFigures {
    #[serde(skip)]
    pub stage_id: StageId,
    #[serde(skip)]
    pub device_id: DeviceId,
    #[serde(skip)]
    pub on_cpu: bool,
    /// Batches that each worker runs at once.
    #[serde(skip)]
    pub streams: usize,
    pub stage: String,
    pub device: String,
    pub workers: usize,
    /// Threads of each one's session.
    pub threads: usize,
    pub batch: usize,
    /// Of all of these workers, as many batches on the way to each as in a run.
    pub items_per_second: f64,
    pub cpu_seconds_per_item: f64,
    /// The first batch of this size after the warm-up.
    pub first_batch_seconds: f64,
    /// A batch, as a median.
    pub median_batch_seconds: f64,
    /// What of it the session ran, without the copies before and after it, as a median.
    pub median_run_seconds: f64,
    /// Part of the time in which the device computed: a GPU by its driver's account, of all of its processes; the CPU by the time of its cores that
    /// the workers took, of what they could have taken. `null` where the driver does not tell.
    pub device_busy: Option<f64>,
    /// A batch right after one of another size, as a median; `null` where there is one size.
    pub switched_batch_seconds: Option<f64>,
}

impl InferFigures {
    /// Cores that all of its workers together can keep busy: a batch also runs on the thread that starts it.
    pub fn lanes(&self) -> usize {
        self.workers * (self.threads + self.streams - 1)
    }

    /// Core seconds per item: of computing it on the cores, or of driving a GPU that does. `lanes` are those of all workers of this stage on the CPU, which shared the
    /// cores while this was measured.
    pub fn core_seconds(&self, cores: usize, lanes: usize) -> f64 {
        if !self.on_cpu || self.threads > 1 {
            return self.cpu_seconds_per_item;
        }
        // With more batches at once, each on one thread, than cores, each has only a part of a core.
        let part = divide(cores as f64, lanes as f64).min(1.0);
        divide(self.lanes() as f64 * part, self.items_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(workers: usize, threads: usize, rate: f64) -> InferFigures {
        InferFigures {
            stage_id: StageId(0),
            device_id: DeviceId(0),
            on_cpu: true,
            streams: 1,
            stage: String::new(),
            device: String::new(),
            workers,
            threads,
            batch: 8,
            items_per_second: rate,
            cpu_seconds_per_item: 0.003,
            first_batch_seconds: 0.0,
            median_batch_seconds: 0.0,
            median_run_seconds: 0.0,
            device_busy: None,
            switched_batch_seconds: None,
        }
    }

    #[test]
    fn a_busy_thread_is_a_core_but_never_more_than_there_are() {
        assert_eq!(infer(2, 1, 1000.0).core_seconds(4, 2), 0.002);
        assert_eq!(infer(8, 1, 1000.0).core_seconds(4, 8), 0.004);
        assert_eq!(infer(4, 1, 1000.0).core_seconds(4, 8), 0.002, "two devices share the cores");
        let two_at_once = InferFigures { streams: 2, ..infer(1, 1, 1000.0) };
        assert_eq!((two_at_once.lanes(), two_at_once.core_seconds(4, 2)), (2, 0.002));
    }

    #[test]
    fn a_session_of_several_threads_is_charged_its_cpu_time() {
        assert_eq!(infer(1, 4, 1000.0).core_seconds(4, 4), 0.003);
    }

    #[test]
    fn what_drives_a_gpu_is_charged_its_cpu_time() {
        assert_eq!(InferFigures { on_cpu: false, ..infer(1, 1, 1.0) }.core_seconds(4, 0), 0.003);
    }
}
