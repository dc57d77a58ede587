//! The misbehaving worker misbehaves as its table says, and serves well without a fault.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{BatchId, DType, DeviceKind, SlotId};
use orchestra_testkit::faulty::{FAULT, FAULT_ONCE};
use orchestra_testkit::models::spec;
use orchestra_testkit::worker_process::WorkerProcess;
use orchestra_wire::arena::Arena;
use orchestra_wire::codec::CodecError;
use orchestra_wire::frames::{FromWorker, Load, Run, RunErrorKind, ToWorker};

const PROGRAM: &str = env!("CARGO_BIN_EXE_orchestra-faulty-worker");

fn arena() -> Arena {
    let (x, y) = (spec("x", DType::F32, &[2]), spec("y", DType::F32, &[2]));
    Arena::create("faulty", BatchLayout::new(&[x], &[y], 4, 2).unwrap()).unwrap()
}

fn start(fault: &str, arena: &Arena) -> WorkerProcess {
    WorkerProcess::start(PROGRAM.as_ref(), &["worker"], &[(FAULT, fault)], arena).unwrap()
}

fn load(arena: &Arena) -> ToWorker {
    ToWorker::Load(Box::new(Load {
        library: PathBuf::new(),
        model: PathBuf::new(),
        digest: [0; 32],
        device: DeviceKind::Cpu,
        threads: 1,
        memory_limit: None,
        custom_ops: Vec::new(),
        warm_up: Vec::new(),
        layout: arena.layout().clone(),
    }))
}

fn run(batch: u64, rows: usize) -> ToWorker {
    let batch = BatchId(batch);
    ToWorker::Run(Run { batch, attempt: 1, slot: SlotId(1), first_row: 1, rows, trace: None })
}

/// A worker that said hello and has loaded.
fn loaded(fault: &str, arena: &Arena) -> WorkerProcess {
    let mut worker = start(fault, arena);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { pid, .. }) if pid == worker.pid()));
    worker.send(&load(arena)).unwrap();
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Loaded { .. })));
    worker
}

fn is_done(answer: Result<Option<FromWorker>, CodecError>, wanted: u64) -> bool {
    matches!(answer.unwrap(), Some(FromWorker::Done { batch: BatchId(b), .. }) if b == wanted)
}

#[test]
fn without_a_fault_it_copies_rows_and_ends_when_asked() {
    let arena = arena();
    let mut worker = loaded("none", &arena);
    // SAFETY: the worker touches rows only between `Run` and `Done`.
    let row = unsafe { arena.input_row_mut(SlotId(1), 0, 2) };
    row.copy_from_slice(&[7; 8]);
    worker.send(&run(5, 2)).unwrap();
    assert!(is_done(worker.answer(), 5));
    // SAFETY: as above.
    assert_eq!(unsafe { arena.output_rows(SlotId(1), 0, 2, 1) }, Some(&[7u8; 8][..]));
    assert!(worker.heartbeat().unwrap().is_some());
    worker.hang_up().unwrap();
    assert_eq!(worker.wait().unwrap().code(), Some(0));
}

#[test]
fn deadly_faults_strike_in_the_chosen_run() {
    let arena = arena();
    for (fault, signal, code) in [
        ("segfault-on-batch:2", Some(11), None),
        ("abort-on-batch:2", Some(6), None),
        ("exit0-on-batch:2", None, Some(0)),
    ] {
        let mut worker = loaded(fault, &arena);
        worker.send(&run(1, 1)).unwrap();
        assert!(is_done(worker.answer(), 1), "{fault}");
        worker.send(&run(2, 1)).unwrap();
        assert!(worker.answer().unwrap().is_none(), "{fault}");
        let status = worker.wait().unwrap();
        assert_eq!((status.signal(), status.code()), (signal, code), "{fault}");
    }
}

#[test]
fn a_hanging_run_still_sends_heartbeats() {
    let arena = arena();
    let mut worker = loaded("hang-on-batch:1", &arena);
    worker.send(&run(9, 1)).unwrap();
    loop {
        match worker.heartbeat().unwrap() {
            Some(FromWorker::Heartbeat { running: Some(batch), .. }) => break assert_eq!(batch, BatchId(9)),
            Some(_) => {}
            None => panic!("it ended"),
        }
    }
    assert_eq!(worker.kill().unwrap().signal(), Some(9));
}

