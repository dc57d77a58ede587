//! The limit of a machine for a workflow, from what its parts cost. Arithmetic only: it measures nothing. The formula is explained at the
//! top of the crate.

use serde::Serialize;

/// What an average item costs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loads {
    /// Cores of the machine.
    pub cores: usize,
    /// Core seconds that reading, decoding and preparing an average item takes.
    pub decode_seconds: f64,
    /// The infer stages.
    pub stages: Vec<StageLoad>,
}

/// An infer stage.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageLoad {
    /// Share of all items that go through it, 0 to 1.
    pub weight: f64,
    /// Where it runs.
    pub devices: Vec<DeviceLoad>,
}

/// An infer stage on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLoad {
    /// Which device, by its place in the plan.
    pub device: usize,
    /// It runs on the cores that also decode.
    pub on_cpu: bool,
    /// Items per second of all of its workers there, with nothing else running.
    pub rate: f64,
    /// Core seconds per item; counts only on the CPU.
    pub core_seconds: f64,
}

/// What bounds a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The cores.
    Cores,
    /// A GPU, by its place in the plan.
    Device(usize),
}

/// The limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// No run of these settings can be faster for long.
    pub items_per_second: f64,
    /// Why not.
    pub bound: Bound,
    /// Core seconds of an average item: reading, decoding, preparing.
    pub decode_seconds: f64,
    /// Core seconds of an average item: inference on the CPU.
    pub infer_seconds: f64,
    /// What the cores alone would allow.
    pub cores_items_per_second: f64,
    /// What the slowest GPU alone would allow; infinite without one.
    pub devices_items_per_second: f64,
}

impl StageLoad {
    /// Items per second on all devices together.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.devices.iter().map(|d| d.rate).sum()
    }

    /// Core seconds that an item of this stage takes on the CPU, on average.
    #[must_use]
    pub fn core_seconds(&self) -> f64 {
        let rate = self.rate();
        let on_cpu = self.devices.iter().filter(|d| d.on_cpu);
        on_cpu.map(|d| divide(d.rate, rate) * d.core_seconds).sum()
    }
}

impl Loads {
    /// See the top of the crate.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let infer_seconds = self.stages.iter().map(|s| s.weight * s.core_seconds()).sum();
        let cores_items_per_second =
            rate_of((self.decode_seconds + infer_seconds) / self.cores.max(1) as f64);
        let mut bound = Bound::Cores;
        let mut limit = cores_items_per_second;
        let mut devices_items_per_second = f64::INFINITY;
        for device in self.gpus() {
            let seconds = self.stages.iter().filter(|s| s.devices.iter().any(|d| d.device == device));
            let rate = rate_of(seconds.map(|s| divide(s.weight, s.rate())).sum());
            devices_items_per_second = devices_items_per_second.min(rate);
            if rate < limit {
                (limit, bound) = (rate, Bound::Device(device));
            }
        }
        Limit {
            items_per_second: limit,
            bound,
            decode_seconds: self.decode_seconds,
            infer_seconds,
            cores_items_per_second,
            devices_items_per_second,
        }
    }

    fn gpus(&self) -> Vec<usize> {
        let all = self.stages.iter().flat_map(|s| &s.devices).filter(|d| !d.on_cpu);
        let mut gpus: Vec<usize> = all.map(|d| d.device).collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus
    }
}

/// `a / b`, and nothing where there is nothing.
pub(crate) fn divide(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
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
        assert!(limit.devices_items_per_second.is_infinite());
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
        close(limit.devices_items_per_second, 4000.0);
    }

    #[test]
    fn nothing_measured_is_no_division_by_zero() {
        let limit = Loads::default().limit();
        assert!(limit.items_per_second.is_infinite() && limit.infer_seconds == 0.0);
        assert!(loads(0.0, vec![(1.0, vec![])]).limit().items_per_second.is_infinite());
    }
}
