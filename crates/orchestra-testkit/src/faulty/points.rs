//! Death at exact points of the protocol. What the engine cannot reach from inside, a run's or a load's answer is written for here, past
//! the protocol. It decides nothing: who dies where is chosen by the fault.

use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

use orchestra_core::BatchId;
use orchestra_worker::Engine;
use orchestra_worker::arena::SharedMemory;
use orchestra_worker::codec;
use orchestra_worker::frames::{FromWorker, PROTOCOL_VERSION, RunTiming};
use orchestra_worker::link::Leave;
use orchestra_worker::serve::serve;
use orchestra_worker::{BUILD, WORKER_INPUTS_FD, WORKER_OUTPUTS_FD, WORKER_SOCKET_FD};
use rustix::event::{PollFd, PollFlags, poll};

use super::Fault;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// `kill`: SIGKILL, as an operator or the out-of-memory killer would do it.
    Kill,
    /// `abort`: SIGABRT, as a library would do it.
    Abort,
    /// `exit0`: `_exit(0)`, as if all were well.
    Exit,
}

/// Where in the protocol a worker dies. Those in the second line mean the N-th run of the process, from 1, as in `run:3`.
///
/// `start`: before it says hello. `hello`: it said hello, and the load frame lies unread in its socket. `load`: while it loads. `loaded`: it said that
/// it has loaded, and its first run frame lies unread in its socket. `hang-up`: its parent has closed the socket, which asks it to end. `run`: half of
/// the outputs are written, and what is written is wrong. `outputs`: all outputs are written, nothing is answered. `half-answer`: half of the frame
/// that says that the batch is done is on its way. `answered`: it has said that the batch is done. `unread`: and a later run frame lies unread.
pub(super) const NAMES: [&str; 10] = [
    "start",
    "hello",
    "load",
    "loaded",
    "hang-up", //
    "run",
    "outputs",
    "half-answer",
    "answered",
    "unread",
];

impl Death {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "kill" => Death::Kill,
            "abort" => Death::Abort,
            "exit0" => Death::Exit,
            _ => return None,
        })
    }

    pub fn die(self) -> ! {
        match self {
            Death::Kill => {
                // SAFETY: a plain system call; it does not return to this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                std::process::abort()
            }
            Death::Abort => std::process::abort(),
            // SAFETY: `_exit` has no preconditions.
            Death::Exit => unsafe { libc::_exit(0) },
        }
    }
}

/// Dies if the point lies before the first frame that is read.
pub(super) fn before_serving(fault: &Fault) {
    if let Some(death) = fault.dies_at("start", 0) {
        death.die()
    }
    if let Some(death) = fault.dies_at("hello", 0) {
        write_frame(&FromWorker::Hello {
            protocol: PROTOCOL_VERSION,
            build: BUILD.to_owned(),
            pid: std::process::id(),
            visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        });
        wait_for_unread_frame();
        death.die()
    }
}

/// Speaks the protocol, and once the parent has hung up dies in this way, or not at all.
pub(super) fn serve_and_then(engine: &mut impl Engine, death: Option<Death>) -> ExitCode {
    if death.is_none() {
        // SAFETY: no handler is installed, the signal is only ignored.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    }
    let [socket, inputs, outputs] = [WORKER_SOCKET_FD, WORKER_INPUTS_FD, WORKER_OUTPUTS_FD]
        // SAFETY: by the contract with the parent all are open, and this process takes them nowhere else.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let socket = UnixStream::from(socket);
    if let Err(error) = socket.set_nonblocking(false) {
        eprintln!("the control socket cannot be used: {error}");
        return ExitCode::from(2);
    }
    let leave: Leave = Arc::new(move |_| {
        end(death);
    });
    serve(socket, SharedMemory { inputs, outputs }, engine, leave);
    end(death)
}

fn end(death: Option<Death>) -> ! {
    match death {
        Some(death) => death.die(),
        None => super::sleep_for_ever(),
    }
}

/// Says that a batch is done, past the engine.
pub(super) fn answer(batch: BatchId) {
    write_raw(&done(batch));
}

/// Says half of it.
pub(super) fn half_answer(batch: BatchId) {
    let answer = done(batch);
    write_raw(&answer[..answer.len() / 2]);
}

/// Waits until an unread frame lies in the socket. A parent that hangs up instead ends the process.
pub(super) fn wait_for_unread_frame() {
    // SAFETY: the worker's protocol keeps this descriptor open as long as the process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(WORKER_SOCKET_FD) };
    loop {
        let mut readable = [PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut readable, None) {
            Ok(_) if readable[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP) => Death::Exit.die(),
            Ok(_) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => Death::Exit.die(),
        }
    }
}

pub(super) fn write_frame(frame: &FromWorker) {
    write_raw(&bytes_of(frame));
}

/// Writes to the control socket past the protocol. A heartbeat may come before or after it, never in the middle: the write is one call
/// of few bytes.
pub(super) fn write_raw(bytes: &[u8]) {
    // SAFETY: the worker's protocol keeps this descriptor open as long as the process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(WORKER_SOCKET_FD) };
    // The parent may be gone already; then no process is misled.
    let _ = rustix::io::write(socket, bytes);
}

fn done(batch: BatchId) -> Vec<u8> {
    bytes_of(&FromWorker::Done { batch, dynamic: Vec::new(), timing: RunTiming::default(), rss_bytes: 0 })
}

fn bytes_of(frame: &FromWorker) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A frame this small always encodes; an empty answer would show in the test.
    let _ = codec::encode(frame, &mut bytes);
    bytes
}
