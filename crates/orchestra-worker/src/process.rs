//! What makes a process a worker: inherited descriptors, signals, panics, exit codes. It knows neither frames nor models.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

use crate::{LOADER_REGION_FD, WORKER_INPUTS_FD, WORKER_OUTPUTS_FD, WORKER_SOCKET_FD};

use crate::arena::SharedMemory;
use crate::engine::Engine;
use crate::exit_codes::EXIT_USAGE;
use crate::limits::no_core_file;
use crate::loader::{LoaderKinds, run_loader};
use crate::serve::serve;

/// The last argument of a process that shall be a loader, and no worker that serves an engine.
pub const LOADER: &str = "loader";

/// Serves `engine` to the process that started this one, until that ends: a worker's entry point. A program that is its own worker
/// executable calls this first in its `main` when it is started as one, before it starts threads or opens files.
pub fn run_with<E: Engine>(engine: &mut E) -> ExitCode {
    abort_on_panic();
    let memory = || {
        Ok(SharedMemory {
            inputs: take(WORKER_INPUTS_FD, "arena")?,
            outputs: take(WORKER_OUTPUTS_FD, "output region")?,
        })
    };
    run(memory, |socket, memory| serve(socket, memory, engine, Arc::new(leave)))
}

/// Whether this process shall be a loader.
pub fn is_loader() -> bool {
    std::env::args_os().next_back().is_some_and(|last| last == LOADER)
}

/// Whether a worker executable that runs with these arguments is a loader.
pub fn is_loader_with(arguments: &[String]) -> bool {
    arguments.last().is_some_and(|last| last == LOADER)
}

/// Loads items for the process that started this one, until that ends: the entry point of a loader, as [`run_with`] is that of a worker.
pub fn run_as_loader(kinds: &dyn LoaderKinds) -> ExitCode {
    run(|| take(LOADER_REGION_FD, "region"), |socket, region| run_loader(&socket, region, kinds))
}

fn run<M>(memory: impl FnOnce() -> io::Result<M>, body: impl FnOnce(UnixStream, M) -> i32) -> ExitCode {
    // The terminal's Ctrl-C goes to the whole process group; only the parent decides what it means for a batch that runs.
    // SAFETY: no handler is installed, the signal is only ignored.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    match socket().and_then(|socket| Ok((socket, memory()?, no_core_file()?))) {
        Ok((socket, memory, ())) => leave(body(socket, memory)),
        Err(error) => eprintln!("this command is started by orchestra itself, not by hand: {error}"),
    }
    ExitCode::from(EXIT_USAGE as u8)
}

/// Ends the process at once. Destructors of a provider can hang or crash, and the kernel frees everything anyway.
pub(crate) fn leave(code: i32) {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// A worker that lost a thread to a panic would look alive; one that aborts is replaced.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

fn socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(take(WORKER_SOCKET_FD, "control socket")?);
    // Fails unless it is a connected Unix socket.
    socket.peer_addr().map_err(|e| missing(WORKER_SOCKET_FD, "control socket", &e))?;
    // A socket that the parent uses without blocking stays so across exec.
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn take(fd: RawFd, what: &str) -> io::Result<OwnedFd> {
    // SAFETY: `fcntl` only looks at the number. The flag keeps the descriptor out of processes that a library may start.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(missing(fd, what, &io::Error::last_os_error()));
    }
    // SAFETY: it is open, and by the contract with the parent this function alone takes it, once per process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn missing(fd: RawFd, what: &str, why: &io::Error) -> io::Error {
    io::Error::other(format!("descriptor `{fd}` is not the {what}: {why}"))
}
