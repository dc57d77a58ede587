//! A worker that is a thread of this program: the loop of all workers, with its frames, heartbeats and shared memory, over a test engine. What it answers,
//! the engine says.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::thread;

use orchestra_core::{SandboxMode, WorkerExit};
use orchestra_launch::{Launched, WorkerProcess};
use orchestra_worker::arena::{SharedMemory, WorkerArena};
use orchestra_worker::engine::RunResult;
use orchestra_worker::frames::{BatchRun, Load, RunTiming};
use orchestra_worker::{Engine, EngineRunError, LoadError, Loaded, Sandbox, Stream, serve};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::stage::TestStage;
use super::{TestAnswer, TestBatch};
use crate::tensor::{Tensor, Tensors};

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;

/// Starts a worker over this memory.
pub(super) fn start(
    stage: &Arc<TestStage>,
    nth: usize,
    memory: SharedMemory<OwnedFd>,
) -> io::Result<Launched> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (reader, writer) = tokio::net::UnixStream::from_std(ours)?.into_split();
    let (gone, exit) = watch::channel(None);
    let end = Arc::new(ThreadEnd { socket: theirs.try_clone()?, forced: watch::Sender::new(None) });
    let engine = ThreadEngine {
        stage: Arc::clone(stage),
        nth,
        end: Arc::clone(&end),
        arena: None,
        runtime: Handle::current(),
    };
    let exits = ExitReport { end: Arc::clone(&end), code: 0, gone };
    thread::Builder::new().name("test-worker".into()).spawn(move || live(engine, theirs, memory, exits))?;
    Ok(Launched {
        reader: Box::new(reader),
        writer: Box::new(writer),
        stderr: Box::new(tokio::io::empty()),
        process: Box::new(ThreadProcess { end, exit }),
    })
}

fn live(mut engine: ThreadEngine, socket: UnixStream, memory: SharedMemory<OwnedFd>, mut exits: ExitReport) {
    // The parent has hung up: a batch that is held would keep this thread for ever.
    let end = Arc::clone(&exits.end);
    let leave = Arc::new(move |code| end.force(WorkerExit::Code(code)));
    exits.code = serve::serve(socket, memory, &mut engine, leave);
    drop(engine); // With the memory that it has mapped: the exit says that nothing touches it any more.
}

/// Ends a worker.
struct ThreadEnd {
    socket: UnixStream,
    /// Why, where it did not end by itself. The first reason stays.
    forced: watch::Sender<Option<WorkerExit>>,
}

impl ThreadEnd {
    fn force(&self, exit: WorkerExit) {
        self.forced.send_if_modified(|forced| forced.is_none().then(|| *forced = Some(exit)).is_some());
        // The other side may have done so.
        drop(self.socket.shutdown(Shutdown::Both));
    }
}

/// Tells of the end of the thread, also by a panic.
struct ExitReport {
    end: Arc<ThreadEnd>,
    code: i32,
    gone: watch::Sender<Option<WorkerExit>>,
}

impl Drop for ExitReport {
    fn drop(&mut self) {
        let own = if thread::panicking() { WorkerExit::Signal(SIGABRT) } else { WorkerExit::Code(self.code) };
        self.end.force(own);
        self.gone.send_replace(self.end.forced.borrow().clone());
    }
}

/// The parent's hold on a worker.
struct ThreadProcess {
    end: Arc<ThreadEnd>,
    exit: watch::Receiver<Option<WorkerExit>>,
}

impl WorkerProcess for ThreadProcess {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn kill(&mut self) {
        self.end.force(WorkerExit::Signal(SIGKILL));
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = WorkerExit> + Send + '_>> {
        Box::pin(async {
            let exit = self.exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
            exit.unwrap_or(WorkerExit::Signal(SIGKILL))
        })
    }
}

impl Drop for ThreadProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

