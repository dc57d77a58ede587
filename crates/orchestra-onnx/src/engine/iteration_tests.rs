//! Loops on the CPU, and on a GPU whose memory is the host's: what is copied between rounds, and that the values are those of plain arithmetic.

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::iteration::{Feed, Until};
use orchestra_core::{BatchId, DType, OutputSlotId, ReadOutput, SessionTuning, SlotId};
use orchestra_testkit::models;
use orchestra_worker::arena::{Arena, SharedMemory};
use orchestra_worker::engine::Engine;
use orchestra_worker::frames::Load;
use orchestra_worker::output_region::OutputRegion;

use super::super::cuda_runtime::fake;
use super::super::{OnnxEngine, OnnxSpec};
use super::*;
use crate::digest::model_digest;
use crate::library::{Env, Flavor, LibraryRequest, Silent, find_or_fetch};

const MAX_ROWS: usize = 8;

/// An engine for Newton's square root, with the parent's side of its arena.
struct Loops {
    engine: OnnxEngine,
    of: Iteration,
    arena: Arena,
    outputs: OutputRegion,
}

fn newton(rounds: u32, until: Option<f64>) -> Iteration {
    let until = until.map(|below| Until { output: 1, below, or_equal: false });
    let feed = vec![Feed { output: 0, input: 0 }];
    Iteration { rounds, feed, each: Vec::new(), collect: Vec::new(), until }
}

/// The same loop in plain arithmetic: root, residual and rounds.
fn plain(a: f32, of: &Iteration) -> (f32, f32, i64) {
    let (mut x, mut residual) = (a, f32::NAN);
    for round in 1..=of.rounds {
        x = (x + a / x) * 0.5;
        residual = (x * x - a).abs();
        if of.until.is_some_and(|until| f64::from(residual) < until.below) {
            return (x, residual, i64::from(round));
        }
    }
    (x, residual, i64::from(of.rounds))
}

impl Loops {
    fn load(of: Iteration, padded_to: Option<usize>) -> Loops {
        let folder = tempfile::tempdir().unwrap();
        let model = models::newton(folder.path(), 0).unwrap();
        let row = |name: &str| models::spec(name, DType::F32, &[1]);
        let inputs = [row("x"), row("a")];
        let outputs = [row("next"), row("residual"), Iteration::rounds_output()];
        let layout = BatchLayout::new(&inputs, &outputs, MAX_ROWS, 1).unwrap();
        let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: false };
        let spec = OnnxSpec {
            library: find_or_fetch(&request, &Env::from_process(), &mut Silent).unwrap().path,
            digest: model_digest(&model).unwrap(),
            model,
            tuning: SessionTuning::default(),
            pixel_inputs: vec![None, None],
            outputs: outputs[..2].iter().cloned().map(ReadOutput::rows).collect(),
            iteration: Some(of.clone()),
            ..OnnxSpec::default()
        };
        let load = Load {
            spec: spec.encode().unwrap(),
            device: DeviceKind::Cpu,
            threads: 1,
            streams: 1,
            padded_to,
            layout: layout.clone(),
            answer_bytes: 0,
        };
        let arena = Arena::create("loops", layout.clone()).unwrap();
        let outputs = OutputRegion::create("loops", layout.clone()).unwrap();
        let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() };
        let memory = WorkerArena::map(memory.try_clone_to_owned().unwrap(), layout).unwrap();
        let mut engine = OnnxEngine::new();
        engine.load(&load, memory).unwrap();
        Loops { engine, of, arena, outputs }
    }

    /// Believes in a GPU from now on.
    fn on_a_gpu(mut self) -> Loops {
        let serving = self.engine.streams.first_mut().unwrap();
        let place = LoopDevice { device: AllocationDevice::CPU, cuda: Some(fake::RUNTIME) };
        serving.iterated = Some(IteratedSession { iteration: self.of.clone(), place, memory: None });
        self
    }

    fn output(&self, output: usize, first: usize, rows: usize) -> Vec<u8> {
        self.outputs.rows(OutputSlotId(0), output, first, rows).unwrap().to_vec()
    }

    fn run(&mut self, first: usize, rows: usize) {
        let (slot, output_slot) = (SlotId(0), OutputSlotId(0));
        let run = BatchRun { batch: BatchId(1), attempt: 1, slot, output_slot, first_row: first, rows };
        self.engine.run(&run, &[], &mut RunTiming::default()).unwrap();
    }

    /// Runs the square roots of these numbers, and checks them.
    fn check(&mut self, first: usize, numbers: &[f32]) {
        let places = first..first + numbers.len();
        // SAFETY: here and below, no run is on its way.
        let write = |input: usize, row: usize, bytes: &[u8]| unsafe {
            self.arena.input_rows_mut(SlotId(0), input, row, 1).copy_from_slice(bytes);
        };
        for (row, number) in places.clone().zip(numbers) {
            write(0, row, &number.to_ne_bytes());
            write(1, row, &number.to_ne_bytes());
        }
        self.run(first, numbers.len());
        // There are many bits that are no number.
        let bits = |value: f32| if value.is_nan() { u32::MAX } else { value.to_bits() };
        let f32s = |output| -> Vec<u32> {
            let bytes = self.output(output, first, numbers.len());
            bytes.as_chunks().0.iter().map(|b| bits(f32::from_ne_bytes(*b))).collect()
        };
        let rounds = self.output(2, first, numbers.len());
        let rounds: Vec<i64> = rounds.as_chunks().0.iter().map(|b| i64::from_ne_bytes(*b)).collect();
        let expected: Vec<_> = numbers.iter().map(|number| plain(*number, &self.of)).collect();
        assert_eq!(f32s(0), expected.iter().map(|(x, ..)| bits(*x)).collect::<Vec<_>>());
        assert_eq!(f32s(1), expected.iter().map(|(_, r, _)| bits(*r)).collect::<Vec<_>>());
        assert_eq!(rounds, expected.iter().map(|(.., n)| *n).collect::<Vec<_>>());
    }
}

