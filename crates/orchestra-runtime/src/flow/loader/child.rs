//! A loader process as the thread sees it that owns it: its start, its frames, its last words, its end. It knows no item.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr};
use std::thread;
use std::time::{Duration, Instant};

use orchestra_core::WorkerExit;
use orchestra_machine::processes::process;
use orchestra_worker::BUILD;
use orchestra_worker::codec::{CodecError, FrameDecoder, FrameWriter};
use orchestra_worker::loader::events::{FromLoader, LOADER_PROTOCOL, ToLoader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::child::spawn::{ProcessLauncher, exit_of};

/// How often a process that says nothing is looked at: one that is stopped is not waited for.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// From SIGKILL until a process is left to itself: it hangs in the kernel, most likely in a file system.
const KILL: Duration = Duration::from_secs(5);
/// So many bytes of its frames are read at once.
const READ_AT_ONCE: usize = 64 << 10;
/// What is kept of what it says on stderr: so much of its beginning, where the reason stands, and as much of its end.
const LAST_WORDS: usize = 600;
/// Lines of it that are logged.
const LOGGED_LINES: usize = 50;

/// A process that speaks the protocol of loaders. Dropping it kills it.
pub struct LoaderChild {
    pub pid: u32,
    socket: UnixStream,
    writer: FrameWriter<UnixStream, ToLoader>,
    decoder: FrameDecoder<FromLoader>,
    /// What arrives is read into it.
    buffer: Box<[u8]>,
    /// `None` once it is reaped.
    child: Option<Child>,
    stderr: Option<ChildStderr>,
    words: Vec<u8>,
    logged_lines: usize,
    /// When it was last looked at.
    was_stopped: bool,
}

impl LoaderChild {
    /// Starts it. It is killed when this thread ends.
    pub fn launch(launcher: &ProcessLauncher, region: BorrowedFd<'_>) -> io::Result<Self> {
        let (socket, mut child) = launcher.launch_loader(region)?;
        let stderr = child.stderr.take();
        Ok(Self {
            pid: child.id(),
            writer: FrameWriter::new(socket.try_clone()?),
            socket,
            decoder: FrameDecoder::new(),
            buffer: vec![0; READ_AT_ONCE].into(),
            child: Some(child),
            stderr,
            words: Vec::new(),
            logged_lines: 0,
            was_stopped: false,
        })
    }

    /// Another end of its socket, by which it is shut down from elsewhere.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// Tells it what it shall be, and waits until it is ready.
    pub fn handshake(&mut self, load: &ToLoader, time: Duration) -> Result<(), WorkerExit> {
        let until = Instant::now() + time;
        // A process that does not read, a stopped one, must not hold up the thread for ever.
        self.set_write_timeout(time)?;
        self.write(load)?;
        let late = |exit| if exit == WorkerExit::Hung { WorkerExit::HandshakeTimeout } else { exit };
        loop {
            match self.receive(until).map_err(late)? {
                FromLoader::Hello { protocol, build }
                    if (protocol, &build[..]) == (LOADER_PROTOCOL, BUILD) => {}
                FromLoader::Hello { protocol, build } => {
                    return Err(WorkerExit::ProtocolMismatch(format!(
                        "its version {build} speaks {protocol}, this is version {BUILD}, which speaks {LOADER_PROTOCOL}"
                    )));
                }
                FromLoader::Ready => return Ok(()),
                FromLoader::Refused { class, error } => {
                    return Err(WorkerExit::LoadFailed { class, why: error });
                }
                _ => return Err(self.garbled("an answer to what it was not asked")),
            }
        }
    }

    /// How long it may take to read a frame.
    pub fn set_write_timeout(&self, time: Duration) -> Result<(), WorkerExit> {
        self.socket.set_write_timeout(Some(time)).map_err(|error| WorkerExit::SpawnFailed(error.to_string()))
    }

    pub fn write(&mut self, frame: &ToLoader) -> Result<(), WorkerExit> {
        match self.writer.write(frame) {
            Ok(()) => Ok(()),
            Err(CodecError::Gone) => Err(self.reap()),
            Err(error) => {
                self.kill();
                match error {
                    CodecError::Io(_) => Err(WorkerExit::Silent),
                    other => Err(WorkerExit::Garbled(other.to_string())),
                }
            }
        }
    }

    pub fn garbled(&mut self, what: &str) -> WorkerExit {
        self.kill();
        WorkerExit::Garbled(what.to_owned())
    }

    /// The next frame; `Hung` when there is none by then. After an error the process is gone.
    pub fn receive(&mut self, until: Instant) -> Result<FromLoader, WorkerExit> {
        self.receive_within(until)?.ok_or_else(|| {
            self.kill();
            WorkerExit::Hung
        })
    }

    /// The next frame; `None` when there is none by then. After an error the process is gone.
    pub fn receive_within(&mut self, until: Instant) -> Result<Option<FromLoader>, WorkerExit> {
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(error) => return Err(self.garbled(&error.to_string())),
            }
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(self.reap()),
                Ok((n, _)) => {
                    self.was_stopped = false;
                    self.decoder.push(&self.buffer[..n]);
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(self.garbled(&error.to_string())),
            }
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            if !self.wait_for_input((until - now).min(LOOK_EVERY)) {
                // Stopped, twice in a row: nothing will come.
                let is_stopped = self.is_stopped();
                if is_stopped && self.was_stopped {
                    self.kill();
                    return Err(WorkerExit::Silent);
                }
                self.was_stopped = is_stopped;
            }
        }
    }

    /// Waits for a frame or for words; `false`: neither came.
    fn wait_for_input(&mut self, time: Duration) -> bool {
        let timeout =
            Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
        let socket = PollFd::new(&self.socket, PollFlags::IN);
        let ready = match &self.stderr {
            Some(stderr) => {
                let mut both = [socket, PollFd::new(stderr, PollFlags::IN)];
                poll(&mut both, Some(&timeout)).map(|n| (n, !both[1].revents().is_empty()))
            }
            None => poll(&mut [socket], Some(&timeout)).map(|n| (n, false)),
        };
        let (n, has_words) = ready.unwrap_or((1, false));
        if has_words {
            self.listen();
        }
        n > 0
    }

    /// Reads what it says on stderr, which is there.
    fn listen(&mut self) {
        let mut buffer = [0; 4096];
        let Some(stderr) = &mut self.stderr else { return };
        let n = match stderr.read(&mut buffer) {
            Ok(n @ 1..) => n,
            _ => {
                self.stderr = None;
                return;
            }
        };
        let pid = self.child.as_ref().map(Child::id);
        for line in String::from_utf8_lossy(&buffer[..n]).lines() {
            self.logged_lines += 1;
            if self.logged_lines <= LOGGED_LINES {
                tracing::info!(pid, stderr = %line, "loader says");
            }
        }
        self.words.extend_from_slice(&buffer[..n]);
        let excess = self.words.len().saturating_sub(2 * LAST_WORDS);
        if excess > 0 {
            self.words.drain(LAST_WORDS..LAST_WORDS + excess);
        }
    }

    fn is_stopped(&self) -> bool {
        let process = self.child.as_ref().and_then(|child| process(child.id()));
        process.is_some_and(|process| process.state == 'T')
    }

    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill()); // An error means that it is gone already.
            self.reap();
        }
    }

    /// Waits for its end, and gives up on a process that not even SIGKILL ends.
    fn reap(&mut self) -> WorkerExit {
        let Some(mut child) = self.child.take() else { return WorkerExit::Silent };
        // Its socket is closed, so it ends by itself, or nothing will come of it.
        drop(child.kill());
        if ends_within(&child, KILL) {
            return match child.wait() {
                Ok(status) => exit_of(status),
                Err(error) => WorkerExit::SpawnFailed(format!("its end could not be awaited: {error}")),
            };
        }
        let pid = child.id();
        tracing::error!(pid, "a loader does not end although it was killed; the run goes on without it");
        // Whenever it does end, it is waited for. Without a thread for that it stays in the table of processes until this one ends.
        drop(thread::Builder::new().name("loader-end".into()).spawn(move || child.wait()));
        WorkerExit::Silent
    }

    /// What it has said on stderr, once it is gone.
    pub fn last_words(&mut self) -> String {
        while self.stderr.is_some() && self.wait_for_words() {
            self.listen();
        }
        let words = String::from_utf8_lossy(&self.words);
        // Notes are hints for people who run a program by hand.
        let words: Vec<&str> = words
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("note:"))
            .collect();
        words.join(" | ")
    }

    /// Of a process that has ended: whether it said more.
    fn wait_for_words(&self) -> bool {
        let Some(stderr) = &self.stderr else { return false };
        poll(&mut [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|n| n > 0)
    }
}

impl Drop for LoaderChild {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a process ends in time; also where the kernel cannot tell, so that the caller waits for it.
fn ends_within(child: &Child, time: Duration) -> bool {
    let pid = Pid::from_child(child);
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) => return false,
            Ok(_) | Err(_) => return true,
        }
    }
}
