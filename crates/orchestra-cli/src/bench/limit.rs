//! The limit of a machine for a workflow and what sets the pace of a run, from what its parts cost. Arithmetic only.
//!
//! ```text
//! cores:     cores / (core seconds of loading an item + Σ stages on the CPU  rows per item · core seconds of a row)
//! each GPU:  1 / Σ stages on it  rows per item / rate of the stage
//! limit   =  the smallest of these
//! ```
//! Core seconds are `threads / rate`, with no more threads counted than cores.

use serde::Serialize;

/// A part with this share of the core time is what the cores are busy with.
const MOST: f64 = 0.65;
/// A run with a steady state below this part of its limit is held back by something that the limit does not hold.
const CLOSE: f64 = 0.8;

/// What runs by itself: loading, or a stage with a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PartCost {
    /// Rows of it that an item has, on average: 1 for loading.
    pub per_item: f64,
    /// Rows per second, with nothing else running.
    pub rate: f64,
    /// Threads that work on the cores; 0 on a GPU.
    pub threads: usize,
    /// The GPUs that it runs on, by their place in the plan.
    pub gpus: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitBound {
    Cores,
    /// A GPU, by its place in the plan.
    Device(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// No run of these settings can be faster for long.
    pub items_per_second: f64,
    pub bound: LimitBound,
    /// Of the core seconds of an average item, the share of loading it, 0 to 1.
    pub loading: f64,
}

/// The part that sets the pace of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    Loading,
    Inference,
    /// Both: they share the cores.
    Cpu,
    Sinks,
    /// No part is near its limit: moving items about, or batches that leave too early.
    Overhead,
}

/// The limit where items are loaded so, and go through stages that cost so much.
pub fn limit(cores: usize, loading: &PartCost, stages: &[PartCost]) -> Limit {
    let core_seconds = |load: &PartCost| load.per_item * divide(load.threads.min(cores) as f64, load.rate);
    let of_stages: f64 = stages.iter().map(core_seconds).sum();
    let all = core_seconds(loading) + of_stages;
    let mut least = (rate_of(all / cores.max(1) as f64), LimitBound::Cores);
    for &gpu in stages.iter().flat_map(|stage| &stage.gpus) {
        let here = stages.iter().filter(|stage| stage.gpus.contains(&gpu));
        let rate = rate_of(here.map(|stage| divide(stage.per_item, stage.rate)).sum());
        if rate < least.0 {
            least = (rate, LimitBound::Device(gpu));
        }
    }
    Limit { items_per_second: least.0, bound: least.1, loading: divide(core_seconds(loading), all) }
}

/// Names the part that sets the pace. A run without a steady state has no `ratio`, and is judged by its parts alone.
pub fn pace(limit: &Limit, ratio: Option<f64>, waits_for_sinks: bool) -> Pace {
    if ratio.is_some_and(|ratio| ratio < CLOSE) {
        return if waits_for_sinks { Pace::Sinks } else { Pace::Overhead };
    }
    match (limit.bound, limit.loading) {
        (LimitBound::Device(_), _) => Pace::Inference,
        (LimitBound::Cores, share) if share >= MOST => Pace::Loading,
        (LimitBound::Cores, share) if share <= 1.0 - MOST => Pace::Inference,
        (LimitBound::Cores, _) => Pace::Cpu,
    }
}

/// `a / b`, and 0 where nothing was measured.
pub fn divide(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn rate_of(seconds: f64) -> f64 {
    if seconds > 0.0 { 1.0 / seconds } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: usize = 4;

    fn on_cores(per_item: f64, core_seconds: f64) -> PartCost {
        PartCost { per_item, rate: CORES as f64 / core_seconds, threads: 8, gpus: Vec::new() }
    }

    fn on_gpus(per_item: f64, rate: f64, gpus: &[usize]) -> PartCost {
        PartCost { per_item, rate, threads: 0, gpus: gpus.into() }
    }

    fn close(limit: Limit, items_per_second: f64, bound: LimitBound) {
        let found = limit.items_per_second;
        assert!((found - items_per_second).abs() < 1e-9 * items_per_second, "{found}");
        assert_eq!(limit.bound, bound);
    }

    #[test]
    fn on_the_cpu_loading_and_all_stages_share_the_cores() {
        close(limit(CORES, &on_cores(1.0, 0.001), &[on_cores(1.0, 0.004)]), 4.0 / 0.005, LimitBound::Cores);
        let stages = [on_cores(1.0, 0.002), on_cores(20.0, 0.0001)];
        close(limit(CORES, &on_cores(1.0, 0.001), &stages), 4.0 / 0.005, LimitBound::Cores);
        let one_thread = PartCost { threads: 1, ..on_cores(1.0, 0.001) };
        close(limit(CORES, &on_cores(1.0, 0.001), &[one_thread]), 4.0 / 0.001_25, LimitBound::Cores);
    }

    #[test]
    fn on_a_gpu_the_slower_of_loading_and_the_device_counts() {
        let loading = on_cores(1.0, 0.001);
        close(limit(CORES, &loading, &[on_gpus(1.0, 900.0, &[0])]), 900.0, LimitBound::Device(0));
        close(limit(CORES, &loading, &[on_gpus(1.0, 9000.0, &[0])]), 4000.0, LimitBound::Cores);
    }

    #[test]
    fn stages_on_one_gpu_share_it() {
        let loading = on_cores(1.0, 1e-9);
        let both = [on_gpus(1.0, 900.0, &[0]), on_gpus(1.0, 450.0, &[0])];
        close(limit(CORES, &loading, &both), 300.0, LimitBound::Device(0));
        let one_each = [on_gpus(1.0, 900.0, &[0]), on_gpus(0.5, 450.0, &[1])];
        close(limit(CORES, &loading, &one_each), 900.0, LimitBound::Device(0));
    }

    #[test]
    fn what_was_not_measured_is_no_division_by_zero() {
        let nothing = PartCost { per_item: 0.0, rate: 0.0, threads: 1, gpus: vec![0] };
        let limit = limit(0, &nothing, std::slice::from_ref(&nothing));
        assert!(limit.items_per_second.is_infinite() && limit.loading == 0.0);
    }

    fn judged(loading: f64, bound: LimitBound, ratio: Option<f64>, sinks: bool) -> Pace {
        pace(&Limit { items_per_second: 1.0, bound, loading }, ratio, sinks)
    }

    #[test]
    fn the_larger_part_of_the_core_time_sets_the_pace() {
        assert_eq!(judged(0.9, LimitBound::Cores, Some(0.97), false), Pace::Loading);
        assert_eq!(judged(0.1, LimitBound::Cores, Some(0.97), false), Pace::Inference);
        assert_eq!(judged(0.5, LimitBound::Cores, Some(0.97), false), Pace::Cpu);
        assert_eq!(judged(0.9, LimitBound::Device(0), Some(0.97), false), Pace::Inference);
    }

    #[test]
    fn a_steady_run_far_below_its_limit_is_held_back_by_something_else() {
        assert_eq!(judged(0.5, LimitBound::Cores, Some(0.5), false), Pace::Overhead);
        assert_eq!(judged(0.5, LimitBound::Cores, Some(0.5), true), Pace::Sinks);
        assert_eq!(judged(0.5, LimitBound::Cores, None, true), Pace::Cpu, "too short to tell");
    }
}
