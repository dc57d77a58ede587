//! One loader process: its start, its frames, its end. The thread that owns it waits for it, and for nothing else. It judges nothing.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use orchestra_core::{LeftOut, WorkerExit};
use orchestra_worker::BUILD;
use orchestra_worker::codec::{CodecError, FrameDecoder, FrameWriter};
use orchestra_worker::frames::PROTOCOL_VERSION;
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::{ChainSpec, Event, FromLoader, ToLoader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::setup::LoaderSetup;
use crate::fleet::launcher::exit_of;
use crate::flow::loader::inbox::Inbox;
use crate::trace::LoaderTrace;

/// How often a process that says nothing is looked at: one that is stopped is not waited for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// From SIGKILL until a process is left to itself: it hangs in the kernel, most likely in a file system.
const KILL: Duration = Duration::from_secs(5);
/// A frame of locators is full with so many bytes, and takes the locator that reaches it.
const FULL_FRAME: usize = 64 << 10;
/// Room is made for no more events of an item before they come.
const FEW_EVENTS: usize = 64;
/// So many bytes of its frames are read at once.
const READ_AT_ONCE: usize = 64 << 10;
/// What is kept of what it says on stderr: so much of its beginning, where the reason stands, and as much of its end.
const LAST_WORDS: usize = 600;
/// Lines of it that are logged.
const LOGGED_LINES: usize = 50;

pub struct LoaderProcess<'a> {
    setup: &'a LoaderSetup,
    inbox: &'a Inbox,
    pid: u32,
    /// How it was lost, and its last words.
    lost: Option<(WorkerExit, String)>,
    socket: UnixStream,
    writer: FrameWriter<UnixStream, ToLoader>,
    decoder: FrameDecoder<FromLoader>,
    /// What arrives is read into it.
    buffer: Box<[u8]>,
    child: Option<Child>,
    stderr: Option<ChildStderr>,
    words: Vec<u8>,
    logged_lines: usize,
    pub region: Arc<LoaderRegion>,
    /// What it has sent and the chain has not taken yet, whole items in their order.
    ready: VecDeque<LoadedItem>,
    started: Instant,
    /// Items that it was given.
    n_given: u64,
    /// Items that it has answered for.
    n_received: u64,
    /// Frames that it has sent.
    n_frames: u64,
    /// Frames that the chain is done with, and that it was told of.
    frames_told: u64,
}

pub struct LoadedItem {
    /// All but `Event::Ended`, whose times are below.
    pub events: Vec<Event>,
    pub region: Arc<LoaderRegion>,
    pub began: Instant,
    pub read: Duration,
    pub took: Duration,
    pub left_out: Vec<(LeftOut, u64)>,
    frame: u64,
}

/// A process that is gone.
#[derive(Debug)]
pub struct Lost {
    pub exit: WorkerExit,
    pub last_words: String,
    /// Of the items that it had and did not answer for: how many it was through with.
    pub through: u64,
    /// There was no memory to start it.
    pub without_memory: bool,
}

