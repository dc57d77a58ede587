//! How what a device does is divided among the pipelines that share it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use orchestra_core::WorkerId;

use super::*;

const DEVICE: DeviceId = DeviceId(0);
const LEFT: StageId = StageId(1);
const RIGHT: [StageId; 2] = [StageId(3), StageId(4)];

/// Pipeline 0 has one stage on the device, pipeline 2 two.
struct Place {
    shares: Shares,
    whole: DeviceUse,
    facts: RefCell<BTreeMap<StageId, StageFacts>>,
    now: Duration,
}

impl Place {
    fn new() -> Self {
        let stages = [(LEFT, PipelineId(0)), (RIGHT[0], PipelineId(2)), (RIGHT[1], PipelineId(2))];
        let shares = Shares::new(DEVICE, &stages);
        Self { shares, whole: DeviceUse::default(), facts: RefCell::default(), now: Duration::ZERO }
    }

    /// Sessions of a stage ran for so long.
    fn ran(&self, stage: StageId, ms: u64) {
        self.facts.borrow_mut().entry(stage).or_default().ran += Duration::from_millis(ms);
    }

    fn knows(&self, stage: StageId, worker_bytes: u64) {
        self.facts.borrow_mut().entry(stage).or_default().worker_bytes = Some(worker_bytes);
    }

    /// A second later.
    fn look(&mut self, gpu: Option<&Gpu>, workers: &[WorkerUse]) -> [PipelineUse; 2] {
        self.now += Duration::from_secs(1);
        let cpu_times: Vec<_> = workers.iter().map(|w| (w.stage, w.cpu_time)).collect();
        let facts = |stage| self.facts.borrow().get(&stage).copied().unwrap_or_default();
        self.shares.look(&Look { gpu, workers, cpu_times: &cpu_times, facts: &facts, now: self.now });
        let all = self.shares.usages(&self.whole);
        all.try_into().unwrap_or_else(|all: Vec<PipelineUse>| panic!("two pipelines: {all:?}"))
    }
}

fn gpu(percent: u8, watts: u32) -> Gpu {
    Gpu { utilization: Some(percent), power_mw: Some(watts * 1000), ..Gpu::default() }
}

fn worker(stage: StageId, resident: u64, gpu_memory: Option<u64>, cpu_ms: u64) -> WorkerUse {
    WorkerUse {
        worker: WorkerId(u32::from(stage.0)),
        stage,
        device: DEVICE,
        pid: 1,
        resident_bytes: resident,
        cpu_time: Duration::from_millis(cpu_ms),
        gpu_memory,
    }
}

fn near(left: Option<f64>, right: f64) {
    assert!(left.is_some_and(|left| (left - right).abs() < 1e-9), "{left:?}, not {right}");
}

#[test]
fn a_gpu_is_shared_out_by_the_time_in_which_sessions_ran() {
    let mut place = Place::new();
    let before = place.look(Some(&gpu(10, 100)), &[]);
    near(before[0].latest.utilization, 0.05);
    near(before[1].latest.power_watts, 50.0);
    place.ran(LEFT, 100);
    place.ran(RIGHT[0], 200);
    place.ran(RIGHT[1], 100);
    let [left, right] = place.look(Some(&gpu(80, 200)), &[]);
    near(left.latest.utilization, 0.2);
    near(right.latest.utilization, 0.6);
    near(left.latest.power_watts, 50.0);
    near(right.latest.power_watts, 150.0);
    // No batch was done meanwhile: as before.
    let [left, _] = place.look(Some(&gpu(40, 200)), &[]);
    near(left.latest.utilization, 0.1);
    // What was long ago is forgotten.
    for _ in 0..60 {
        place.ran(LEFT, 100);
        place.look(Some(&gpu(40, 200)), &[]);
    }
    let [left, right] = place.look(Some(&gpu(40, 200)), &[]);
    assert!(
        left.latest.utilization > Some(0.39) && right.latest.utilization < Some(0.01),
        "{left:?} {right:?}"
    );
}

#[test]
fn the_parts_are_the_whole_whatever_ran() {
    let mut place = Place::new();
    place.whole = DeviceUse { utilization_mean: Some(0.7), power_mean_watts: Some(90.0), ..place.whole };
    for step in 0..50_u64 {
        place.ran(LEFT, step * 7 % 5);
        place.ran(RIGHT[0], step * 3 % 4);
        place.ran(RIGHT[1], step % 2);
        let (percent, watts) = ((step * 13 % 101) as u8, 50 + step as u32);
        let both = place.look(Some(&gpu(percent, watts)), &[]);
        let sum = |of: fn(&PipelineUse) -> Option<f64>| both.iter().map(of).sum::<Option<f64>>();
        near(sum(|usage| usage.latest.utilization), f64::from(percent) / 100.0);
        near(sum(|usage| usage.latest.power_watts), f64::from(watts));
        near(sum(|usage| usage.utilization_mean), 0.7);
        near(sum(|usage| usage.power_mean_watts), 90.0);
    }
}

