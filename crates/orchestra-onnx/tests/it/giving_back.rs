//! Memory that a session has no use for any more goes back to the system: seen from outside, in worker processes.

use crate::common::{Process, Setup, f32s, flat, run_of, setup_of};
use orchestra_core::DType;
use orchestra_core::onnx_file::element_type;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_worker::frames::{FromWorker, RunErrorKind, ToWorker};

const MIB: u64 = 1 << 20;
/// A matrix that takes 96 MiB.
const LARGE: i64 = 24 << 20;

/// Expands one number to a matrix of the shape that its input says, and gives the mean.
fn expanding() -> Setup {
    let model = ModelBuilder::new("expanding")
        .constant("one", &[1, 1], &[1.0])
        .constant("minus_one", &[1], &[-1.0])
        .node("Cast", &["minus_one"], &["flat"], &[("to", Attribute::Int(element_type(DType::I64).into()))])
        .node("Reshape", &["x", "flat"], &["shape"], &[])
        .node("Expand", &["one", "shape"], &["wide"], &[])
        .node("ReduceMean", &["wide"], &["y"], &[("axes", Attribute::Ints(vec![0, 1]))]);
    setup_of(model, &[flat("x", DType::I64, 2)], &[flat("y", DType::F32, 1)], 1)
}

/// A worker process with a model loaded.
struct Worker<'a> {
    setup: &'a Setup,
    process: Process,
}

impl<'a> Worker<'a> {
    fn of(setup: &'a Setup) -> Worker<'a> {
        let mut process = setup.spawn();
        let loaded = process.load(&setup.load_frame());
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        Worker { setup, process }
    }

    /// Memory that the process has for itself, in bytes: neither the arena that it shares with us nor pages of libraries, of which the kernel maps
    /// more or fewer.
    fn holds(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    fn run(&mut self) -> FromWorker {
        self.process.send(ToWorker::Run(run_of(1, 0, 0, 1)));
        self.process.next().unwrap()
    }

    /// Has a matrix of so many numbers made.
    fn expand(&mut self, numbers: i64) -> FromWorker {
        self.setup.fill_input(0, 0, 0, &[[1, numbers].map(i64::to_ne_bytes).concat()]);
        self.run()
    }

    fn expand_well(&mut self, numbers: i64) {
        let answer = self.expand(numbers);
        assert!(matches!(answer, FromWorker::Done { .. }), "{answer:?}");
    }
}

#[test]
fn the_first_run_after_one_that_did_not_fit_gives_back_what_lies_idle() {
    let setup = expanding();
    let mut worker = Worker::of(&setup);
    let before = worker.holds();
    worker.expand_well(LARGE);
    worker.expand_well(5);
    assert!(worker.holds() > before + 80 * MIB, "the arena keeps what a batch needed for the next one");
    let answer = worker.expand(1 << 50);
    assert!(matches!(answer, FromWorker::Failed { kind: RunErrorKind::OutOfMemory, .. }), "{answer:?}");
    worker.expand_well(5);
    assert!(worker.holds() < before + 32 * MIB, "{} MiB more", (worker.holds() - before) / MIB);
}

#[test]
fn on_the_cpu_a_session_takes_no_more_than_its_ceiling() {
    let mut setup = expanding();
    Worker::of(&setup).expand_well(LARGE);
    setup.spec.memory_limit = Some(64 * MIB);
    let mut worker = Worker::of(&setup);
    worker.expand_well(1 << 20);
    let answer = worker.expand(LARGE);
    assert!(matches!(answer, FromWorker::Failed { kind: RunErrorKind::OutOfMemory, .. }), "{answer:?}");
    worker.expand_well(1 << 20);
}

/// The bytes of memory that the kernel lets a process have for itself; `None`: no bound.
fn bound_of(pid: &str) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max data size")).unwrap();
    line.split_whitespace().next().unwrap().parse().ok()
}

#[test]
fn a_worker_on_the_cpu_has_a_bound_of_the_kernel_where_its_model_has_a_limit_and_only_there() {
    let mut setup = expanding();
    let of_worker = |setup: &Setup| bound_of(&Worker::of(setup).process.pid().to_string());
    assert_eq!(of_worker(&setup), bound_of("self"));
    setup.spec.memory_limit = Some(64 * MIB);
    let small = of_worker(&setup).unwrap();
    assert!((64 * MIB..1024 * MIB).contains(&small), "{small} bytes");
    setup.spec.memory_limit = Some(1064 * MIB);
    let large = of_worker(&setup).unwrap();
    assert!(large.abs_diff(small).abs_diff(1000 * MIB) < 16 * MIB, "{small} bytes, then {large}");
}

#[test]
fn a_warm_up_that_does_not_fit_is_halved_until_it_does() {
    let mut setup = wide();
    setup.spec.memory_limit = Some(64 * MIB);
    setup.load.padded_to = Some(96);
    let mut process = setup.spawn();
    let loaded = process.load(&setup.load_frame());
    let FromWorker::Loaded { warmed, .. } = loaded else { panic!("{loaded:?}") };
    assert!([48, 24, 12].contains(&warmed), "{warmed} rows were warmed up");
    // It is padded to what does not fit, then to half of it, then runs as it is, or not at all: the answer is right.
    for id in 0..3 {
        setup.fill_input(0, 0, 0, &[f32s(&[0.0]), f32s(&[1.0])]);
        process.send(ToWorker::Run(run_of(id, 0, 0, 2)));
        let answer = process.next().unwrap();
        assert!(matches!(answer, FromWorker::Done { .. }), "{answer:?}");
    }
}

/// A model that needs a megabyte or more of its own for each of up to 96 rows.
fn wide() -> Setup {
    let wide = vec![1.0; 1 << 18];
    let model = ModelBuilder::new("wide")
        .constant("ones", &[1, 1 << 18], &wide)
        .node("Mul", &["x", "ones"], &["wide"], &[])
        .node("Exp", &["wide"], &["exp"], &[])
        .node("ReduceMean", &["exp"], &["y"], &[("axes", Attribute::Ints(vec![1]))]);
    setup_of(model, &[flat("x", DType::F32, 1)], &[flat("y", DType::F32, 1)], 96)
}
