//! Real worker processes: how they begin, serve and end.

use std::process::{Command, Stdio};

use crate::common::{Setup, affine_setup, flat, run_of};
use orchestra_core::{DType, OutputSlotId, WorkerExit};
use orchestra_testkit::models;
use orchestra_testkit::programs::beside_this_program;
use orchestra_worker::exit_codes::{EXIT_PROTOCOL, EXIT_USAGE};
use orchestra_worker::frames::{BatchRun, FromWorker, ToWorker};

/// Rows of the batch of [`endless`].
const MANY: usize = 1 << 16;

/// Multiplies so often that no test waits for the end. The matrix is small, because the runtime keeps a packed copy for each product.
fn endless() -> Setup {
    let (x, y) = (flat("x", DType::F32, 64), flat("y", DType::F32, 64));
    Setup::new(|folder| models::slow(folder, 64, 4000), &[x], &[y], MANY, 1)
}

#[test]
fn the_end_of_the_parent_ends_a_long_run() {
    let setup = endless();
    let mut worker = setup.spawn();
    assert!(matches!(worker.load(&setup.load_frame()), FromWorker::Loaded { .. }));
    worker.send(ToWorker::Run(run_of(5, 0, 0, MANY)));
    for _ in 0..3 {
        assert_eq!(worker.0.frame().unwrap(), Some(FromWorker::Heartbeat));
    }
    // What a killed parent looks like; the other direction stays open, so that a finished run would show.
    worker.0.hang_up().unwrap();
    assert_eq!(worker.next(), None, "the run did not end, the process did");
    assert_eq!(worker.end().0, WorkerExit::Code(0));
}

#[test]
fn runs_outside_of_the_arena_are_a_protocol_error() {
    let setup = affine_setup(None, 4);
    for run in [
        run_of(1, 3, 0, 1),
        run_of(1, 0, 4, 1),
        run_of(1, 0, 3, 2),
        run_of(1, 0, 0, 0),
        run_of(1, 0, usize::MAX, 2),
    ] {
        let mut worker = setup.spawn();
        assert!(matches!(worker.load(&setup.load_frame()), FromWorker::Loaded { .. }));
        worker.send(ToWorker::Run(run));
        assert_eq!(worker.next(), None);
        let (exit, stderr) = worker.end();
        assert_eq!(exit, WorkerExit::Code(EXIT_PROTOCOL));
        assert!(stderr.contains("outside of the arena, which has `3` slots of `4` rows"), "{stderr}");
    }
    let mut worker = setup.spawn();
    assert!(matches!(worker.load(&setup.load_frame()), FromWorker::Loaded { .. }));
    worker.send(ToWorker::Run(BatchRun { output_slot: OutputSlotId(3), ..run_of(1, 0, 0, 1) }));
    assert_eq!(worker.next(), None);
    let (exit, stderr) = worker.end();
    assert_eq!(exit, WorkerExit::Code(EXIT_PROTOCOL));
    assert!(stderr.contains("`output-slot-3` does not exist, the worker has `3` output slots"), "{stderr}");
}

#[test]
fn frames_out_of_order_and_garbage_are_protocol_errors() {
    let setup = affine_setup(None, 4);
    let mut worker = setup.spawn();
    worker.send(ToWorker::Run(run_of(1, 0, 0, 1)));
    while worker.next().is_some() {}
    let (exit, stderr) = worker.end();
    assert_eq!(exit, WorkerExit::Code(EXIT_PROTOCOL));
    assert!(stderr.contains("a `Run` frame before `Load`"), "{stderr}");

    let mut worker = setup.spawn();
    worker.0.send_bytes(&[5, 0, 0, 0, 9, 9, 9, 9, 9]).unwrap();
    while worker.next().is_some() {}
    assert_eq!(worker.end().0, WorkerExit::Code(EXIT_PROTOCOL));
}

#[test]
fn started_by_hand_it_says_so() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_orchestra-bare-worker")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(EXIT_USAGE));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("started by orchestra itself, not by hand"), "{text}");
}

#[test]
fn the_terminal_s_interrupt_does_not_end_a_worker() {
    let setup = affine_setup(None, 4);
    let mut worker = setup.spawn();
    assert!(matches!(worker.load(&setup.load_frame()), FromWorker::Loaded { .. }));
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(worker.pid() as i32, libc::SIGINT) }, 0);
    worker.send(ToWorker::Run(run_of(1, 0, 0, 1)));
    assert!(matches!(worker.next(), Some(FromWorker::Done { .. })));
}

#[test]
fn a_panic_ends_the_process_with_its_words() {
    let setup = affine_setup(None, 4);
    let mut worker = setup.spawn_program(&beside_this_program("panicking-worker").unwrap());
    worker.send(ToWorker::Load(Box::new(setup.load_frame())));
    while worker.next().is_some() {}
    let (exit, stderr) = worker.end();
    assert_eq!(exit, WorkerExit::Signal(libc::SIGABRT));
    assert!(stderr.contains("an engine that panics, as asked"), "{stderr}");
}
