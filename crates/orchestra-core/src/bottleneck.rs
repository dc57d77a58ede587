//! Which part of a run sets its pace, from how long each part waited for another. Measures nothing itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where the time of a run went. All sums are over the threads or processes of that part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// Loaders: reading and decoding.
    pub loading: Duration,
    /// Loaders: waiting for a free row, because the models are behind.
    pub waiting_for_row: Duration,
    /// Loaders: waiting for items, because too much is in flight: the sinks are behind.
    pub waiting_for_sinks: Duration,
    /// Workers: running the model.
    pub running: Duration,
    /// Workers: there, but with nothing to run.
    pub idle: Duration,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Too little ran to tell.
    #[default]
    Unknown,
    Loading,
    Inference,
    /// Loading and models together keep every core busy (they share the CPU).
    Cpu,
    /// Neither: loaders wait for rows and workers for batches, so the time goes into handing batches over.
    Handover,
    Sinks,
}

impl Bottleneck {
    /// Judges a run. `shared_cpu` says that the models run on the same cores as the loaders.
    pub fn judge(t: TimeSpent, shared_cpu: bool) -> Self {
        let loaders = t.loading + t.waiting_for_row + t.waiting_for_sinks;
        let workers = t.running + t.idle;
        if loaders.is_zero() || (t.loading.is_zero() && t.running.is_zero()) {
            return Self::Unknown;
        }
        let share = |part: Duration, whole: Duration| {
            if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
        };
        if share(t.waiting_for_sinks, loaders) > 0.5 && share(t.idle, workers) > 0.5 {
            return Self::Sinks;
        }
        if workers.is_zero() {
            return Self::Loading;
        }
        let models_behind = share(t.waiting_for_row, loaders) > 0.3;
        let workers_hungry = share(t.idle, workers) > 0.3;
        match (models_behind, workers_hungry) {
            (true, true) => Self::Handover,
            (true, false) if !shared_cpu => Self::Inference,
            (true, false) if t.running > t.loading * 2 => Self::Inference,
            (false, true) if !shared_cpu || t.loading > t.running * 2 => Self::Loading,
            _ if shared_cpu => Self::Cpu,
            (true, false) => Self::Inference,
            (false, _) => Self::Loading,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_part_that_others_wait_for_is_named() {
        let busy_gpu = TimeSpent {
            loading: s(10),
            waiting_for_row: s(30),
            running: s(38),
            idle: s(2),
            ..TimeSpent::default()
        };
        assert_eq!(Bottleneck::judge(busy_gpu, false), Bottleneck::Inference);
        let hungry_gpu = TimeSpent { loading: s(40), running: s(10), idle: s(30), ..TimeSpent::default() };
        assert_eq!(Bottleneck::judge(hungry_gpu, false), Bottleneck::Loading);
        let one_cpu = TimeSpent {
            loading: s(20),
            waiting_for_row: s(5),
            running: s(20),
            idle: s(5),
            ..TimeSpent::default()
        };
        assert_eq!(Bottleneck::judge(one_cpu, true), Bottleneck::Cpu);
        let tiny_batches = TimeSpent {
            loading: s(10),
            waiting_for_row: s(30),
            running: s(15),
            idle: s(25),
            ..TimeSpent::default()
        };
        assert_eq!(Bottleneck::judge(tiny_batches, true), Bottleneck::Handover);
        assert_eq!(Bottleneck::judge(tiny_batches, false), Bottleneck::Handover);
        let slow_sink = TimeSpent {
            loading: s(1),
            waiting_for_sinks: s(39),
            running: s(2),
            idle: s(38),
            ..TimeSpent::default()
        };
        assert_eq!(Bottleneck::judge(slow_sink, true), Bottleneck::Sinks);
    }

    #[test]
    fn a_run_without_work_has_no_bottleneck() {
        assert_eq!(Bottleneck::judge(TimeSpent::default(), true), Bottleneck::Unknown);
    }
}