impl<'a> LoaderProcess<'a> {
    /// Starts it and waits until it is ready, or until `inbox` is closed: then, and later, it ends.
    pub fn start(setup: &'a LoaderSetup, load: &ChainSpec, inbox: &'a Inbox) -> Result<Self, Lost> {
        let failed = |error: io::Error| Lost {
            without_memory: error.kind() == io::ErrorKind::OutOfMemory,
            exit: WorkerExit::SpawnFailed(error.to_string()),
            last_words: String::new(),
            through: 0,
        };
        let region = usize::try_from(load.region_bytes).unwrap_or(usize::MAX);
        let region = Arc::new(LoaderRegion::new(region).map_err(failed)?);
        let (socket, mut child) = setup.launcher.launch_loader(region.fd()).map_err(failed)?;
        let stderr = child.stderr.take();
        let writer = socket.try_clone().map_err(failed)?;
        inbox.wake_with(socket.try_clone().map_err(failed)?);
        let mut process = Self {
            setup,
            inbox,
            pid: child.id(),
            lost: None,
            writer: FrameWriter::new(writer),
            decoder: FrameDecoder::new(),
            buffer: vec![0; READ_AT_ONCE].into(),
            child: Some(child),
            stderr,
            words: Vec::new(),
            logged_lines: 0,
            region,
            ready: VecDeque::new(),
            started: Instant::now(),
            n_given: 0,
            n_received: 0,
            n_frames: 0,
            frames_told: 0,
            socket,
        };
        process.handshake(load).map_err(|exit| process.lost(exit))?;
        // While it is at work on an item, it reads nothing.
        process
            .socket
            .set_write_timeout(Some(setup.limits.item_timeout.max(setup.handshake)))
            .map_err(failed)?;
        Ok(process)
    }

    fn handshake(&mut self, load: &ChainSpec) -> Result<(), WorkerExit> {
        let time = self.setup.handshake;
        let until = Instant::now() + time;
        // A process that does not read, a stopped one, must not hold up the thread for ever.
        self.socket.set_write_timeout(Some(time)).map_err(|e| WorkerExit::SpawnFailed(e.to_string()))?;
        self.write(&ToLoader::Load(Box::new(load.clone())))?;
        let late = |exit| if exit == WorkerExit::Hung { WorkerExit::HandshakeTimeout } else { exit };
        loop {
            match self.receive(until).map_err(late)? {
                FromLoader::Hello { protocol, build }
                    if (protocol, &build[..]) == (PROTOCOL_VERSION, BUILD) => {}
                FromLoader::Hello { protocol, build } => {
                    return Err(WorkerExit::ProtocolMismatch(format!(
                        "its version {build} speaks {protocol}, this is version {BUILD}, which speaks {PROTOCOL_VERSION}"
                    )));
                }
                FromLoader::Ready => return Ok(()),
                FromLoader::Refused { class, error } => {
                    return Err(WorkerExit::LoadFailed { class, why: error });
                }
                FromLoader::Events { .. } => {
                    return Err(WorkerExit::Garbled("events of items that it was not given".to_owned()));
                }
            }
        }
    }