struct ThreadEngine {
    stage: Arc<TestStage>,
    nth: usize,
    end: Arc<ThreadEnd>,
    arena: Option<WorkerArena>,
    runtime: Handle,
}

impl Engine for ThreadEngine {
    fn sandbox(&self, _: &Load) -> Result<Sandbox, LoadError> {
        Ok(Sandbox { mode: SandboxMode::Off, ..Sandbox::default() })
    }

    fn load(&mut self, _: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        self.arena = Some(arena);
        let providers = vec![("TestEngine".to_owned(), 1)];
        Ok(Loaded { providers, runtime_version: "test".to_owned(), warmed: 0 })
    }

    fn run(&mut self, run: &BatchRun, values: &[u8], _: &mut RunTiming) -> RunResult {
        let inputs = self.inputs(run, values)?;
        let TestStage { engine, name, outputs, .. } = &*self.stage;
        let (rows, attempt, worker) = (run.rows, run.attempt, self.nth);
        let mut answer = (engine.0)(&TestBatch { stage: name, inputs, rows, attempt, worker, outputs });
        loop {
            match answer {
                TestAnswer::Outputs(outputs) => return self.write(run, &outputs),
                TestAnswer::Fails(error) => return Err(EngineRunError::of_model(error)),
                TestAnswer::Crashes => {
                    self.end.force(WorkerExit::Signal(SIGSEGV));
                    return Err(EngineRunError::of_model("nobody hears this"));
                }
                TestAnswer::Held(hold, then) => {
                    let mut forced = self.end.forced.subscribe();
                    self.runtime.block_on(async {
                        tokio::select! {
                            () = hold.pass() => {}
                            _ = forced.wait_for(Option::is_some) => {}
                        }
                    });
                    answer = *then;
                }
            }
        }
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        Vec::new()
    }
}

impl ThreadEngine {
    fn arena(&self) -> &WorkerArena {
        self.arena.as_ref().expect("runs come after the load")
    }

    fn inputs(&self, run: &BatchRun, values: &[u8]) -> Result<Tensors, EngineRunError> {
        let in_slot = |(at, spec): (usize, &orchestra_core::TensorSpec)| {
            let memory = self.arena().input_rows(run.slot, at, run.first_row, run.rows).map_err(of_range)?;
            // SAFETY: the parent has leased these rows to this run: nothing writes to them meanwhile.
            let bytes = unsafe { slice::from_raw_parts(memory.ptr, memory.len) };
            let row = spec.fixed_row().expect("a slot has rows of one size");
            Ok((spec.name.clone(), Tensor::of_rows(spec.dtype, run.rows, &row, &[bytes])))
        };
        let tensors: Result<Vec<_>, _> = self.stage.inputs.iter().enumerate().map(in_slot).collect();
        Ok(tensors?.into_iter().chain(self.stage.texts(values, run.rows)?).collect())
    }

    /// Leaves outputs of fixed shape in their rows, and gives the others.
    fn write(&self, run: &BatchRun, outputs: &Tensors) -> RunResult {
        let mut sent = Vec::new();
        for at in 0..self.stage.outputs.len() {
            let tensor = self.stage.output(outputs, at, run.rows)?;
            if self.arena().layout().outputs[at].is_none() {
                sent.push(self.stage.sent(tensor, at));
                continue;
            }
            let memory = self.arena().output_rows(run.output_slot, at, run.first_row, run.rows);
            let memory = memory.map_err(of_range)?;
            // SAFETY: the rows of this worker's own outputs are those of this run, and nothing else uses them until it is answered.
            let rows = unsafe { slice::from_raw_parts_mut(memory.ptr, memory.len) };
            let bytes = tensor.as_bytes().map_err(|error| EngineRunError::of_model(error.to_string()))?;
            rows.copy_from_slice(bytes);
        }
        Ok(sent)
    }
}

fn of_range(error: orchestra_worker::arena::RangeError) -> EngineRunError {
    EngineRunError::of_model(error.to_string())
}
