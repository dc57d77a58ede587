//! The worker's side of the protocol, for any engine. It knows nothing of ONNX Runtime and never touches a tensor.
//!
//! Two threads from the first `Load` on: the caller's reads frames, loads and runs, one after the other, so that a frame wakes the thread that acts on it and no
//! other; the watch sends heartbeats and ends the process when the parent hangs up, even while a session runs for seconds. Where several
//! batches run at once, each has a thread of its own instead (`streams`), and the caller's only reads.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::arena::{SharedMemory, WorkerArena, check_output_slot, check_rows};
use crate::codec::{CodecError, FrameReader, FrameWriter};
use crate::frames::{
    DynamicOutput, FromWorker, Load, PROTOCOL_VERSION, Run, RunErrorKind, RunTiming, ToWorker,
};
use bincode::{Decode, config};
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::failure::cut_words;
use orchestra_core::locked;
use orchestra_core::{ErrorClass, SandboxMode};
use orchestra_machine::processes::own_memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::process::{EXIT_DEVICE, EXIT_LOAD_FAILED, EXIT_PROTOCOL};
use crate::program::confined_words;
use crate::sandbox::Sandbox;
use crate::streams::Streams;
use crate::waiting;

/// How often the worker says that it is alive.
pub const HEARTBEAT: Duration = Duration::from_millis(250);

/// What runs batches. Called from one thread, in the order of the frames.
pub trait Engine {
    /// What this process has to be able to do for `load`, and nothing else. It is confined to that before anything is loaded, for good.
    ///
    /// # Errors
    /// `load` makes no sense to this engine.
    fn sandbox(&self, load: &Load) -> Result<Sandbox, LoadError>;

    /// Loads a model and warms it up for `load.streams` batches at once. Called once.
    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError>;

    /// Runs one batch, whose rows lie within the arena. Leaves outputs of fixed shape in the rows of its output slot and returns the others.
    /// Notes in `timing` how long each phase took, also when it fails.
    fn run(&mut self, run: &Run, timing: &mut RunTiming) -> Result<Answer, RunError>;

    /// Gives what it loaded away, as parts that run batches at the same time, each on a thread of its own: `load.streams`.
    /// Called once after a load. With one or none, `run` is called instead.
    fn take_streams(&mut self) -> Vec<Box<dyn Stream>>;
}

/// What runs one batch at a time, beside others that do the same.
pub trait Stream: Send {
    /// As [`Engine::run`].
    fn run(&mut self, run: &Run, timing: &mut RunTiming) -> Result<Answer, RunError>;
}

/// What became of a batch that went well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done; outputs of dynamic shape are here, in the order of the model.
    Done(Vec<DynamicOutput>),
    /// It is left at a checkpoint: see [`FromWorker::Paused`].
    Paused,
}

/// What an engine says about a model that it loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Nodes per execution provider.
    pub providers: Vec<(String, u32)>,
    pub runtime_version: String,
    /// The largest batch size that it was warmed up with; 0 if none ran.
    pub warmed: usize,
}

impl Loaded {
    /// As the parent is told, with the time that it took in nanoseconds and the resident memory of the process.
    pub fn into_frame(self, load_ns: u64, rss_bytes: u64) -> FromWorker {
        let Loaded { providers, runtime_version, warmed } = self;
        FromWorker::Loaded { providers, runtime_version, warmed, load_ns, rss_bytes }
    }
}

/// Why an engine cannot serve a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct LoadError {
    /// `Permanent`, `Transient` or `Overload`: see `FromWorker::LoadFailed`.
    pub class: ErrorClass,
    /// What failed, what was expected, what to do.
    pub error: String,
}

impl LoadError {
    /// No other try on this device can succeed.
    pub fn permanent(error: impl Into<String>) -> Self {
        Self { class: ErrorClass::Permanent, error: error.into() }
    }
}

