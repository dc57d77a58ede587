//! The misbehaving worker misbehaves as its table says, and serves well without a fault.

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{BatchId, DType, DeviceKind, OutputSlotId, SlotId, WorkerExit};
use orchestra_runtime::{Launcher, ProcessLauncher};
use orchestra_testkit::faulty::{FAULT, FAULT_LOG, FAULT_ONCE, file_of};
use orchestra_testkit::models::spec;
use orchestra_testkit::worker_client::WorkerClient;
use orchestra_worker::arena::{Arena, SharedMemory};
use orchestra_worker::codec::CodecError;
use orchestra_worker::frames::{FromWorker, Load, Run, RunErrorKind, ToWorker};
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

fn start_with(variables: &[(&str, &str)], memory: &Memory) -> WorkerClient {
    let env = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let launcher = ProcessLauncher { program: PROGRAM.into(), args: vec!["worker".into()], env };
    let memory = SharedMemory { inputs: memory.arena.fd(), outputs: memory.outputs.fd() };
    WorkerClient::start(|| launcher.launch(&DeviceKind::Cpu, &[], memory)).unwrap()
}

fn start(fault: &str, memory: &Memory) -> WorkerClient {
    start_with(&[(FAULT, fault)], memory)
}

/// The next heartbeat, or `None` at the end.
fn heartbeat(worker: &mut WorkerClient) -> Option<FromWorker> {
    loop {
        let frame = worker.frame().unwrap();
        if matches!(frame, Some(FromWorker::Heartbeat { .. }) | None) {
            return frame;
        }
    }
}

fn load(memory: &Memory) -> ToWorker {
    ToWorker::Load(Box::new(Load {
        spec: Vec::new(),
        device: DeviceKind::Cpu,
        threads: 1,
        streams: 1,
        max_batch: memory.arena.layout().slot_rows,
        batch_sizes: Vec::new(),
        pad: false,
        layout: memory.arena.layout().clone(),
    }))
}

