//! A worker that misbehaves on purpose, as `ORCHESTRA_FAULT` says; without it, it copies inputs to outputs. It loads no runtime.
//!
//! | `ORCHESTRA_FAULT` | what it does |
//! |---|---|
//! | `segfault-on-batch:N`, `abort-on-batch:N`, `exit0-on-batch:N`, `hang-on-batch:N` | dies or hangs in its N-th run, from 1 |
//! | `kill-at-P`, `abort-at-P`, `exit0-at-P` | dies (SIGKILL, SIGABRT, exit code 0) at the point P of the protocol: see [`Point`] |
//! | `oom-above:N` | reports that memory ran out for batches of more than N rows |
//! | `fail-on-batch:N`, `device-error-on-batch:N` | reports a model error (a broken device) for its N-th run |
//! | `slow:MS` | each run takes so many milliseconds |
//! | `wrong-batch` | answers each run with an answer for a batch that was not sent |
//! | `old-batch` | answers each run but the first with a second answer for the one before |
//! | `half-frame` | at its first run, writes half a frame and exits |
//! | `garbage` | says hello, then sends bytes that are no frame |
//! | `flood-stderr` | writes a megabyte to standard error at its start and at each run |
//! | `slow-start:MS` | says hello only after so many milliseconds |
//! | `never-hello` | keeps the socket open and says nothing on it; a line on standard error tells when |
//! | `die-on-load` | aborts while it loads |
//! | `load-failed` | reports that the model cannot be loaded, for good |
//! | `stubborn` | serves well, but ends neither when it is asked to nor on SIGTERM |
//!
//! With `ORCHESTRA_FAULT_ONCE=PATH` only the first process misbehaves, the one that manages to create the file `PATH`.

mod engine;
mod loader;
mod points;

use std::fs::File;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

pub use points::{Death, Point};

use engine::FaultyEngine;
pub use loader::{LOADER_FAULT, LOADER_FAULT_ONCE, LoaderFault};

/// The variable that chooses the fault.
pub const FAULT: &str = "ORCHESTRA_FAULT";
/// The variable that names the file which the process that misbehaves creates.
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
    /// Death at a point of the protocol.
    DieAt(Death, Point),
    /// Out of memory for more rows than this.
    OutOfMemoryAbove(u64),
    /// A model error in the N-th run.
    FailOnBatch(u64),
    /// A device error in the N-th run.
    DeviceErrorOnBatch(u64),
    /// Slow runs, in milliseconds.
    Slow(u64),
    /// Answers for a batch that was not sent.
    WrongBatch,
    /// A second answer for the batch before.
    OldBatch,
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
    /// Does not end when it is asked to.
    Stubborn,
}

impl Fault {
    /// The fault of this name; `None` if there is none of it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Fault> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number.parse::<u64>().ok()?)),
            None => (text, None),
        };
        if let Some((how, point)) = name.split_once("-at-") {
            return Some(Fault::DieAt(Death::parse(how)?, Point::parse(point, number)?));
        }
        Some(match (name, number) {
            ("" | "none", None) => Fault::None,
            ("segfault-on-batch", Some(n)) => Fault::SegfaultOnBatch(n),
            ("abort-on-batch", Some(n)) => Fault::AbortOnBatch(n),
            ("exit0-on-batch", Some(n)) => Fault::ExitOnBatch(n),
            ("hang-on-batch", Some(n)) => Fault::HangOnBatch(n),
            ("oom-above", Some(n)) => Fault::OutOfMemoryAbove(n),
            ("fail-on-batch", Some(n)) => Fault::FailOnBatch(n),
            ("device-error-on-batch", Some(n)) => Fault::DeviceErrorOnBatch(n),
            ("slow", Some(ms)) => Fault::Slow(ms),
            ("wrong-batch", None) => Fault::WrongBatch,
            ("old-batch", None) => Fault::OldBatch,
            ("half-frame", None) => Fault::HalfFrame,
            ("garbage", None) => Fault::Garbage,
            ("flood-stderr", None) => Fault::FloodStderr,
            ("slow-start", Some(ms)) => Fault::SlowStart(ms),
            ("never-hello", None) => Fault::NeverHello,
            ("die-on-load", None) => Fault::DieOnLoad,
            ("load-failed", None) => Fault::LoadFailed,
            ("stubborn", None) => Fault::Stubborn,
            _ => return None,
        })
    }
}

/// The worker's `main`: speaks the protocol on the inherited descriptors and misbehaves as the environment says.
pub fn main() -> ExitCode {
    if orchestra_worker::process::is_loader() {
        if let Some(code) = loader::misbehave() {
            return code;
        }
        return orchestra_worker::process::run_as_loader(&crate::trap_stage::kinds());
    }
    let wanted = std::env::var(FAULT).unwrap_or_default();
    let Some(mut fault) = Fault::parse(&wanted) else {
        eprintln!("`{FAULT}` is `{wanted}`, which is no known fault");
        return ExitCode::from(2);
    };
    match std::env::var_os(FAULT_ONCE).map(File::create_new) {
        None | Some(Ok(_)) => {}
        Some(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => fault = Fault::None,
        Some(Err(error)) => {
            eprintln!("the file that `{FAULT_ONCE}` names cannot be made: {error}");
            return ExitCode::from(2);
        }
    }
    match fault {
        Fault::NeverHello => {
            // For a test that has to know when the process runs this program, and no longer that of its parent.
            eprintln!("{SILENT}");
            sleep_for_ever()
        }
        // A late start is the fault itself; it synchronises nothing.
        Fault::SlowStart(ms) => std::thread::sleep(Duration::from_millis(ms)),
        Fault::FloodStderr => flood(),
        Fault::DieAt(death, point) => points::before_serving(death, point),
        _ => {}
    }
    let mut engine = FaultyEngine::new(fault);
    match fault {
        Fault::Stubborn => points::serve_and_then(&mut engine, None),
        Fault::DieAt(death, Point::HangUp) => points::serve_and_then(&mut engine, Some(death)),
        _ => orchestra_worker::run_with(&mut engine),
    }
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