/// Reads what a `Load` frame has for one engine alone, of `MOST` bytes.
///
/// # Errors
/// It is of another engine.
pub fn decode_spec<T: Decode<()>, const MOST: usize>(bytes: &[u8]) -> Result<T, LoadError> {
    let refused = |what: String| {
        LoadError::permanent(format!(
            "the `Load` frame is for another engine: {what}; use the worker executable of the same build"
        ))
    };
    match bincode::decode_from_slice(bytes, config::standard().with_limit::<MOST>()) {
        Ok((spec, used)) if used == bytes.len() => Ok(spec),
        Ok((_, used)) => Err(refused(format!("{used} of {} bytes are used", bytes.len()))),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Why a run gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct RunError {
    /// What it means for the batch. After `Device` the worker exits.
    pub kind: RunErrorKind,
    /// The runtime's words.
    pub error: String,
}

impl RunError {
    /// It speaks against the model or its data.
    pub fn of_model(error: impl Into<String>) -> Self {
        Self { kind: RunErrorKind::Model, error: error.into() }
    }

    /// Fewer rows may do.
    pub fn out_of_memory(error: impl Into<String>) -> Self {
        Self { kind: RunErrorKind::OutOfMemory, error: error.into() }
    }

    /// Of what was run before the first batch: a device that fails may be better next time, a model that is refused will not.
    pub fn at_load(self) -> LoadError {
        let class = match self.kind {
            RunErrorKind::OutOfMemory => ErrorClass::Overload,
            RunErrorKind::Device => ErrorClass::Transient,
            RunErrorKind::Model | RunErrorKind::Row(_) | RunErrorKind::Shape | RunErrorKind::Mixed => {
                ErrorClass::Permanent
            }
        };
        LoadError { class, error: self.error }
    }
}

/// Ends the process with this code. In tests it may return; then the thread that called it ends.
pub type Leave = Arc<dyn Fn(i32) + Send + Sync>;

/// Speaks the protocol on `socket` until the worker has to end, and returns the exit code. The watch calls `leave` by itself when the
/// parent has closed its side.
pub fn serve<E: Engine>(
    socket: UnixStream,
    memory: SharedMemory<OwnedFd>,
    engine: &mut E,
    leave: Leave,
) -> i32 {
    let result = Link::start(&socket).and_then(|(link, frames)| {
        Server { socket, link, leave, memory: Some(memory), layout: None, streams: None, engine }
            .serve(frames)
    });
    result.map_or_else(End::exit_code, |()| 0)
}

/// Why serving ends.
pub(crate) enum End {
    Gone,
    /// A frame that was sent says why.
    Code(i32),
    /// What went over the wire makes no sense.
    Protocol(String),
}

impl End {
    fn protocol(what: impl fmt::Display) -> End {
        End::Protocol(what.to_string())
    }

    /// What the process exits with. Says what has no other way to be known.
    pub(crate) fn exit_code(self) -> i32 {
        match self {
            End::Gone => 0,
            End::Code(code) => code,
            End::Protocol(what) => {
                eprintln!("worker: protocol error: {what}");
                EXIT_PROTOCOL
            }
        }
    }
}

impl From<CodecError> for End {
    fn from(error: CodecError) -> End {
        match error {
            // Killed in the middle of a frame.
            CodecError::Gone | CodecError::Truncated { .. } => End::Gone,
            other => End::protocol(other),
        }
    }
}

/// What the threads share.
pub(crate) struct Link {
    writer: Mutex<FrameWriter<UnixStream, FromWorker>>,
    /// Measured with every heartbeat: reading `/proc` after each batch would cost more than a small batch.
    rss_bytes: AtomicU64,
}

type Frames = FrameReader<Polled, ToWorker>;

/// Waits with `poll` and reads without waiting. A thread that waits inside of a read is also woken whenever the other side takes bytes
/// out of the socket: once for each answer, for nothing.
struct Polled(UnixStream);

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

impl Link {
    /// Says hello. There is no other thread yet: what confines this one must hold for all.
    fn start(socket: &UnixStream) -> Result<(Arc<Link>, Frames), End> {
        let reader = socket.try_clone().map_err(End::protocol)?;
        let writer = socket.try_clone().map_err(End::protocol)?;
        let link = Arc::new(Link {
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

    fn send(&self, frame: &FromWorker) -> Result<(), CodecError> {
        // A panic while writing aborts the process; in tests a half-written frame shows at the other end.
        locked(&self.writer).write(frame)
    }

    /// Runs a batch and answers for it.
    pub(crate) fn run_one(
        &self,
        run: &Run,
        engine: impl FnOnce(&Run, &mut RunTiming) -> Result<Answer, RunError>,
    ) -> Result<(), End> {
        let batch = run.batch;
        let mut timing = RunTiming::default();
        let result = engine(run, &mut timing);
        let RunError { kind, mut error } = match result {
            Ok(Answer::Paused) => {
                let rss_bytes = self.rss_bytes.load(Ordering::Relaxed);
                return Ok(self.send(&FromWorker::Paused { batch, timing, rss_bytes })?);
            }
            Ok(Answer::Done(dynamic)) => {
                let rss_bytes = self.rss_bytes.load(Ordering::Relaxed);
                match self.send(&FromWorker::Done { batch, dynamic, timing, rss_bytes }) {
                    // Half the batch has half the outputs.
                    Err(error @ CodecError::TooLarge { .. }) => RunError::out_of_memory(format!(
                        "outputs of dynamic shape do not fit into one answer: {error}"
                    )),
                    sent => return Ok(sent?),
                }
            }
            Err(error) => error,
        };
        cut_words(&mut error);
        self.send(&FromWorker::Failed { batch, kind, error, timing })?;
        match kind {
            RunErrorKind::Device => Err(End::Code(EXIT_DEVICE)),
            RunErrorKind::OutOfMemory
            | RunErrorKind::Model
            | RunErrorKind::Row(_)
            | RunErrorKind::Shape
            | RunErrorKind::Mixed => Ok(()),
        }
    }

    /// The watch: beats, and ends the process when the parent has closed its side or is gone. It never reads, and frames do not wake it.
    fn watch(&self, socket: &UnixStream, leave: &Leave) {
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

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), End> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body);
    thread.map(drop).map_err(|e| End::Protocol(format!("thread `{name}` cannot be started: {e}")))
}

/// The thread that loads and runs.
struct Server<'e, E> {
    socket: UnixStream,
    link: Arc<Link>,
    leave: Leave,
    /// Until a model is loaded.
    memory: Option<SharedMemory<OwnedFd>>,
    /// What runs are checked against before the engine sees them, once a model is loaded.
    layout: Option<BatchLayout>,
    /// The threads that run batches, where several run at once.
    streams: Option<Streams>,
    engine: &'e mut E,
}

impl<E: Engine> Server<'_, E> {
    fn serve(&mut self, mut frames: Frames) -> Result<(), End> {
        while let Some(frame) = frames.read()? {
            match frame {
                ToWorker::Load(load) => self.load(&load)?,
                ToWorker::Run(run) => self.run(&run)?,
            }
        }
        Ok(())
    }

    fn load(&mut self, load: &Load) -> Result<(), End> {
        let started = Instant::now();
        let memory = self.memory.take().ok_or_else(|| End::protocol("a second `Load` frame"))?;
        let sandbox = self.engine.sandbox(load);
        let is_confined = sandbox.as_ref().is_ok_and(|sandbox| sandbox.mode != SandboxMode::Off);
        let confined = sandbox.and_then(|sandbox| sandbox.enter());
        let watched = self.socket.try_clone().map_err(End::protocol)?;
        let (link, leave) = (Arc::clone(&self.link), Arc::clone(&self.leave));
        spawn("watch", move || link.watch(&watched, &leave))?;
        let mapped = WorkerArena::map(memory, load.layout.clone())
            .map_err(|e| LoadError::permanent(format!("the batch slots cannot be mapped: {e}")));
        let loaded = confined.and(mapped).and_then(|arena| self.engine.load(load, arena));
        match loaded {
            Ok(loaded) => {
                self.layout = Some(load.layout.clone());
                let streams = self.engine.take_streams();
                if streams.len() > 1 {
                    self.streams = Some(Streams::start(streams, &self.link, &self.leave)?);
                }
                let (load_ns, rss_bytes) = (nanos(started.elapsed()), rss_bytes());
                self.link.rss_bytes.store(rss_bytes, Ordering::Relaxed);
                Ok(self.link.send(&loaded.into_frame(load_ns, rss_bytes))?)
            }
            Err(LoadError { class, mut error }) => {
                const DENIED: [&str; 3] =
                    ["permission denied", "operation not permitted", "cannot open shared object file"];
                let said = error.to_lowercase();
                if is_confined && DENIED.iter().any(|words| said.contains(words)) {
                    error += &format!("; {}", confined_words("model"));
                }
                cut_words(&mut error);
                self.link.send(&FromWorker::LoadFailed { class, error })?;
                Err(End::Code(EXIT_LOAD_FAILED))
            }
        }
    }

    fn run(&mut self, run: &Run) -> Result<(), End> {
        let layout = self.layout.as_ref().ok_or_else(|| End::protocol("a `Run` frame before `Load`"))?;
        check_rows(layout, run.slot, run.first_row, run.rows)
            .and_then(|()| check_output_slot(layout, run.output_slot))
            .map_err(End::protocol)?;
        match &self.streams {
            Some(streams) => streams.take(*run),
            None => self.link.run_one(run, |run, timing| self.engine.run(run, timing)),
        }
    }
}

/// Resident memory in bytes without shared memory: the arena belongs to the parent, and pages of it that were touched are no
/// growth of the worker. 0 where `/proc` cannot be read.
fn rss_bytes() -> u64 {
    own_memory().map_or(0, |memory| memory.resident.saturating_sub(memory.shared))
}

/// A duration in nanoseconds; 584 years fit.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
