//! A worker that misbehaves on purpose, as `ORCHESTRA_FAULT` says; without it, it copies inputs to outputs. It loads no runtime.
//!
//! | `ORCHESTRA_FAULT` | what it does |
//! |---|---|
//! | `segfault-on-batch:N`, `abort-on-batch:N`, `exit0-on-batch:N`, `hang-on-batch:N` | dies or hangs in its N-th run, from 1 |
//! | `oom-above:N` | reports that memory ran out for batches of more than N rows |
//! | `fail-on-batch:N`, `device-error-on-batch:N` | reports a model error (a broken device) for its N-th run |
//! | `wrong-batch` | answers each run with an answer for a batch that nobody sent |
//! | `half-frame` | at its first run, writes half a frame and exits |
//! | `garbage` | says hello, then sends bytes that are no frame |
//! | `flood-stderr` | writes a megabyte to standard error at its start and at each run |
//! | `slow-start:MS` | says hello only after so many milliseconds |
//! | `never-hello` | keeps the socket open and says nothing on it; a line on standard error tells when |
//! | `die-on-load` | aborts while it loads |
//! | `load-failed` | reports that the model cannot be loaded, for good |
//!
//! With `ORCHESTRA_FAULT_ONCE=PATH` only the first process that manages to create the file `PATH` misbehaves.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::time::Duration;

use orchestra_core::{BatchId, ErrorClass};
use orchestra_wire::WORKER_SOCKET_FD;
use orchestra_wire::arena::WorkerArena;
use orchestra_wire::codec;
use orchestra_wire::frames::{DynamicOutput, FromWorker, Load, Run, RunErrorKind, RunTiming};
use orchestra_worker::{Engine, LoadError, Loaded, RunError};

/// The variable that chooses the fault.
pub const FAULT: &str = "ORCHESTRA_FAULT";
/// The variable that names the file by which only one process misbehaves.
pub const FAULT_ONCE: &str = "ORCHESTRA_FAULT_ONCE";

/// What `never-hello` writes to standard error before it falls silent.
pub const SILENT: &str = "not saying hello, as asked";

/// One way to misbehave; see the module's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// SIGSEGV in the N-th run.
    SegfaultOnBatch(u64),
    /// SIGABRT in the N-th run.
    AbortOnBatch(u64),
    /// `_exit(0)` in the N-th run.
    ExitOnBatch(u64),
    /// The N-th run never ends.
    HangOnBatch(u64),
    /// Out of memory for more rows than this.
    OutOfMemoryAbove(u64),
    /// A model error in the N-th run.
    FailOnBatch(u64),
    /// A device error in the N-th run.
    DeviceErrorOnBatch(u64),
    /// Answers for a batch that nobody sent.
    WrongBatch,
    /// Half a frame, then exit.
    HalfFrame,
    /// No frames at all after hello.
    Garbage,
    /// Noise on standard error.
    FloodStderr,
    /// Late hello, in milliseconds.
    SlowStart(u64),
    /// No hello.
    NeverHello,
    /// Abort while loading.
    DieOnLoad,
    /// A permanent load error.
    LoadFailed,
}

impl Fault {
    /// The fault of this name; `None` if there is none of it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Fault> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number.parse::<u64>().ok()?)),
            None => (text, None),
        };
        Some(match (name, number) {
            ("" | "none", None) => Fault::None,
            ("segfault-on-batch", Some(n)) => Fault::SegfaultOnBatch(n),
            ("abort-on-batch", Some(n)) => Fault::AbortOnBatch(n),
            ("exit0-on-batch", Some(n)) => Fault::ExitOnBatch(n),
            ("hang-on-batch", Some(n)) => Fault::HangOnBatch(n),
            ("oom-above", Some(n)) => Fault::OutOfMemoryAbove(n),
            ("fail-on-batch", Some(n)) => Fault::FailOnBatch(n),
            ("device-error-on-batch", Some(n)) => Fault::DeviceErrorOnBatch(n),
            ("wrong-batch", None) => Fault::WrongBatch,
            ("half-frame", None) => Fault::HalfFrame,
            ("garbage", None) => Fault::Garbage,
            ("flood-stderr", None) => Fault::FloodStderr,
            ("slow-start", Some(ms)) => Fault::SlowStart(ms),
            ("never-hello", None) => Fault::NeverHello,
            ("die-on-load", None) => Fault::DieOnLoad,
            ("load-failed", None) => Fault::LoadFailed,
            _ => return None,
        })
    }
}

/// The worker's `main`: speaks the protocol on the inherited descriptors and misbehaves as the environment says.
pub fn main() -> ExitCode {
    let wanted = std::env::var(FAULT).unwrap_or_default();
    let Some(fault) = Fault::parse(&wanted) else {
        eprintln!("`{FAULT}` is `{wanted}`, which is no known fault");
        return ExitCode::from(2);
    };
    let fault = if is_my_turn() { fault } else { Fault::None };
    match fault {
        Fault::NeverHello => {
            // For a test that has to know when the process runs this program, and no longer that of its parent.
            eprintln!("{SILENT}");
            sleep_for_ever()
        }
        // A late start is the fault itself; nobody waits for it here.
        Fault::SlowStart(ms) => std::thread::sleep(Duration::from_millis(ms)),
        Fault::FloodStderr => flood(),
        _ => {}
    }
    orchestra_worker::run_with(&mut FaultyEngine { fault, arena: None, runs: 0 })
}

fn is_my_turn() -> bool {
    match std::env::var_os(FAULT_ONCE) {
        Some(path) => OpenOptions::new().write(true).create_new(true).open(path).is_ok(),
        None => true,
    }
}