const NUMBERS: [f32; MAX_ROWS] = [2.0, 1e6, 1.0, 0.25, 3e-4, 1e9, 144.0, 7.5];

#[test]
fn rows_end_after_their_own_rounds_with_the_bits_of_plain_arithmetic() {
    for until in [None, Some(1e-3), Some(-1.0)] {
        for padded_to in [None, Some(MAX_ROWS)] {
            let mut loops = Loops::load(newton(30, until), padded_to);
            loops.check(0, &NUMBERS);
            // Batches of other sizes, some of them padded, over the same memory.
            loops.check(3, &NUMBERS[..1]);
            loops.check(1, &NUMBERS[2..7]);
            loops.check(0, &NUMBERS);
        }
    }
}

#[test]
fn what_is_no_number_never_meets_a_bound_and_one_round_is_one() {
    let mut loops = Loops::load(newton(1, Some(1e-3)), None);
    loops.check(0, &NUMBERS);
    let mut loops = Loops::load(newton(12, Some(1e9)), None);
    // |x * x - a| of 0 is no number: 0 / 0.
    loops.check(0, &[0.0, 4.0]);
}

#[test]
fn on_a_gpu_only_the_watched_number_leaves_it_between_rounds() {
    let mut loops = Loops::load(newton(30, Some(1e-3)), None).on_a_gpu();
    fake::calls();
    loops.check(0, &[144.0; 4]);
    let rounds = plain(144.0, &loops.of).2 as usize;
    let calls = fake::calls();
    let copies = |what: &str| calls.iter().filter(|call| *call == what).count();
    // Both inputs go there once. The bound looks at four rows after each round, and the two outputs of all of them come back with the last.
    assert_eq!((copies("memcpy 16 1"), copies("memcpy 16 2")), (2, rounds + 2), "{calls:?}");
    assert_eq!(calls.len(), 2 + rounds + 2 + copies("synchronize"), "{calls:?}");
}
