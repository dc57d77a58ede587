//! The limit of a machine for a workflow and what sets the pace of a run, from what its parts cost. Arithmetic only. The formula stands at
//! the top of the crate.

use serde::Serialize;

use crate::stats::divide;

/// A part with this share of the core time is what the cores are busy with.
const MOST: f64 = 0.65;
/// A run with a steady state below this part of its limit is held back by something that the limit does not hold.
const CLOSE: f64 = 0.8;

/// What an average item costs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loads {
    pub cores: usize,
    /// Core seconds that reading, decoding and preparing an average item takes.
    pub decode_seconds: f64,
    pub stages: Vec<StageLoad>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageLoad {
    /// Share of all items that go through it, 0 to 1.
    pub weight: f64,
    pub devices: Vec<DeviceLoad>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLoad {
    /// The device, by its place in the plan.
    pub device: usize,
    /// It runs on the cores that also decode.
    pub on_cpu: bool,
    /// Items per second of all of its workers there, with nothing else running.
    pub rate: f64,
    /// Core seconds per item: of computing on the CPU, of driving a GPU.
    pub core_seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    Cores,
    /// A GPU, by its place in the plan.
    Device(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// No run of these settings can be faster for long.
    pub items_per_second: f64,
    pub bound: Bound,
    /// Core seconds of an average item: reading, decoding, preparing.
    pub decode_seconds: f64,
    /// Core seconds of an average item: inference on the CPU.
    pub infer_seconds: f64,
    /// Core seconds of an average item: driving GPUs.
    pub drive_seconds: f64,
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

impl StageLoad {
    /// Items per second on all devices together.
    fn rate(&self) -> f64 {
        self.devices.iter().map(|d| d.rate).sum()
    }

    /// Core seconds that an item of this stage takes, on average; `on_cpu`: of those that the CPU computes.
    fn core_seconds(&self, on_cpu: bool) -> f64 {
        let rate = self.rate();
        let devices = self.devices.iter().filter(|d| d.on_cpu == on_cpu);
        devices.map(|d| divide(d.rate, rate) * d.core_seconds).sum()
    }
}

impl Loads {
    pub fn limit(&self) -> Limit {
        let seconds = |on_cpu| -> f64 { self.stages.iter().map(|s| s.weight * s.core_seconds(on_cpu)).sum() };
        let (infer_seconds, drive_seconds) = (seconds(true), seconds(false));
        let all_seconds = self.decode_seconds + infer_seconds + drive_seconds;
        let cores = rate_of(all_seconds / self.cores.max(1) as f64);
        let of_device = |device: usize| {
            let here = self.stages.iter().filter(|s| s.devices.iter().any(|d| d.device == device));
            (rate_of(here.map(|s| divide(s.weight, s.rate())).sum()), Bound::Device(device))
        };
        let gpus =
            self.stages.iter().flat_map(|s| &s.devices).filter(|d| !d.on_cpu).map(|d| of_device(d.device));
        let all = std::iter::once((cores, Bound::Cores)).chain(gpus);
        let least = all.min_by(|(a, x), (b, y)| a.total_cmp(b).then(x.cmp(y)));
        let (items_per_second, bound) = least.unwrap_or((cores, Bound::Cores));
        Limit { items_per_second, bound, decode_seconds: self.decode_seconds, infer_seconds, drive_seconds }
    }
}

/// Names the part that sets the pace. A run without a steady state has no `ratio`, and is judged by its parts alone.
pub fn pace(limit: &Limit, ratio: Option<f64>, waits_for_sinks: bool) -> Pace {
    if ratio.is_some_and(|ratio| ratio < CLOSE) {
        return if waits_for_sinks { Pace::Sinks } else { Pace::Overhead };
    }
    if let Bound::Device(_) = limit.bound {
        return Pace::Inference;
    }
    let workers = limit.infer_seconds + limit.drive_seconds;
    match divide(limit.decode_seconds, limit.decode_seconds + workers) {
        share if share >= MOST => Pace::Loading,
        share if share <= 1.0 - MOST => Pace::Inference,
        _ => Pace::Cpu,
    }
}

fn rate_of(seconds: f64) -> f64 {
    if seconds > 0.0 { 1.0 / seconds } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(rate: f64, core_seconds: f64) -> DeviceLoad {
        DeviceLoad { device: 0, on_cpu: true, rate, core_seconds }
    }

    fn gpu(device: usize, rate: f64) -> DeviceLoad {
        DeviceLoad { device, on_cpu: false, rate, core_seconds: 0.0 }
    }

    fn loads(decode_seconds: f64, stages: Vec<(f64, Vec<DeviceLoad>)>) -> Loads {
        let stages = stages.into_iter().map(|(weight, devices)| StageLoad { weight, devices }).collect();
        Loads { cores: 4, decode_seconds, stages }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn on_the_cpu_decoding_and_inference_share_the_cores() {
        let limit = loads(0.001, vec![(1.0, vec![cpu(1000.0, 0.004)])]).limit();
        close(limit.items_per_second, 4.0 / 0.005);
        assert_eq!(limit.bound, Bound::Cores);
    }

    #[test]
    fn on_a_gpu_the_slower_of_decoding_and_the_device_counts() {
        let slow = loads(0.001, vec![(1.0, vec![gpu(0, 900.0)])]).limit();
        close(slow.items_per_second, 900.0);
        assert_eq!(slow.bound, Bound::Device(0));
        let fast = loads(0.001, vec![(1.0, vec![gpu(0, 9000.0)])]).limit();
        close(fast.items_per_second, 4000.0);
        assert_eq!(fast.bound, Bound::Cores);
    }

    #[test]
    fn what_drives_a_gpu_is_missing_to_decoding() {
        let driven = DeviceLoad { core_seconds: 0.000_25, ..gpu(0, 9000.0) };
        let limit = loads(0.001, vec![(1.0, vec![driven])]).limit();
        close(limit.items_per_second, 4.0 / 0.001_25);
        assert_eq!((limit.bound, limit.infer_seconds), (Bound::Cores, 0.0), "no core computes it");
        assert_eq!(pace(&limit, Some(0.97), false), Pace::Loading);
        let most = DeviceLoad { core_seconds: 0.003, ..gpu(0, 9000.0) };
        let limit = loads(0.001, vec![(1.0, vec![most])]).limit();
        assert_eq!((limit.bound, pace(&limit, Some(0.97), false)), (Bound::Cores, Pace::Inference));
    }

    #[test]
    fn several_gpus_add_up_and_stages_on_one_gpu_share_it() {
        let two = loads(0.0, vec![(1.0, vec![gpu(0, 900.0), gpu(1, 300.0)])]).limit();
        close(two.items_per_second, 1200.0);
        let both_on_one = loads(0.0, vec![(1.0, vec![gpu(0, 900.0)]), (1.0, vec![gpu(0, 450.0)])]).limit();
        close(both_on_one.items_per_second, 300.0);
        let one_each = loads(0.0, vec![(1.0, vec![gpu(0, 900.0)]), (1.0, vec![gpu(1, 450.0)])]).limit();
        close(one_each.items_per_second, 450.0);
        assert_eq!(one_each.bound, Bound::Device(1));
    }

    #[test]
    fn a_stage_that_a_part_of_the_items_goes_through_costs_that_part() {
        let limit = loads(0.0, vec![(0.25, vec![gpu(0, 500.0)]), (0.75, vec![gpu(1, 3000.0)])]).limit();
        close(limit.items_per_second, 2000.0);
        let on_cores = loads(0.001, vec![(0.5, vec![cpu(2000.0, 0.002)])]).limit();
        close(on_cores.items_per_second, 4.0 / 0.002);
    }

    #[test]
    fn branches_on_the_cpu_all_cost_core_time() {
        let branches = vec![(1.0, vec![cpu(2000.0, 0.002)]), (1.0, vec![cpu(4000.0, 0.001)])];
        let limit = loads(0.001, branches).limit();
        close(limit.items_per_second, 4.0 / 0.004);
        close(limit.infer_seconds, 0.003);
    }

    #[test]
    fn a_stage_on_gpu_and_cpu_spreads_in_proportion() {
        let stage = vec![(1.0, vec![gpu(1, 3000.0), cpu(1000.0, 0.004)])];
        let limit = loads(0.001, stage).limit();
        close(limit.infer_seconds, 0.001);
        close(limit.items_per_second, 4.0 / 0.002);
    }

    #[test]
    fn nothing_measured_is_no_division_by_zero() {
        let limit = Loads::default().limit();
        assert!(limit.items_per_second.is_infinite() && limit.infer_seconds == 0.0);
        assert!(loads(0.0, vec![(1.0, vec![])]).limit().items_per_second.is_infinite());
    }

    fn judged(
        decode_seconds: f64,
        infer_seconds: f64,
        bound: Bound,
        ratio: Option<f64>,
        sinks: bool,
    ) -> Pace {
        let items_per_second = 4.0 / (decode_seconds + infer_seconds);
        let drive_seconds = 0.0;
        pace(&Limit { items_per_second, bound, decode_seconds, infer_seconds, drive_seconds }, ratio, sinks)
    }

    #[test]
    fn the_larger_part_of_the_core_time_sets_the_pace() {
        assert_eq!(judged(0.009, 0.001, Bound::Cores, Some(0.97), false), Pace::Loading);
        assert_eq!(judged(0.001, 0.009, Bound::Cores, Some(0.97), false), Pace::Inference);
        assert_eq!(judged(0.005, 0.005, Bound::Cores, Some(0.97), false), Pace::Cpu);
        assert_eq!(judged(0.005, 0.0, Bound::Device(0), Some(0.97), false), Pace::Inference);
    }

    #[test]
    fn a_steady_run_far_below_its_limit_is_held_back_by_something_else() {
        assert_eq!(judged(0.005, 0.005, Bound::Cores, Some(0.5), false), Pace::Overhead);
        assert_eq!(judged(0.005, 0.005, Bound::Cores, Some(0.5), true), Pace::Sinks);
        assert_eq!(judged(0.005, 0.005, Bound::Cores, None, true), Pace::Cpu, "too short to tell");
    }
}