    /// Gives it more items, as many as go into a frame, and tells it what the chain is done with. Gives how many it was given.
    pub fn send<'l>(&mut self, locators: impl Iterator<Item = &'l [u8]>) -> Result<usize, Lost> {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for locator in locators {
            text.extend_from_slice(locator);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
            if text.len() >= FULL_FRAME {
                break;
            }
        }
        let n = ends.len();
        self.n_given += n as u64;
        // What is ready lies in frames that are still needed, from the first of them on.
        let done = self.ready.front().map_or(self.n_frames, |loaded| loaded.frame - 1);
        let frames_done = done - self.frames_told;
        self.frames_told = done;
        if ends.is_empty() && frames_done == 0 {
            return Ok(n);
        }
        let written = self.write(&ToLoader::Items { frames_done, text, ends });
        written.map(|()| n).map_err(|exit| self.lost(exit))
    }

    fn write(&mut self, frame: &ToLoader) -> Result<(), WorkerExit> {
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

    /// Whether nothing is known of any item.
    pub fn is_ready_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// What became of the next item, if that is known already.
    pub fn take_ready(&mut self) -> Option<LoadedItem> {
        self.ready.pop_front()
    }

    /// Waits until something becomes of an item.
    pub fn wait(&mut self, until: Instant) -> Result<(), Lost> {
        let received = self.receive(until).and_then(|frame| match frame {
            FromLoader::Events { sent_ns, events } => self.accept(sent_ns, events),
            _ => Err(self.garbled("a frame out of order")),
        });
        received.map_err(|exit| self.lost(exit))
    }

    /// Cuts the events of a frame into items.
    fn accept(&mut self, sent_ns: u64, events: Vec<Event>) -> Result<(), WorkerExit> {
        let (now, before) = (Instant::now(), self.n_received);
        let age = now - self.started;
        self.n_frames += 1;
        let mut of_item = Vec::new();
        for event in events {
            let Event::Ended { began_ns, read_ns, took_ns, left_out } = event else {
                of_item.push(event);
                continue;
            };
            // No longer ago than it was started, and nothing took longer than that.
            let ago = Duration::from_nanos(sent_ns.saturating_sub(began_ns)).min(age);
            let took = Duration::from_nanos(took_ns).min(ago);
            self.n_received += 1;
            let n_events = of_item.len();
            self.ready.push_back(LoadedItem {
                // The next one has most likely as many.
                events: std::mem::replace(&mut of_item, Vec::with_capacity(n_events.min(FEW_EVENTS))),
                region: Arc::clone(&self.region),
                began: now.checked_sub(ago).unwrap_or(now),
                read: Duration::from_nanos(read_ns).min(took),
                took,
                left_out,
                frame: self.n_frames,
            });
        }
        match of_item.is_empty() && before < self.n_received && self.n_received <= self.n_given {
            true => Ok(()),
            false => Err(self.garbled("answers for other items than those that it was given")),
        }
    }

    fn garbled(&mut self, what: &str) -> WorkerExit {
        self.kill();
        WorkerExit::Garbled(what.to_owned())
    }

    /// The next frame; `Hung` when there is none by then. After an error the process is gone.
    fn receive(&mut self, until: Instant) -> Result<FromLoader, WorkerExit> {
        let mut was_stopped = false;
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(self.garbled(&error.to_string())),
            }
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(self.reap()),
                Ok((n, _)) => {
                    self.decoder.push(&self.buffer[..n]);
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(self.garbled(&error.to_string())),
            }
            let now = Instant::now();
            if now >= until {
                self.kill();
                return Err(WorkerExit::Hung);
            }
            if !self.wait_for_input((until - now).min(LOOK_EVERY)) {
                // Stopped, twice in a row: nothing will come.
                let is_stopped = self.is_stopped();
                if is_stopped && was_stopped {
                    self.kill();
                    return Err(WorkerExit::Silent);
                }
                was_stopped = is_stopped;
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
        let state = self.child.as_ref().and_then(|child| orchestra_machine::process_state(child.id()));
        state.is_some_and(|state| state.starts_with('T'))
    }

    fn kill(&mut self) {
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

    fn lost(&mut self, exit: WorkerExit) -> Lost {
        while self.stderr.is_some() && self.wait_for_words() {
            self.listen();
        }
        let through = self.region.items_done().saturating_sub(self.n_received);
        let words = String::from_utf8_lossy(&self.words);
        // Notes are hints for people who run a program by hand.
        let words: Vec<&str> = words
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("note:"))
            .collect();
        let last_words = words.join(" | ");
        self.lost = Some((exit.clone(), last_words.clone()));
        Lost { exit, last_words, through, without_memory: false }
    }

    /// Of a process that has ended: whether it said more.
    fn wait_for_words(&self) -> bool {
        let Some(stderr) = &self.stderr else { return false };
        poll(&mut [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|n| n > 0)
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

impl Drop for LoaderProcess<'_> {
    fn drop(&mut self) {
        self.kill();
        let Some(tracer) = self.setup.tracer.get() else { return };
        // At the end of the run it is the run that ends the connection.
        let lost = self.lost.take().filter(|_| !self.inbox.is_closed());
        let (exit, last_words) = lost.unwrap_or((WorkerExit::Clean, String::new()));
        let LoaderSetup { source, clock, .. } = *self.setup;
        let (began, ended) = (clock.at(self.started), clock.now());
        tracer.loader(LoaderTrace { source, pid: self.pid, began, ended, exit, last_words });
    }
}
