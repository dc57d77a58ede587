//! What the threads of a worker share of its socket: frames that go out, the watch over the parent, and why serving ends.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use orchestra_core::failure::cut_words;
use orchestra_core::locked;
use orchestra_machine::processes::own_memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::codec::{CodecError, FrameReader, FrameWriter};
use crate::engine::{EngineRunError, RunResult};
use crate::exit_codes::{EXIT_DEVICE, EXIT_PROTOCOL};
use crate::frames::{
    BatchRun, FromWorker, PROTOCOL_VERSION, RowsWithoutOutputs, RunErrorKind, RunTiming, ToWorker,
};
use crate::waiting;

/// How often the worker says that it is alive.
pub const HEARTBEAT: Duration = Duration::from_millis(250);

/// Ends the process with this code. In tests it may return; then the thread that called it ends.
pub type Leave = Arc<dyn Fn(i32) + Send + Sync>;

/// Why a worker or a loader ends.
pub(crate) enum ServingEnd {
    Gone,
    /// A frame that was sent says why.
    Code(i32),
    /// What went over the wire makes no sense.
    Protocol(String),
}

impl ServingEnd {
    pub(crate) fn protocol(what: impl fmt::Display) -> ServingEnd {
        ServingEnd::Protocol(what.to_string())
    }

    /// What this `process` exits with. Says what has no other way to be known.
    pub(crate) fn exit_code(self, process: &str) -> i32 {
        match self {
            ServingEnd::Gone => 0,
            ServingEnd::Code(code) => code,
            ServingEnd::Protocol(what) => {
                eprintln!("{process}: protocol error: {what}");
                EXIT_PROTOCOL
            }
        }
    }
}

impl From<CodecError> for ServingEnd {
    fn from(error: CodecError) -> ServingEnd {
        match error {
            // Killed in the middle of a frame.
            CodecError::Gone | CodecError::Truncated { .. } => ServingEnd::Gone,
            other => ServingEnd::protocol(other),
        }
    }
}

/// What the threads share.
pub(crate) struct WorkerLink {
    writer: Mutex<FrameWriter<UnixStream, FromWorker>>,
    /// Measured with every heartbeat: reading `/proc` after each batch would cost more than a small batch.
    pub(crate) rss_bytes: AtomicU64,
}

pub(crate) type Frames = FrameReader<Polled, ToWorker>;

/// Waits with `poll` and reads without waiting. A thread that waits inside of a read is also woken whenever the other side takes bytes
/// out of the socket: once for each answer, for nothing.
pub(crate) struct Polled(UnixStream);

impl Read for Polled {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {}
                received => return Ok(received.map(|(n, _)| n)?),
            }
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl WorkerLink {
    /// Says hello. There is no other thread yet: what confines this one must hold for all.
    pub(crate) fn start(socket: &UnixStream) -> Result<(Arc<WorkerLink>, Frames), ServingEnd> {
        let reader = socket.try_clone().map_err(ServingEnd::protocol)?;
        let writer = socket.try_clone().map_err(ServingEnd::protocol)?;
        let link = Arc::new(WorkerLink {
            writer: Mutex::new(FrameWriter::new(writer)),
            rss_bytes: AtomicU64::new(rss_bytes()),
        });
        link.send(&FromWorker::Hello {
            protocol: PROTOCOL_VERSION,
            build: crate::BUILD.to_owned(),
            pid: std::process::id(),
            visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        })?;
        Ok((link, FrameReader::new(Polled(reader))))
    }

    pub(crate) fn send(&self, frame: &FromWorker) -> Result<(), CodecError> {
        // A panic while writing aborts the process; in tests a half-written frame shows at the other end.
        locked(&self.writer).write(frame)
    }

    /// Runs a batch and answers for it.
    pub(crate) fn run_one(
        &self,
        run: &BatchRun,
        engine: impl FnOnce(&BatchRun, &mut RunTiming) -> RunResult,
    ) -> Result<(), ServingEnd> {
        let batch = run.batch;
        let mut timing = RunTiming::default();
        let result = engine(run, &mut timing);
        let EngineRunError { kind, mut error } = match result {
            Ok(dynamic) => {
                let rss_bytes = self.rss_bytes.load(Ordering::Relaxed);
                let done = FromWorker::Done {
                    batch,
                    dynamic,
                    without: RowsWithoutOutputs::default(),
                    timing,
                    rss_bytes,
                };
                match self.send(&done) {
                    // Half the batch has half the outputs.
                    Err(error @ CodecError::TooLarge { .. }) => EngineRunError {
                        kind: RunErrorKind::TooLarge,
                        error: format!("outputs of dynamic shape do not fit into one answer: {error}"),
                    },
                    sent => return Ok(sent?),
                }
            }
            Err(error) => error,
        };
        cut_words(&mut error);
        self.send(&FromWorker::Failed { batch, kind, error, timing })?;
        match kind {
            RunErrorKind::Device => Err(ServingEnd::Code(EXIT_DEVICE)),
            RunErrorKind::OutOfMemory
            | RunErrorKind::Model
            | RunErrorKind::Row(_)
            | RunErrorKind::Shape
            | RunErrorKind::Mixed
            | RunErrorKind::TooLarge => Ok(()),
        }
    }

    /// The watch: beats, and ends the process when the parent has closed its side or is gone. It never reads, and frames do not wake it.
    pub(crate) fn watch(&self, socket: &UnixStream, leave: &Leave) {
        let mut next = Instant::now() + HEARTBEAT;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut hang_up = [PollFd::new(socket, PollFlags::RDHUP)];
            match poll(&mut hang_up, Some(&timeout)) {
                Ok(0) if self.beat() => next = Instant::now() + HEARTBEAT,
                Err(Errno::INTR) => {}
                // Closed, or a socket that cannot be watched: without a watch this process could outlive its parent.
                Ok(_) | Err(_) => return leave(0),
            }
        }
    }

    /// Says that the worker is alive. `false`: the parent does not listen any more.
    fn beat(&self) -> bool {
        self.rss_bytes.store(rss_bytes(), Ordering::Relaxed);
        let mut writer = locked(&self.writer);
        let mut sent = writer.write(&FromWorker::Heartbeat);
        if waiting::is_waiting() {
            sent = sent.and_then(|()| writer.write(&FromWorker::Waiting));
        }
        sent.is_ok()
    }
}

/// As much as a main thread usually has: what a model needs must not depend on which thread runs it.
pub const STACK: usize = 8 << 20;

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ServingEnd> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body);
    thread.map(drop).map_err(|e| ServingEnd::Protocol(format!("thread `{name}` cannot be started: {e}")))
}

/// Resident memory in bytes without shared memory: the arena belongs to the parent, and pages of it that were touched are no
/// growth of the worker. 0 where `/proc` cannot be read.
pub(crate) fn rss_bytes() -> u64 {
    own_memory().map_or(0, |memory| memory.resident.saturating_sub(memory.shared))
}
