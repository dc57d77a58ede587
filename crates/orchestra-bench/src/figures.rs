//! What one round measures, as data. Nothing here is judged or averaged.

use std::time::Duration;

use orchestra_core::bottleneck::Bottleneck;
use orchestra_core::{DeviceId, SourceId, StageId};
use serde::{Deserialize, Serialize};

use crate::limit::divide;

/// Reading, decoding and preparing, on all cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DecodeFigures {
    /// Whose items.
    pub source: SourceId,
    /// Items, those that cannot be decoded included.
    pub items: u64,
    /// Of these, items that cannot be read or decoded.
    pub failed: u64,
    /// Threads.
    pub threads: usize,
    /// From the start of the threads to the end of the last one.
    pub elapsed: Duration,
    /// CPU time of all threads.
    pub cpu: Duration,
}

/// An infer stage on one device, with inputs ready.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct InferFigures {
    /// Which stage.
    pub stage: StageId,
    /// Where.
    pub device: DeviceId,
    /// It runs on the cores.
    pub on_cpu: bool,
    /// Worker processes.
    pub workers: usize,
    /// Threads of each one's session.
    pub threads: usize,
    /// Batches that each runs at once.
    pub streams: usize,
    /// Items of a batch.
    pub batch: usize,
    /// Batches done.
    pub batches: u64,
    /// Items per second of all of these workers.
    pub rate: f64,
    /// CPU time of the workers per item, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of all of these workers together until they were ready.
    pub start_cpu: Duration,
    /// What the first batch of this size took in the worker where it took longest: after the warm-up, as a run meets it.
    pub first_batch: Duration,
    /// What a batch took in a worker, as a median; of several workers the longest.
    pub usual_batch: Duration,
    /// What a batch took right behind one of another size, where there are several.
    pub switched_batch: Option<Duration>,
}

/// How the rate of a run was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// In its steady state.
    Steady,
    /// As a whole, start included: it was too short to have a steady state.
    Whole,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFigures {
    /// Items with an end.
    pub items: u64,
    /// Of these, items that failed.
    pub failed: u64,
    /// Items per second: of the steady state where there is one.
    pub rate: f64,
    /// Which it is.
    pub measured: Measured,
    /// From the start to the end.
    pub elapsed: Duration,
    /// From the start to the first batch that a worker finished.
    pub starting: Duration,
    /// CPU time of this process and all workers.
    pub cpu: Duration,
    /// Share of the time of all cores in which they had nothing to do, 0 to 1, over the time that `rate` is over; `None` if unknown.
    pub idle_share: Option<f64>,
    /// Share of the time of all cores that went to other programs, 0 to 1, over the whole run; `None` if unknown.
    pub others_share: Option<f64>,
    /// The part that set the pace, as the run itself sees it.
    pub bottleneck: Bottleneck,
}

impl DecodeFigures {
    /// Items per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        divide(self.items as f64, self.elapsed.as_secs_f64())
    }

    /// Core seconds per item.
    #[must_use]
    pub fn core_seconds(&self, cores: usize) -> f64 {
        divide(self.threads.min(cores) as f64, self.rate())
    }

    /// CPU time per item, in seconds.
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        divide(self.cpu.as_secs_f64(), self.items as f64)
    }
}

impl InferFigures {
    /// Cores that all of its workers together can keep busy: a batch also runs on the thread that starts it.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.workers * (self.threads + self.streams - 1)
    }

    /// Core seconds per item, if it runs on the cores. `lanes` are those of all workers of this stage on the CPU, which shared the
    /// cores while this was measured.
    #[must_use]
    pub fn core_seconds(&self, cores: usize, lanes: usize) -> f64 {
        if !self.on_cpu {
            return 0.0;
        }
        if self.threads > 1 {
            return self.cpu_seconds;
        }
        // With more batches at once, each on one thread, than cores, each has only a part of a core.
        let part = divide(cores as f64, lanes as f64).min(1.0);
        divide(self.lanes() as f64 * part, self.rate)
    }
}

impl RunFigures {
    /// Items per second from start to end, the start included.
    #[must_use]
    pub fn whole_rate(&self) -> f64 {
        divide(self.items as f64, self.elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(workers: usize, threads: usize, rate: f64) -> InferFigures {
        InferFigures {
            stage: StageId(0),
            device: DeviceId(0),
            on_cpu: true,
            workers,
            threads,
            streams: 1,
            batch: 8,
            batches: 10,
            rate,
            cpu_seconds: 0.003,
            start_cpu: Duration::ZERO,
            first_batch: Duration::ZERO,
            usual_batch: Duration::ZERO,
            switched_batch: None,
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
        assert_eq!(InferFigures { on_cpu: false, ..infer(1, 1, 1.0) }.core_seconds(4, 0), 0.0);
    }

    #[test]
    fn nothing_done_is_a_rate_of_zero() {
        let decode = DecodeFigures {
            source: SourceId(0),
            items: 0,
            failed: 0,
            threads: 2,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
        };
        assert_eq!((decode.rate(), decode.core_seconds(2), decode.cpu_seconds()), (0.0, 0.0, 0.0));
    }
}
