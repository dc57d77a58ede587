//! The protocol loop over engines that are no engines.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{
    BatchId, DType, DeviceKind, Dim, ErrorClass, OutputSlotId, SandboxMode, SlotId, TensorSpec,
};
use orchestra_worker::arena::{Arena, SharedMemory, WorkerArena};
use orchestra_worker::codec::{FrameReader, FrameWriter, MAX_FRAME};
use orchestra_worker::exit_codes::{EXIT_DEVICE, EXIT_LOAD_FAILED, EXIT_PROTOCOL};
use orchestra_worker::frames::{
    BatchRun, DynamicOutput, FromWorker, Load, RunErrorKind, RunTiming, ToWorker,
};
use orchestra_worker::output_region::OutputRegion;
use orchestra_worker::serve::serve;
use orchestra_worker::{Engine, EngineRunError, LoadError, Loaded, Sandbox, Stream};

/// Does with batch `n` what its number says.
/// A tensor with one fixed row dimension.
fn flat(name: &str, dtype: DType, n: usize) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row: vec![Dim::Fixed(n)], batch: Dim::Dynamic }
}

fn run_of(batch: u64, slot: u32, first_row: usize, rows: usize) -> BatchRun {
    let (slot, output_slot) = (SlotId(slot), OutputSlotId(slot));
    BatchRun { batch: BatchId(batch), attempt: 1, slot, output_slot, first_row, rows }
}

struct Fake {
    load: Result<Loaded, LoadError>,
    streams: usize,
}

/// As `Fake`, and batches from `MEET` on only end when as many of them run at once as there are streams.
struct FakeStream(Arc<Barrier>);

const FINE: u64 = 1;
const MODEL: u64 = 2;
const DEVICE: u64 = 3;
const HUGE: u64 = 4;
const MEET: u64 = 100;

impl Engine for Fake {
    fn sandbox(&self, _: &Load) -> Result<Sandbox, LoadError> {
        // The loop runs in a thread of the test.
        Ok(Sandbox { mode: SandboxMode::Off, ..Sandbox::default() })
    }

    fn load(&mut self, load: &Load, _: WorkerArena) -> Result<Loaded, LoadError> {
        self.streams = load.streams;
        self.load.clone()
    }

    fn run(
        &mut self,
        run: &BatchRun,
        _: &[u8],
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        as_told(run, timing)
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        let barrier = Arc::new(Barrier::new(self.streams));
        (0..self.streams).map(|_| Box::new(FakeStream(Arc::clone(&barrier))) as Box<dyn Stream>).collect()
    }
}

impl Stream for FakeStream {
    fn run(
        &mut self,
        run: &BatchRun,
        _: &[u8],
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        if run.batch.0 >= MEET {
            self.0.wait();
        }
        as_told(run, timing)
    }
}

fn as_told(run: &BatchRun, timing: &mut RunTiming) -> Result<Vec<DynamicOutput>, EngineRunError> {
    timing.run_ns = 77;
    let fail = |kind| Err(EngineRunError { kind, error: "as told".to_owned() });
    match run.batch.0 {
        MODEL => fail(RunErrorKind::Model),
        DEVICE => fail(RunErrorKind::Device),
        HUGE => {
            let data = vec![0; MAX_FRAME];
            Ok(vec![DynamicOutput { output: 0, dtype: DType::U8, shape: vec![MAX_FRAME], data }])
        }
        _ => Ok(vec![]),
    }
}

struct Parent {
    reader: FrameReader<UnixStream, FromWorker>,
    writer: FrameWriter<UnixStream, ToWorker>,
    left: Receiver<i32>,
    worker: JoinHandle<i32>,
    load: Load,
}

fn start(load: Result<(), LoadError>) -> Parent {
    let layout = BatchLayout::new(&[flat("x", DType::F32, 3)], &[flat("y", DType::F32, 3)], 4, 2).unwrap();
    let arena = Arena::create("test", layout.clone()).unwrap();
    let outputs = OutputRegion::create("test outputs", layout.clone()).unwrap();
    let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() }.try_clone_to_owned().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (leave, left) = channel();
    let leave = Arc::new(move |code| leave.send(code).unwrap_or(()));
    let loaded = Loaded { providers: vec![], runtime_version: "fake".to_owned(), warmed: 0 };
    let worker = std::thread::spawn(move || {
        serve(theirs, memory, &mut Fake { load: load.map(|()| loaded), streams: 1 }, leave)
    });
    Parent {
        reader: FrameReader::new(ours.try_clone().unwrap()),
        writer: FrameWriter::new(ours),
        left,
        worker,
        load: Load {
            spec: vec![],
            device: DeviceKind::Cpu,
            threads: 1,
            streams: 1,
            padded_to: None,
            layout,
            answer_bytes: 0,
        },
    }
}

impl Parent {
    fn next(&mut self) -> Option<FromWorker> {
        loop {
            match self.reader.read().unwrap() {
                Some(FromWorker::Heartbeat | FromWorker::Waiting) => {}
                other => return other,
            }
        }
    }

