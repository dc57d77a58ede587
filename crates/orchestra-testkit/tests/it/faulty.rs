//! The misbehaving worker dies and answers exactly as it is told to, with outputs as they are then.

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{BatchId, DType, DeviceKind, OutputSlotId, SlotId, WorkerExit};
use orchestra_runtime::{Launcher, ProcessLauncher};
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::models::spec;
use orchestra_testkit::worker_client::WorkerClient;
use orchestra_worker::arena::{Arena, SharedMemory};
use orchestra_worker::codec::CodecError;
use orchestra_worker::frames::{FromWorker, Load, Run, ToWorker};
use orchestra_worker::output_region::OutputRegion;

const PROGRAM: &str = env!("CARGO_BIN_EXE_orchestra-faulty-worker");
/// Where the outputs of all runs go.
const OUTPUTS: OutputSlotId = OutputSlotId(0);

struct Memory {
    arena: Arena,
    outputs: OutputRegion,
}

fn memory() -> Memory {
    let (x, y) = (spec("x", DType::F32, &[2]), spec("y", DType::F32, &[2]));
    let layout = BatchLayout::new(&[x], &[y], 4, 2).unwrap();
    let arena = Arena::create("faulty", layout.clone()).unwrap();
    Memory { arena, outputs: OutputRegion::create("faulty outputs", layout).unwrap() }
}

fn start(fault: &str, memory: &Memory) -> WorkerClient {
    let env = vec![(FAULT.into(), fault.into())];
    let launcher = ProcessLauncher { program: PROGRAM.into(), args: vec!["worker".into()], env };
    let memory = SharedMemory { inputs: memory.arena.fd(), outputs: memory.outputs.fd() };
    WorkerClient::start(|| launcher.launch(&DeviceKind::Cpu, &[], memory)).unwrap()
}

fn load(memory: &Memory) -> ToWorker {
    ToWorker::Load(Box::new(Load {
        spec: Vec::new(),
        device: DeviceKind::Cpu,
        threads: 1,
        streams: 1,
        padded_to: None,
        layout: memory.arena.layout().clone(),
    }))
}

fn run(batch: u64, rows: usize) -> ToWorker {
    let (batch, slot) = (BatchId(batch), SlotId(1));
    ToWorker::Run(Run { batch, attempt: 1, slot, output_slot: OUTPUTS, first_row: 1, rows })
}

/// A worker that said hello and has loaded.
fn loaded(fault: &str, memory: &Memory) -> WorkerClient {
    let mut worker = start(fault, memory);
    assert!(
        matches!(worker.answer().unwrap(), Some(FromWorker::Hello { pid, .. }) if Some(pid) == worker.pid())
    );
    worker.send(&load(memory)).unwrap();
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Loaded { .. })));
    worker
}

fn is_done(answer: Result<Option<FromWorker>, CodecError>, wanted: u64) -> bool {
    matches!(answer.unwrap(), Some(FromWorker::Done { batch: BatchId(b), .. }) if b == wanted)
}

/// Whether the bytes of the first output row are those of the input row, are nonsense, or were not touched.
fn output(memory: &Memory) -> &'static str {
    // SAFETY: the worker is dead.
    match unsafe { memory.outputs.rows(OUTPUTS, 0, 1, 1) } {
        Some(row) if row == [7; 8] => "copied",
        Some(row) if row == [0xee; 8] => "torn",
        Some(row) if row == [0; 8] => "untouched",
        other => panic!("{other:?}"),
    }
}

/// It says nothing more. A worker that dies with an unread frame in its socket resets the connection, which is an error here.
#[track_caller]
fn must_be_gone(worker: &mut WorkerClient, what: &str) {
    let answer = worker.answer();
    assert!(matches!(answer, Ok(None) | Err(CodecError::Gone | CodecError::Io(_))), "{what}: {answer:?}");
}

#[test]
fn a_worker_dies_exactly_where_it_is_told_to() {
    // What the parent hears last, what lies in the outputs, and whether a frame was sent that is unread.
    let points = [
        ("run:1", "nothing", "torn"),
        ("outputs:1", "nothing", "copied"),
        ("half-answer:1", "half a frame", "copied"),
        ("answered:1", "done", "copied"),
        ("unread:1", "done", "copied"),
        ("loaded", "nothing", "untouched"),
    ];
    let exits =
        [("kill", WorkerExit::Signal(9)), ("abort", WorkerExit::Signal(6)), ("exit0", WorkerExit::Code(0))];
    for (how, exit) in exits {
        for (point, hears, leaves) in points {
            let memory = memory();
            let fault = format!("{how}-at-{point}");
            let mut worker = loaded(&fault, &memory);
            // SAFETY: the worker touches rows only between `Run` and `Done`.
            unsafe { memory.arena.input_row_mut(SlotId(1), 0, 1) }.copy_from_slice(&[7; 8]);
            // Two rows: half of the outputs is the first of them.
            worker.send(&run(1, 2)).unwrap();
            match hears {
                "nothing" => must_be_gone(&mut worker, &fault),
                "half a frame" => {
                    assert!(matches!(worker.answer(), Err(CodecError::Truncated { .. })), "{fault}");
                }
                _ => {
                    assert!(is_done(worker.answer(), 1), "{fault}");
                    if point.starts_with("unread") {
                        worker.send(&run(2, 2)).unwrap();
                    }
                    must_be_gone(&mut worker, &fault);
                }
            }
            assert_eq!(worker.wait(), exit, "{fault}");
            assert_eq!(output(&memory), leaves, "{fault}");
        }
    }
}

#[test]
fn old_answers_are_as_told() {
    let memory = memory();
    let mut worker = loaded("old-batch", &memory);
    worker.send(&run(1, 1)).unwrap();
    assert!(is_done(worker.answer(), 1));
    worker.send(&run(2, 1)).unwrap();
    assert!(is_done(worker.answer(), 1), "once more");
    assert!(is_done(worker.answer(), 2));
}