#[test]
fn long_batches_count_as_much_as_many_short_ones() {
    let mut place = Place::new();
    place.whole.utilization_mean = Some(1.0);
    let mut least: f64 = 1.0;
    for second in 1..=90 {
        place.ran(RIGHT[0], 1_000);
        if second % 3 == 0 {
            place.ran(LEFT, 3_000);
        }
        let [left, _] = place.look(Some(&gpu(100, 100)), &[]);
        if second > 30 {
            least = least.min(left.latest.utilization.unwrap());
        }
    }
    let [left, right] = place.look(None, &[]);
    near(left.utilization_mean, 0.5);
    near(right.utilization_mean, 0.5);
    assert!(least > 0.4, "{least}");
}

#[test]
fn a_pipeline_alone_has_the_whole_device() {
    let mut shares = Shares::new(DEVICE, &[(LEFT, PipelineId(5))]);
    let (facts, gpu) = (|_| StageFacts::default(), gpu(33, 70));
    shares.look(&Look { gpu: Some(&gpu), workers: &[], cpu_times: &[], facts: &facts, now: Duration::ZERO });
    let whole = DeviceUse { power_mean_watts: Some(71.0), ..DeviceUse::default() };
    let usage = shares.usages(&whole)[0];
    near(usage.latest.utilization, 0.33);
    near(usage.power_mean_watts, 71.0);
    assert_eq!((usage.pipeline, usage.device, usage.utilization_mean), (PipelineId(5), DEVICE, None));
}

#[test]
fn a_look_that_sees_no_gpu_says_nothing_of_it() {
    let mut place = Place::new();
    place.look(Some(&gpu(10, 100)), &[]);
    let [left, _] = place.look(None, &[]);
    assert_eq!((left.latest.utilization, left.latest.power_watts), (None, None));
    assert_eq!((left.utilization_mean, left.memory_max, left.cpu_time), (None, None, None));
}

#[test]
fn memory_is_that_of_the_workers_of_the_pipeline_and_the_most_of_it_stays() {
    let mut place = Place::new();
    let all =
        [worker(LEFT, 10, Some(4), 0), worker(RIGHT[0], 20, Some(5), 0), worker(RIGHT[1], 30, Some(6), 0)];
    let [left, right] = place.look(None, &all);
    assert_eq!((left.latest.memory, right.latest.memory), (10, 50));
    assert_eq!((left.latest.gpu_memory, right.latest.gpu_memory), (Some(4), Some(11)));
    let [left, right] = place.look(None, &all[..1]);
    assert_eq!((left.latest.gpu_memory, right.latest.gpu_memory), (Some(4), None));
    assert_eq!((right.latest.memory, right.memory_max, right.gpu_memory_max), (0, Some(50), Some(11)));
}

#[test]
fn where_the_driver_does_not_count_what_is_known_stands_for_it_and_half_of_it_for_nothing() {
    for counted in [None, Some(0)] {
        let mut place = Place::new();
        let workers = [worker(RIGHT[0], 1, counted, 0), worker(RIGHT[1], 1, counted, 0)];
        place.knows(RIGHT[0], 100);
        assert_eq!(place.look(None, &workers)[1].latest.gpu_memory, None);
        place.knows(RIGHT[1], 11);
        assert_eq!(place.look(None, &workers)[1].latest.gpu_memory, Some(111));
    }
}

#[test]
fn where_the_driver_counts_a_worker_that_holds_nothing_yet_hides_no_other() {
    let mut place = Place::new();
    let workers = [worker(RIGHT[0], 1, Some(7), 0), worker(RIGHT[1], 1, None, 0)];
    place.knows(RIGHT[1], 11);
    assert_eq!(place.look(None, &workers)[1].latest.gpu_memory, Some(7));
}

#[test]
fn cores_are_time_on_them_by_the_time_between_looks() {
    let mut place = Place::new();
    let [first, _] = place.look(None, &[worker(LEFT, 1, None, 700)]);
    assert_eq!(first.latest.cores, None);
    let [second, _] = place.look(None, &[worker(LEFT, 1, None, 2_200)]);
    near(second.latest.cores, 1.5);
    // A look right behind another one would divide by next to nothing.
    place.now -= Duration::from_millis(999);
    let [third, _] = place.look(None, &[worker(LEFT, 1, None, 2_300)]);
    near(third.latest.cores, 1.5);
    assert_eq!(third.cpu_time, Some(Duration::from_millis(2_300)));
}
