//! A worker that misbehaves on purpose, as `ORCHESTRA_FAULT` says; without it, it copies inputs to outputs. It loads no runtime.
//!
//! | `ORCHESTRA_FAULT` | what it does |
//! |---|---|
//! | `hang-on-batch:N` | hangs in its N-th run, from 1 |
//! | `kill-at-P`, `abort-at-P`, `exit0-at-P` | dies (SIGKILL, SIGABRT, exit code 0) at the point P of the protocol: see `faulty/points.rs` |
//! | `slow:MS` | each run takes so many milliseconds |
//! | `garbage` | says hello, then sends bytes that are no frame |
//! | `never-hello` | keeps the socket open and says nothing on it; a line on standard error tells when |
//! | `load-failed` | reports that the model cannot be loaded, for good |
//! | `stubborn` | serves well, but ends neither when it is asked to nor on SIGTERM |
//!
//! With `ORCHESTRA_FAULT_ONCE=PATH` only the first process misbehaves, the one that manages to create the file `PATH`.

mod engine;
mod loader;
mod points;

use std::fs::File;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use points::Death;

use engine::FaultyEngine;
pub use loader::{LOADER_FAULT, LOADER_FAULT_ONCE, LOADER_FAULTS};

/// The variable that chooses the fault.
pub const FAULT: &str = "ORCHESTRA_FAULT";
/// The variable that names the file which the process that misbehaves creates.
pub const FAULT_ONCE: &str = "ORCHESTRA_FAULT_ONCE";
/// What `never-hello` writes to standard error before it falls silent.
pub const SILENT: &str = "not saying hello, as asked";

/// All names of the table, but those of deaths at points.
const NAMES: [&str; 8] =
    ["none", "", "hang-on-batch", "slow", "garbage", "never-hello", "load-failed", "stubborn"];

/// One way to misbehave; see the module's table.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// As in the table; of a death, its point.
    name: String,
    /// What stands behind the colon, or 0.
    number: u64,
    death: Option<Death>,
}

impl Fault {
    /// The fault of this text; `None` if there is none of it.
    fn parse(text: &str) -> Option<Fault> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let number = number.parse().ok()?;
        let (name, death) = match name.split_once("-at-") {
            Some((how, point)) if points::NAMES.contains(&point) => (point, Some(Death::parse(how)?)),
            None if NAMES.contains(&name) => (name, None),
            _ => return None,
        };
        Some(Fault { name: name.to_owned(), number, death })
    }

    /// Whether it is this one, which no run has a part in.
    fn is(&self, name: &str) -> bool {
        self.death.is_none() && self.name == name
    }

    /// How it dies at this point, of the `n`th run where the point is one of a run.
    fn dies_at(&self, point: &str, n: u64) -> Option<Death> {
        self.death.filter(|_| self.name == point && self.number == n)
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
        Some(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
            fault = Fault { name: "none".to_owned(), number: 0, death: None };
        }
        Some(Err(error)) => {
            eprintln!("the file that `{FAULT_ONCE}` names cannot be made: {error}");
            return ExitCode::from(2);
        }
    }
    if fault.is("never-hello") {
        // For a test that has to know when the process runs this program, and no longer that of its parent.
        eprintln!("{SILENT}");
        sleep_for_ever()
    }
    points::before_serving(&fault);
    let mut engine = FaultyEngine::new(fault.clone());
    match (fault.is("stubborn"), fault.dies_at("hang-up", 0)) {
        (false, None) => orchestra_worker::run_with(&mut engine),
        (_, death) => points::serve_and_then(&mut engine, death),
    }
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