struct FaultyEngine {
    fault: Fault,
    arena: Option<WorkerArena>,
    runs: u64,
}

impl Engine for FaultyEngine {
    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        match self.fault {
            Fault::DieOnLoad => std::process::abort(),
            Fault::LoadFailed => {
                let error = "the test worker was asked not to load".to_owned();
                return Err(LoadError { class: ErrorClass::Permanent, error });
            }
            Fault::Garbage => write_raw(&[0xff; 64]),
            _ => {}
        }
        self.arena = Some(arena);
        Ok(Loaded {
            inputs: load.layout.inputs.iter().map(|r| r.tensor.clone()).collect(),
            outputs: load.layout.outputs.iter().flatten().map(|r| r.tensor.clone()).collect(),
            providers: vec![("TestExecutionProvider".to_owned(), 1)],
            runtime_version: "none".to_owned(),
        })
    }

    fn run(&mut self, run: &Run, _: &mut RunTiming) -> Result<Vec<DynamicOutput>, RunError> {
        self.runs += 1;
        self.misbehave(run)?;
        match &self.arena {
            Some(arena) => copy_rows(arena, run).map(|()| Vec::new()),
            None => Err(failure(RunErrorKind::Device, "a run came before the load")),
        }
    }
}

impl FaultyEngine {
    fn misbehave(&self, run: &Run) -> Result<(), RunError> {
        match self.fault {
            Fault::SegfaultOnBatch(n) if n == self.runs => {
                let nowhere = std::ptr::without_provenance_mut::<u8>(1);
                // SAFETY: there is none; the fault is the purpose.
                unsafe { nowhere.write_volatile(1) };
            }
            Fault::AbortOnBatch(n) if n == self.runs => std::process::abort(),
            // SAFETY: `_exit` has no preconditions.
            Fault::ExitOnBatch(n) if n == self.runs => unsafe { libc::_exit(0) },
            Fault::HangOnBatch(n) if n == self.runs => sleep_for_ever(),
            Fault::OutOfMemoryAbove(rows) if run.rows as u64 > rows => {
                return Err(failure(RunErrorKind::OutOfMemory, orchestra_testkit_ops::OUT_OF_MEMORY_TEXT));
            }
            Fault::FailOnBatch(n) if n == self.runs => {
                return Err(failure(RunErrorKind::Model, "the test worker was asked to fail"));
            }
            Fault::DeviceErrorOnBatch(n) if n == self.runs => {
                return Err(failure(RunErrorKind::Device, "the test worker's device was asked to fail"));
            }
            Fault::WrongBatch => write_raw(&strange_answer()),
            Fault::HalfFrame => {
                let answer = strange_answer();
                write_raw(&answer[..answer.len() / 2]);
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(1) }
            }
            Fault::FloodStderr => flood(),
            _ => {}
        }
        Ok(())
    }
}

/// Copies inputs to outputs, by place, where their rows have the same size.
fn copy_rows(arena: &WorkerArena, run: &Run) -> Result<(), RunError> {
    let layout = arena.layout();
    let pairs = layout.inputs.len().min(layout.outputs.len());
    for place in 0..pairs {
        let same_size =
            layout.outputs[place].as_ref().is_some_and(|o| o.row_bytes == layout.inputs[place].row_bytes);
        if !same_size {
            continue;
        }
        let outside = |e: orchestra_wire::arena::RangeError| failure(RunErrorKind::Device, &e.to_string());
        let from = arena.input_rows(run.slot, place, run.first_row, run.rows).map_err(outside)?;
        let to = arena.output_rows(run.slot, place, run.first_row, run.rows).map_err(outside)?;
        // SAFETY: both lie within their own part of the arena, and the parent leaves the rows alone until the answer.
        unsafe { std::ptr::copy_nonoverlapping(from.ptr, to.ptr, from.len.min(to.len)) };
    }
    Ok(())
}

fn failure(kind: RunErrorKind, error: &str) -> RunError {
    RunError { kind, error: error.to_owned() }
}

fn strange_answer() -> Vec<u8> {
    let frame = FromWorker::Done {
        batch: BatchId(u64::MAX),
        dynamic: Vec::new(),
        timing: RunTiming::default(),
        rss_bytes: 0,
    };
    let mut bytes = Vec::new();
    // A frame this small always encodes; an empty answer would show in the test.
    let _ = codec::encode(&frame, &mut bytes);
    bytes
}

/// Writes to the control socket past the protocol. A heartbeat may come before or after it, never in the middle: the write is one call
/// of few bytes.
fn write_raw(bytes: &[u8]) {
    // SAFETY: the worker's protocol keeps this descriptor open as long as the process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(WORKER_SOCKET_FD) };
    // The parent may be gone already; then nobody is there to be misled.
    let _ = rustix::io::write(socket, bytes);
}

fn flood() {
    let line = [b'x'; 1023];
    let mut stderr = std::io::stderr().lock();
    for _ in 0..1024 {
        // A parent that reads no more is what this fault is for.
        let _ = stderr.write_all(&line).and_then(|()| stderr.write_all(b"\n"));
    }
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_known_by_name_and_number_or_refused() {
        assert_eq!(Fault::parse(""), Some(Fault::None));
        assert_eq!(Fault::parse("hang-on-batch:3"), Some(Fault::HangOnBatch(3)));
        assert_eq!(Fault::parse("half-frame"), Some(Fault::HalfFrame));
        for bad in ["hang-on-batch", "hang-on-batch:x", "half-frame:1", "nonsense"] {
            assert_eq!(Fault::parse(bad), None, "{bad}");
        }
    }
}