    fn loaded(mut self) -> Parent {
        assert!(matches!(self.next(), Some(FromWorker::Hello { .. })));
        self.writer.write(&ToWorker::Load(Box::new(self.load.clone()))).unwrap();
        assert!(matches!(self.next(), Some(FromWorker::Loaded { .. })));
        self
    }

    fn with_streams(mut self, n: usize) -> Parent {
        self.load.streams = n;
        self
    }

    fn run(&mut self, batch: u64) {
        self.writer.write(&ToWorker::Run(run_of(batch, 1, 0, 4))).unwrap();
    }
}

#[test]
fn a_load_that_waits_for_another_process_says_so_with_each_heartbeat() {
    let mut parent = start(Ok(())).loaded();
    let waiting = orchestra_worker::LoadWait::begin();
    for _ in 0..2 {
        while parent.reader.read().unwrap() != Some(FromWorker::Waiting) {}
    }
    drop(waiting);
}

#[test]
fn every_run_has_one_answer_in_the_order_of_the_runs() {
    let mut parent = start(Ok(())).loaded();
    for batch in [FINE, MODEL, 10, MODEL, 11] {
        parent.run(batch);
    }
    for expected in [FINE, MODEL, 10, MODEL, 11] {
        match parent.next().unwrap() {
            FromWorker::Done { batch, timing, .. } => {
                assert_eq!((batch, timing.run_ns), (BatchId(expected), 77));
            }
            FromWorker::Failed { batch, kind, error, timing } => {
                assert_eq!((batch, kind), (BatchId(expected), RunErrorKind::Model));
                assert_eq!((error.as_str(), timing.run_ns), ("as told", 77));
            }
            other => panic!("no answer: {other:?}"),
        }
    }
}

#[test]
fn as_many_batches_run_at_once_as_there_are_streams_and_each_is_answered_once() {
    for streams in [2, 3, 8] {
        let mut parent = start(Ok(())).with_streams(streams).loaded();
        let all: Vec<u64> = (MEET..MEET + 4 * streams as u64).collect();
        let (first, rest) = all.split_at(streams + 1);
        first.iter().for_each(|batch| parent.run(*batch));
        let mut rest = rest.iter();
        let mut answered = Vec::new();
        while answered.len() < all.len() {
            // One that runs alone waits for ever, and this with it.
            let Some(FromWorker::Done { batch, timing, .. }) = parent.next() else { panic!("no answer") };
            assert_eq!(timing.run_ns, 77);
            answered.push(batch.0);
            rest.next().into_iter().for_each(|batch| parent.run(*batch));
        }
        answered.sort_unstable();
        assert_eq!(answered, all);
    }
}

#[test]
fn a_run_that_fails_is_answered_and_a_broken_device_is_reported_before_the_worker_ends() {
    for streams in [1, 2] {
        let mut parent = start(Ok(())).with_streams(streams).loaded();
        for (batch, expected) in [
            (MODEL, RunErrorKind::Model),
            // Outputs too large for an answer ask for a smaller batch.
            (HUGE, RunErrorKind::TooLarge),
        ] {
            parent.run(batch);
            let Some(FromWorker::Failed { kind, error, .. }) = parent.next() else { panic!("not failed") };
            assert_eq!(kind, expected, "{error}");
        }
        parent.run(FINE);
        assert!(matches!(parent.next(), Some(FromWorker::Done { .. })));
        parent.run(DEVICE);
        assert!(matches!(parent.next(), Some(FromWorker::Failed { kind: RunErrorKind::Device, .. })));
        // One that works on several batches at once leaves as a process.
        let code = if streams == 1 { parent.worker.join().unwrap() } else { parent.left.recv().unwrap() };
        assert_eq!(code, EXIT_DEVICE);
    }
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_worker_with_its_reason() {
    let reason = LoadError { class: ErrorClass::Overload, error: "too large".to_owned() };
    let mut parent = start(Err(reason));
    assert!(matches!(parent.next(), Some(FromWorker::Hello { .. })));
    parent.writer.write(&ToWorker::Load(Box::new(parent.load.clone()))).unwrap();
    let expected = FromWorker::LoadFailed { class: ErrorClass::Overload, error: "too large".to_owned() };
    assert_eq!(parent.next(), Some(expected));
    assert_eq!(parent.worker.join().unwrap(), EXIT_LOAD_FAILED);
}

#[test]
fn a_second_load_is_a_protocol_error() {
    let mut parent = start(Ok(())).loaded();
    parent.writer.write(&ToWorker::Load(Box::new(parent.load.clone()))).unwrap();
    assert_eq!(parent.worker.join().unwrap(), EXIT_PROTOCOL);
}

#[test]
fn the_watch_ends_the_worker_when_the_parent_is_gone() {
    let Parent { reader, writer, left, worker, .. } = start(Ok(())).loaded();
    drop((reader, writer));
    assert_eq!(left.recv().unwrap(), 0);
    assert_eq!(worker.join().unwrap(), 0);
}