fn run(batch: u64, rows: usize) -> ToWorker {
    let (batch, slot) = (BatchId(batch), SlotId(1));
    ToWorker::Run(Run { batch, attempt: 1, slot, output_slot: OUTPUTS, first_row: 1, rows, trace: None })
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

#[test]
fn without_a_fault_it_copies_rows_and_ends_when_asked() {
    let memory = memory();
    let mut worker = loaded("none", &memory);
    // SAFETY: the worker touches rows only between `Run` and `Done`.
    let row = unsafe { memory.arena.input_row_mut(SlotId(1), 0, 2) };
    row.copy_from_slice(&[7; 8]);
    worker.send(&run(5, 2)).unwrap();
    assert!(is_done(worker.answer(), 5));
    // SAFETY: as above.
    assert_eq!(unsafe { memory.outputs.rows(OUTPUTS, 0, 2, 1) }, Some(&[7u8; 8][..]));
    assert!(heartbeat(&mut worker).is_some());
    worker.hang_up().unwrap();
    assert_eq!(worker.wait(), WorkerExit::Code(0));
}

#[test]
fn deadly_faults_strike_in_the_chosen_run() {
    let memory = memory();
    for (fault, exit) in [
        ("segfault-on-batch:2", WorkerExit::Signal(11)),
        ("abort-on-batch:2", WorkerExit::Signal(6)),
        ("exit0-on-batch:2", WorkerExit::Code(0)),
    ] {
        let mut worker = loaded(fault, &memory);
        worker.send(&run(1, 1)).unwrap();
        assert!(is_done(worker.answer(), 1), "{fault}");
        worker.send(&run(2, 1)).unwrap();
        assert!(worker.answer().unwrap().is_none(), "{fault}");
        assert_eq!(worker.wait(), exit, "{fault}");
    }
}

#[test]
fn a_hanging_run_still_sends_heartbeats() {
    let memory = memory();
    let mut worker = loaded("hang-on-batch:1", &memory);
    worker.send(&run(9, 1)).unwrap();
    loop {
        match heartbeat(&mut worker) {
            Some(FromWorker::Heartbeat { running, .. }) if !running.is_empty() => {
                break assert_eq!(running, [BatchId(9)]);
            }
            Some(_) => {}
            None => panic!("it ended"),
        }
    }
    assert_eq!(worker.kill(), WorkerExit::Signal(9));
}

#[test]
fn errors_are_reported_for_the_chosen_runs() {
    let memory = memory();
    let kind_of = |worker: &mut WorkerClient| match worker.answer().unwrap() {
        Some(FromWorker::Failed { kind, .. }) => Some(kind),
        _ => None,
    };
    let mut worker = loaded("oom-above:1", &memory);
    worker.send(&run(1, 2)).unwrap();
    assert_eq!(kind_of(&mut worker), Some(RunErrorKind::OutOfMemory));
    worker.send(&run(2, 1)).unwrap();
    assert!(is_done(worker.answer(), 2));
    let mut worker = loaded("fail-on-batch:1", &memory);
    worker.send(&run(1, 2)).unwrap();
    assert_eq!(kind_of(&mut worker), Some(RunErrorKind::Model));
    let mut worker = loaded("device-error-on-batch:1", &memory);
    worker.send(&run(1, 2)).unwrap();
    assert_eq!(kind_of(&mut worker), Some(RunErrorKind::Device));
    assert_ne!(worker.wait(), WorkerExit::Code(0));
}

#[test]
fn broken_frames_are_seen_as_such() {
    let memory = memory();
    let mut worker = loaded("half-frame", &memory);
    worker.send(&run(1, 1)).unwrap();
    assert!(matches!(worker.answer(), Err(CodecError::Truncated { .. })));
    let mut worker = loaded("wrong-batch", &memory);
    worker.send(&run(1, 1)).unwrap();
    assert!(is_done(worker.answer(), u64::MAX));
    assert!(is_done(worker.answer(), 1));
    let mut worker = start("garbage", &memory);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    worker.send(&load(&memory)).unwrap();
    assert!(worker.answer().is_err());
}

#[test]
fn faults_of_the_start_show_before_the_first_run() {
    let memory = memory();
    let mut worker = start("die-on-load", &memory);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    worker.send(&load(&memory)).unwrap();
    assert!(worker.answer().unwrap().is_none());
    assert_eq!(worker.wait(), WorkerExit::Signal(6));
    let mut worker = start("load-failed", &memory);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    worker.send(&load(&memory)).unwrap();
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::LoadFailed { .. })));
    let mut worker = start("slow-start:1", &memory);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    let mut worker = start("nonsense", &memory);
    assert!(worker.answer().unwrap().is_none());
    assert_eq!(worker.wait(), WorkerExit::Code(2));
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
fn a_worker_dies_before_it_serves_where_it_is_told_to() {
    let memory = memory();
    let mut worker = start("kill-at-start", &memory);
    assert!(worker.answer().unwrap().is_none());
    assert_eq!(worker.wait(), WorkerExit::Signal(9));
    for point in ["hello", "load"] {
        let mut worker = start(&format!("abort-at-{point}"), &memory);
        assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })), "{point}");
        worker.send(&load(&memory)).unwrap();
        must_be_gone(&mut worker, point);
        assert_eq!(worker.wait(), WorkerExit::Signal(6), "{point}");
    }
}

