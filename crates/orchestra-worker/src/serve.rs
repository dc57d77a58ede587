//! The worker's side of the protocol, for any engine. It knows nothing of ONNX Runtime and never touches a tensor.
//!
//! Two threads from the first `Load` on: the caller's reads frames, loads and runs, one after the other, so that a frame wakes the thread that acts on it and no
//! other; the watch sends heartbeats and ends the process when the parent hangs up, even while a session runs for seconds. Where several
//! batches run at once, each has a thread of its own instead (`streams`), and the caller's only reads.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use orchestra_core::SandboxMode;
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::failure::cut_words;

use crate::arena::{SharedMemory, WorkerArena, check_output_slot, check_rows};
use crate::engine::{Engine, nanos};
use crate::exit_codes::EXIT_LOAD_FAILED;
use crate::frames::{BatchRun, FromWorker, Load, ToWorker};
use crate::link::{Frames, Leave, ServingEnd, WorkerLink, rss_bytes, spawn};
use crate::load_error::LoadError;
use crate::program::confined_words;
use crate::streams::Streams;

/// Speaks the protocol on `socket` until the worker has to end, and returns the exit code. The watch calls `leave` by itself when the
/// parent has closed its side.
pub fn serve<E: Engine>(
    socket: UnixStream,
    memory: SharedMemory<OwnedFd>,
    engine: &mut E,
    leave: Leave,
) -> i32 {
    let result = WorkerLink::start(&socket).and_then(|(link, frames)| {
        Server { socket, link, leave, memory: Some(memory), layout: None, streams: None, engine }
            .serve(frames)
    });
    result.map_or_else(|end| end.exit_code("worker"), |()| 0)
}

/// The thread that loads and runs.
struct Server<'e, E> {
    socket: UnixStream,
    link: Arc<WorkerLink>,
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
    fn serve(&mut self, mut frames: Frames) -> Result<(), ServingEnd> {
        while let Some(frame) = frames.read()? {
            match frame {
                ToWorker::Load(load) => self.load(&load)?,
                ToWorker::Run(run) => self.run(run, Vec::new())?,
                ToWorker::RunWithValues(run, values) => self.run(run, values)?,
            }
        }
        Ok(())
    }

    fn load(&mut self, load: &Load) -> Result<(), ServingEnd> {
        let started = Instant::now();
        let memory = self.memory.take().ok_or_else(|| ServingEnd::protocol("a second `Load` frame"))?;
        let sandbox = self.engine.sandbox(load);
        let is_confined = sandbox.as_ref().is_ok_and(|sandbox| sandbox.mode != SandboxMode::Off);
        let confined = sandbox.and_then(|sandbox| sandbox.enter());
        let watched = self.socket.try_clone().map_err(ServingEnd::protocol)?;
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
                Err(ServingEnd::Code(EXIT_LOAD_FAILED))
            }
        }
    }

    fn run(&mut self, run: BatchRun, values: Vec<u8>) -> Result<(), ServingEnd> {
        let layout =
            self.layout.as_ref().ok_or_else(|| ServingEnd::protocol("a `Run` frame before `Load`"))?;
        check_rows(layout, run.slot, run.first_row, run.rows)
            .and_then(|()| check_output_slot(layout, run.output_slot))
            .map_err(ServingEnd::protocol)?;
        match &self.streams {
            Some(streams) => streams.take(run, values),
            None => self.link.run_one(&run, |run, timing| self.engine.run(run, &values, timing)),
        }
    }
}