#[test]
fn errors_are_reported_for_the_chosen_runs() {
    let arena = arena();
    let kind_of = |worker: &mut WorkerProcess| match worker.answer().unwrap() {
        Some(FromWorker::Failed { kind, .. }) => Some(kind),
        _ => None,
    };
    let mut worker = loaded("oom-above:1", &arena);
    worker.send(&run(1, 2)).unwrap();
    assert_eq!(kind_of(&mut worker), Some(RunErrorKind::OutOfMemory));
    worker.send(&run(2, 1)).unwrap();
    assert!(is_done(worker.answer(), 2));
    let mut worker = loaded("fail-on-batch:1", &arena);
    worker.send(&run(1, 2)).unwrap();
    assert_eq!(kind_of(&mut worker), Some(RunErrorKind::Model));
    let mut worker = loaded("device-error-on-batch:1", &arena);
    worker.send(&run(1, 2)).unwrap();
    assert_eq!(kind_of(&mut worker), Some(RunErrorKind::Device));
    assert!(!worker.wait().unwrap().success());
}

#[test]
fn broken_frames_are_seen_as_such() {
    let arena = arena();
    let mut worker = loaded("half-frame", &arena);
    worker.send(&run(1, 1)).unwrap();
    assert!(matches!(worker.answer(), Err(CodecError::Truncated { .. })));
    let mut worker = loaded("wrong-batch", &arena);
    worker.send(&run(1, 1)).unwrap();
    assert!(is_done(worker.answer(), u64::MAX));
    assert!(is_done(worker.answer(), 1));
    let mut worker = start("garbage", &arena);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    worker.send(&load(&arena)).unwrap();
    assert!(worker.answer().is_err());
}

#[test]
fn faults_of_the_start_show_before_the_first_run() {
    let arena = arena();
    let mut worker = start("die-on-load", &arena);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    worker.send(&load(&arena)).unwrap();
    assert!(worker.answer().unwrap().is_none());
    assert_eq!(worker.wait().unwrap().signal(), Some(6));
    let mut worker = start("load-failed", &arena);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    worker.send(&load(&arena)).unwrap();
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::LoadFailed { .. })));
    let mut worker = start("slow-start:1", &arena);
    assert!(matches!(worker.answer().unwrap(), Some(FromWorker::Hello { .. })));
    let mut worker = start("nonsense", &arena);
    assert!(worker.answer().unwrap().is_none());
    assert_eq!(worker.wait().unwrap().code(), Some(2));
}

#[test]
fn with_a_mark_only_the_first_process_misbehaves() {
    let arena = arena();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let variables = [(FAULT, "nonsense"), (FAULT_ONCE, mark.to_str().unwrap())];
    let mut unknown = WorkerProcess::start(PROGRAM.as_ref(), &[], &variables, &arena).unwrap();
    assert_eq!(unknown.wait().unwrap().code(), Some(2));
    let variables = [(FAULT, "exit0-on-batch:1"), (FAULT_ONCE, mark.to_str().unwrap())];
    let survives = |worker: &mut WorkerProcess| {
        worker.answer().unwrap();
        worker.send(&load(&arena)).unwrap();
        worker.answer().unwrap();
        worker.send(&run(1, 1)).unwrap();
        worker.answer().unwrap().is_some()
    };
    for expected in [false, true, true] {
        let mut worker = WorkerProcess::start(PROGRAM.as_ref(), &[], &variables, &arena).unwrap();
        assert_eq!(survives(&mut worker), expected);
    }
}

#[test]
fn it_is_found_where_cargo_puts_it() {
    let found = orchestra_testkit::faulty_worker().unwrap();
    assert_eq!(found.canonicalize().unwrap(), PathBuf::from(PROGRAM).canonicalize().unwrap());
    assert!(orchestra_testkit::programs::beside_this_program("no-such-program").is_err());
}