#[test]
fn a_worker_that_is_asked_to_end_dies_as_told_or_not_at_all() {
    let memory = memory();
    let mut worker = loaded("kill-at-hang-up", &memory);
    worker.send(&run(1, 1)).unwrap();
    assert!(is_done(worker.answer(), 1));
    worker.hang_up().unwrap();
    assert_eq!(worker.wait(), WorkerExit::Signal(9));
    let mut worker = loaded("stubborn", &memory);
    worker.send(&run(1, 1)).unwrap();
    assert!(is_done(worker.answer(), 1));
    let pid = rustix::process::Pid::from_raw(i32::try_from(worker.pid().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    worker.send(&run(2, 1)).unwrap();
    assert!(is_done(worker.answer(), 2), "it serves on after SIGTERM");
    worker.hang_up().unwrap();
    // Another worker that is asked later has ended: this one has had its time.
    let mut other = loaded("none", &memory);
    other.hang_up().unwrap();
    assert_eq!(other.wait(), WorkerExit::Code(0));
    assert_eq!(worker.kill(), WorkerExit::Signal(9), "it was still there");
}

#[test]
fn old_answers_and_short_memory_are_as_told_and_noted_in_the_log() {
    let memory = memory();
    let dir = tempfile::tempdir().unwrap();
    let mut worker = loaded("old-batch", &memory);
    worker.send(&run(1, 1)).unwrap();
    assert!(is_done(worker.answer(), 1));
    worker.send(&run(2, 1)).unwrap();
    assert!(is_done(worker.answer(), 1), "once more");
    assert!(is_done(worker.answer(), 2));
    let log = dir.path().join("log");
    let variables = [(FAULT, "oom-for:2"), (FAULT_LOG, log.to_str().unwrap())];
    let mut worker = start_with(&variables, &memory);
    worker.answer().unwrap();
    worker.send(&load(&memory)).unwrap();
    worker.answer().unwrap();
    for (batch, rows) in [(1, 2), (2, 1), (3, 3), (4, 3)] {
        worker.send(&run(batch, rows)).unwrap();
        worker.answer().unwrap();
    }
    let pid = worker.pid().unwrap();
    let noted = std::fs::read_to_string(log).unwrap();
    assert_eq!(noted, format!("{pid} 2 OutOfMemory\n{pid} 1 ok\n{pid} 3 OutOfMemory\n{pid} 3 ok\n"));
}

#[test]
fn each_process_has_a_fault_of_its_own_and_leaves_its_id() {
    let memory = memory();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let variables = [(FAULT, "none,exit0-at-start,kill-at-start"), (FAULT_ONCE, mark.to_str().unwrap())];
    let exits = [None, Some(WorkerExit::Code(0)), Some(WorkerExit::Signal(9)), None];
    for (number, expected) in exits.into_iter().enumerate() {
        let mut worker = start_with(&variables, &memory);
        match expected {
            None => assert!(worker.answer().unwrap().is_some(), "{number} serves"),
            Some(exit) => assert_eq!(worker.wait(), exit, "{number}"),
        }
        let left = std::fs::read_to_string(file_of(&mark, number)).unwrap();
        assert_eq!(left, worker.pid().unwrap().to_string());
    }
}

#[test]
fn with_a_mark_only_the_first_process_misbehaves() {
    let memory = memory();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let variables = [(FAULT, "nonsense"), (FAULT_ONCE, mark.to_str().unwrap())];
    let mut unknown = start_with(&variables, &memory);
    assert_eq!(unknown.wait(), WorkerExit::Code(2));
    let variables = [(FAULT, "exit0-on-batch:1"), (FAULT_ONCE, mark.to_str().unwrap())];
    let survives = |worker: &mut WorkerClient| {
        worker.answer().unwrap();
        worker.send(&load(&memory)).unwrap();
        worker.answer().unwrap();
        worker.send(&run(1, 1)).unwrap();
        worker.answer().unwrap().is_some()
    };
    for expected in [false, true, true] {
        let mut worker = start_with(&variables, &memory);
        assert_eq!(survives(&mut worker), expected);
    }
}

#[test]
fn it_is_found_where_cargo_puts_it() {
    let found = orchestra_testkit::faulty_worker().unwrap();
    assert_eq!(found.canonicalize().unwrap(), std::path::Path::new(PROGRAM).canonicalize().unwrap());
    assert!(orchestra_testkit::programs::beside_this_program("no-such-program").is_err());
}
