//! A worker that misbehaves on purpose, as `ORCHESTRA_FAULT` says; without it, it copies inputs to outputs. It loads no runtime.
//!
//! | `ORCHESTRA_FAULT` | what it does |
//! |---|---|
//! | `hang-on-batch:N` | hangs in its N-th run, from 1 |
//! | `abort-at-load` | dies by SIGABRT while it loads |
//! | `slow:MS` | each run takes so many milliseconds |
//! | `garbage` | says hello, then sends bytes that are no frame |
//! | `never-hello` | keeps the socket open and says nothing on it; a line on standard error tells when |
//! | `load-failed` | reports that the model cannot be loaded, for good |
//! | `room:N` | has no memory to load where N others that share `ORCHESTRA_FAULT_ROOM`, a folder, live |
//! | `stubborn` | serves well, but ends neither when it is asked to nor on SIGTERM |
//!
//! With `ORCHESTRA_FAULT_ONCE=PATH` only the first process misbehaves, the one that manages to create the file `PATH`.

mod engine;
mod loader;

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use orchestra_worker::arena::SharedMemory;
use orchestra_worker::serve::serve;
use orchestra_worker::{WORKER_INPUTS_FD, WORKER_OUTPUTS_FD, WORKER_SOCKET_FD};

use engine::FaultyEngine;
pub use loader::{LOADER_FAULT, LOADER_FAULT_ONCE, LOADER_FAULTS};

/// The variable that chooses the fault.
pub const FAULT: &str = "ORCHESTRA_FAULT";
/// The variable that names the file which the process that misbehaves creates.
pub const FAULT_ONCE: &str = "ORCHESTRA_FAULT_ONCE";
/// The variable that names the folder of those that share memory.
pub const FAULT_ROOM: &str = "ORCHESTRA_FAULT_ROOM";
/// What `never-hello` writes to standard error before it falls silent.
pub const SILENT: &str = "not saying hello, as asked";

const NAMES: &str = "none hang-on-batch abort-at-load slow garbage never-hello load-failed room stubborn";

/// One way to misbehave; see the module's table.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    name: String,
    /// What stands behind the colon, or 0.
    number: u64,
}

impl Fault {
    /// The fault of this text; `None` if there is none of it.
    fn parse(text: &str) -> Option<Fault> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let number = number.parse().ok()?;
        let is_known = name.is_empty() || NAMES.split(' ').any(|known| known == name);
        is_known.then(|| Fault { name: name.to_owned(), number })
    }

    fn is(&self, name: &str) -> bool {
        self.name == name
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
            fault = Fault { name: "none".to_owned(), number: 0 };
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
    let mut engine = FaultyEngine::new(fault.clone());
    match fault.is("stubborn") {
        false => orchestra_worker::run_with(&mut engine),
        true => serve_for_ever(&mut engine),
    }
}

/// Speaks the protocol, and stays when the parent has hung up.
fn serve_for_ever(engine: &mut FaultyEngine) -> ExitCode {
    // SAFETY: no handler is installed, the signal is only ignored.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    let [socket, inputs, outputs] = [WORKER_SOCKET_FD, WORKER_INPUTS_FD, WORKER_OUTPUTS_FD]
        // SAFETY: by the contract with the parent all are open, and this process takes them nowhere else.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let socket = UnixStream::from(socket);
    if let Err(error) = socket.set_nonblocking(false) {
        eprintln!("the control socket cannot be used: {error}");
        return ExitCode::from(2);
    }
    serve(
        socket,
        SharedMemory { inputs, outputs },
        engine,
        Arc::new(|_| {
            sleep_for_ever();
        }),
    );
    sleep_for_ever()
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
