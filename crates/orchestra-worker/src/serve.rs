//! The worker's side of the protocol, for any engine. It knows nothing of ONNX Runtime and never touches a tensor.
//!
//! Three threads: one reads frames and ends the process when the parent is gone, even while a session runs for seconds; one sends
//! heartbeats; the caller's thread loads and runs, in the order of the frames.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{BatchId, ErrorClass, TensorSpec};
use orchestra_wire::arena::{WorkerArena, check_rows};
use orchestra_wire::codec::{CodecError, FrameReader, FrameWriter};
use orchestra_wire::frames::{
    DynamicOutput, FromWorker, Load, PROTOCOL_VERSION, Run, RunErrorKind, RunTiming, ToWorker,
};

use crate::process::{EXIT_DEVICE, EXIT_LOAD_FAILED, EXIT_PROTOCOL};
use crate::rss::rss_bytes;

/// How often the worker says that it is alive.
pub const HEARTBEAT: Duration = Duration::from_millis(250);
/// Runs that may wait for an answer. The protocol allows two; a parent that sends many more is broken, and this bounds the queue.
const MAX_UNANSWERED: usize = 64;

/// What runs batches. Called from one thread, in the order of the frames.
pub trait Engine {
    /// Loads a model and warms it up. Called once.
    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError>;

    /// Runs one batch, whose rows lie within the arena. Leaves fixed-shape outputs there and returns the others. Notes in `timing` how
    /// long each phase took (all but `queued_ns`), also when it fails.
    fn run(&mut self, run: &Run, timing: &mut RunTiming) -> Result<Vec<DynamicOutput>, RunError>;
}

/// What an engine says about a model that it loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The model's inputs as the runtime sees them.
    pub inputs: Vec<TensorSpec>,
    /// The model's outputs as the runtime sees them.
    pub outputs: Vec<TensorSpec>,
    /// Nodes per execution provider.
    pub providers: Vec<(String, u32)>,
    /// The runtime's version.
    pub runtime_version: String,
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

/// Why a run gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct RunError {
    /// What it means for the batch. After `Device` the worker exits.
    pub kind: RunErrorKind,
    /// The runtime's words.
    pub error: String,
}

/// Ends the process with this code. In tests it may return; then the thread that called it ends.
pub type Leave = Arc<dyn Fn(i32) + Send + Sync>;

/// Speaks the protocol on `socket` until the worker has to end, and returns the exit code. The reading thread calls `leave` by itself
/// when the parent is gone or asks for it.
pub fn serve<E: Engine>(socket: UnixStream, arena: OwnedFd, engine: &mut E, leave: Leave) -> i32 {
    let result = Link::start(&socket, leave)
        .and_then(|(link, frames)| Server { link, arena: Some(arena), layout: None, engine }.serve(&frames));
    match result {
        Ok(()) => 0,
        Err(End::Gone) => 0,
        Err(End::Code(code)) => code,
        Err(End::Protocol(what)) => {
            eprintln!("worker: protocol error: {what}");
            EXIT_PROTOCOL
        }
    }
}

/// Why serving ends.
enum End {
    /// The parent is gone.
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
}

impl From<CodecError> for End {
    fn from(error: CodecError) -> End {
        match error {
            CodecError::Gone => End::Gone,
            other => End::protocol(other),
        }
    }
}

/// A frame and when it arrived.
type Arrived = (ToWorker, Instant);

/// What the threads share.
struct Link {
    writer: Mutex<FrameWriter<UnixStream, FromWorker>>,
    running: Mutex<Option<BatchId>>,
    /// Measured with every heartbeat: reading `/proc` after each batch would cost more than a small batch.
    rss_bytes: AtomicU64,
    unanswered: AtomicUsize,
}

impl Link {
    /// Says hello and starts the threads that read and beat.
    fn start(socket: &UnixStream, leave: Leave) -> Result<(Arc<Link>, Receiver<Arrived>), End> {
        let reader = socket.try_clone().map_err(End::protocol)?;
        let writer = socket.try_clone().map_err(End::protocol)?;
        let link = Arc::new(Link {
            writer: Mutex::new(FrameWriter::new(writer)),
            running: Mutex::new(None),
            rss_bytes: AtomicU64::new(rss_bytes()),
            unanswered: AtomicUsize::new(0),
        });
        link.send(&FromWorker::Hello {
            protocol: PROTOCOL_VERSION,
            build: orchestra_wire::BUILD.to_owned(),
            pid: std::process::id(),
            visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        })?;
        // Bounded by `MAX_UNANSWERED`, and not by its capacity: a reader that blocks would not see the parent's end.
        let (to_main, frames) = channel();
        let (alive, ended) = channel();
        let shared = Arc::clone(&link);
        spawn("read", move || shared.read(FrameReader::new(reader), &to_main, &leave, alive))?;
        let shared = Arc::clone(&link);
        spawn("heartbeat", move || shared.beat(&ended))?;
        Ok((link, frames))
    }

    fn send(&self, frame: &FromWorker) -> Result<(), CodecError> {
        // A panic while writing aborts the process; in tests a half-written frame shows at the other end.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).write(frame)
    }

