//! What the workers of pipelines take of a device that they share.

use std::collections::BTreeMap;

use orchestra_core::WorkerId;

use super::*;

const DEVICE: DeviceId = DeviceId(0);
const LEFT: StageId = StageId(1);
const RIGHT: [StageId; 2] = [StageId(3), StageId(4)];

/// Pipeline 0 has one stage on the device, pipeline 2 two.
struct Place {
    shares: Shares,
    worker_bytes: BTreeMap<StageId, u64>,
    now: Duration,
}

impl Place {
    fn new() -> Self {
        let stages = [(LEFT, PipelineId(0)), (RIGHT[0], PipelineId(2)), (RIGHT[1], PipelineId(2))];
        Self { shares: Shares::new(DEVICE, &stages), worker_bytes: BTreeMap::new(), now: Duration::ZERO }
    }

    fn knows(&mut self, stage: StageId, worker_bytes: u64) {
        self.worker_bytes.insert(stage, worker_bytes);
    }

    /// A second later.
    fn look(&mut self, workers: &[WorkerUse]) -> [PipelineUse; 2] {
        self.now += Duration::from_secs(1);
        let cpu_times: Vec<_> = workers.iter().map(|w| (w.stage, w.cpu_time)).collect();
        let worker_bytes = |stage| self.worker_bytes.get(&stage).copied();
        self.shares.look(&Look {
            workers,
            cpu_times: &cpu_times,
            worker_bytes: &worker_bytes,
            now: self.now,
        });
        let all = self.shares.usages();
        all.try_into().unwrap_or_else(|all: Vec<PipelineUse>| panic!("two pipelines: {all:?}"))
    }
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
fn memory_is_that_of_the_workers_of_the_pipeline_and_the_most_of_it_stays() {
    let mut place = Place::new();
    let all =
        [worker(LEFT, 10, Some(4), 0), worker(RIGHT[0], 20, Some(5), 0), worker(RIGHT[1], 30, Some(6), 0)];
    let [left, right] = place.look(&all);
    assert_eq!((left.latest.memory, right.latest.memory), (10, 50));
    assert_eq!((left.latest.gpu_memory, right.latest.gpu_memory), (Some(4), Some(11)));
    let [left, right] = place.look(&all[..1]);
    assert_eq!((left.latest.gpu_memory, right.latest.gpu_memory), (Some(4), None));
    assert_eq!((right.latest.memory, right.memory_max, right.gpu_memory_max), (0, Some(50), Some(11)));
}

#[test]
fn where_the_driver_does_not_count_what_is_known_stands_for_it_and_half_of_it_for_nothing() {
    for counted in [None, Some(0)] {
        let mut place = Place::new();
        let workers = [worker(RIGHT[0], 1, counted, 0), worker(RIGHT[1], 1, counted, 0)];
        place.knows(RIGHT[0], 100);
        assert_eq!(place.look(&workers)[1].latest.gpu_memory, None);
        place.knows(RIGHT[1], 11);
        assert_eq!(place.look(&workers)[1].latest.gpu_memory, Some(111));
    }
}

#[test]
fn where_the_driver_counts_a_worker_that_holds_nothing_yet_hides_no_other() {
    let mut place = Place::new();
    let workers = [worker(RIGHT[0], 1, Some(7), 0), worker(RIGHT[1], 1, None, 0)];
    place.knows(RIGHT[1], 11);
    assert_eq!(place.look(&workers)[1].latest.gpu_memory, Some(7));
}

#[test]
fn cores_are_time_on_them_by_the_time_between_looks() {
    let mut place = Place::new();
    let [first, _] = place.look(&[worker(LEFT, 1, None, 700)]);
    assert_eq!(first.latest.cores, None);
    let [second, _] = place.look(&[worker(LEFT, 1, None, 2_200)]);
    near(second.latest.cores, 1.5);
    // A look right behind another one would divide by next to nothing.
    place.now -= Duration::from_millis(999);
    let [third, _] = place.look(&[worker(LEFT, 1, None, 2_300)]);
    near(third.latest.cores, 1.5);
    assert_eq!(third.cpu_time, Some(Duration::from_millis(2_300)));
}