    fn set_running(&self, batch: Option<BatchId>) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = batch;
    }

    /// The reading thread. `_alive` is dropped with it and so ends the heartbeat.
    fn read(
        &self,
        mut reader: FrameReader<UnixStream, ToWorker>,
        to_main: &Sender<Arrived>,
        leave: &Leave,
        _alive: Sender<()>,
    ) {
        loop {
            let frame = match reader.read() {
                Ok(Some(ToWorker::Shutdown) | None) | Err(CodecError::Truncated { .. }) => return leave(0),
                Ok(Some(frame)) => frame,
                Err(error) => {
                    eprintln!("worker: protocol error: {error}");
                    return leave(EXIT_PROTOCOL);
                }
            };
            if self.unanswered.fetch_add(1, Ordering::AcqRel) >= MAX_UNANSWERED {
                eprintln!("worker: protocol error: more than `{MAX_UNANSWERED}` frames wait for an answer");
                return leave(EXIT_PROTOCOL);
            }
            if to_main.send((frame, Instant::now())).is_err() {
                return;
            }
        }
    }

    /// The heartbeat thread.
    fn beat(&self, ended: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(HEARTBEAT) {
            let rss_bytes = rss_bytes();
            self.rss_bytes.store(rss_bytes, Ordering::Relaxed);
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            // Looked at with the writer in hand: no batch is called running after its answer.
            let running = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if writer.write(&FromWorker::Heartbeat { running, rss_bytes }).is_err() {
                return; // The reading thread sees the same and ends the process.
            }
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), End> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map(drop).map_err(|e| End::Protocol(format!("thread `{name}` cannot be started: {e}")))
}

/// The thread that loads and runs.
struct Server<'e, E> {
    link: Arc<Link>,
    /// Until a model is loaded.
    arena: Option<OwnedFd>,
    /// What runs are checked against before the engine sees them, once a model is loaded.
    layout: Option<BatchLayout>,
    engine: &'e mut E,
}

impl<E: Engine> Server<'_, E> {
    fn serve(&mut self, frames: &Receiver<Arrived>) -> Result<(), End> {
        while let Ok((frame, arrived)) = frames.recv() {
            match frame {
                ToWorker::Load(load) => self.load(&load, arrived)?,
                ToWorker::Run(run) => self.run(&run, arrived)?,
                // The reading thread has ended the process.
                ToWorker::Shutdown => return Ok(()),
            }
        }
        Ok(())
    }

    fn load(&mut self, load: &Load, arrived: Instant) -> Result<(), End> {
        let arena = self.arena.take().ok_or_else(|| End::protocol("a second `Load` frame"))?;
        let mapped = WorkerArena::map(arena, load.layout.clone()).map_err(|e| LoadError {
            class: ErrorClass::Permanent,
            error: format!("the batch slots cannot be mapped: {e}"),
        });
        let loaded = mapped.and_then(|arena| self.engine.load(load, arena));
        self.link.unanswered.fetch_sub(1, Ordering::AcqRel);
        match loaded {
            Ok(Loaded { inputs, outputs, providers, runtime_version }) => {
                self.layout = Some(load.layout.clone());
                let (load_ns, rss_bytes) = (nanos(arrived.elapsed()), rss_bytes());
                self.link.rss_bytes.store(rss_bytes, Ordering::Relaxed);
                let frame =
                    FromWorker::Loaded { inputs, outputs, providers, runtime_version, load_ns, rss_bytes };
                Ok(self.link.send(&frame)?)
            }
            Err(LoadError { class, error }) => {
                self.link.send(&FromWorker::LoadFailed { class, error })?;
                Err(End::Code(EXIT_LOAD_FAILED))
            }
        }
    }

    fn run(&mut self, run: &Run, arrived: Instant) -> Result<(), End> {
        let layout = self.layout.as_ref().ok_or_else(|| End::protocol("a `Run` frame before `Load`"))?;
        check_rows(layout, run.slot, run.first_row, run.rows).map_err(End::protocol)?;
        self.link.set_running(Some(run.batch));
        let mut timing = RunTiming { queued_ns: nanos(arrived.elapsed()), ..RunTiming::default() };
        let result = self.engine.run(run, &mut timing);
        self.link.set_running(None);
        self.link.unanswered.fetch_sub(1, Ordering::AcqRel);
        let batch = run.batch;
        match result {
            Ok(dynamic) => {
                let rss_bytes = self.link.rss_bytes.load(Ordering::Relaxed);
                match self.link.send(&FromWorker::Done { batch, dynamic, timing, rss_bytes }) {
                    // Half the batch has half the outputs.
                    Err(error @ CodecError::TooLarge { .. }) => {
                        let error = format!("outputs of dynamic shape do not fit into one answer: {error}");
                        self.failed(batch, RunErrorKind::OutOfMemory, error, timing)
                    }
                    other => Ok(other?),
                }
            }
            Err(RunError { kind, error }) => self.failed(batch, kind, error, timing),
        }
    }

    fn failed(
        &self,
        batch: BatchId,
        kind: RunErrorKind,
        error: String,
        timing: RunTiming,
    ) -> Result<(), End> {
        self.link.send(&FromWorker::Failed { batch, kind, error, timing })?;
        match kind {
            RunErrorKind::Device => Err(End::Code(EXIT_DEVICE)),
            RunErrorKind::OutOfMemory | RunErrorKind::Model => Ok(()),
        }
    }
}

/// A duration in nanoseconds; 584 years fit.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
