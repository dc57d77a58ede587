//! The engine of the misbehaving worker: copies inputs to outputs, and does what its fault says. It loads no runtime.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orchestra_core::{ErrorClass, SandboxMode};
use orchestra_worker::arena::{RangeError, WorkerArena};
use orchestra_worker::frames::{BatchRun, DynamicOutput, Load, RunErrorKind, RunTiming};
use orchestra_worker::{Engine, EngineRunError, LoadError, Loaded, Sandbox, Stream, WORKER_SOCKET_FD};

use super::{FAULT_ROOM, Fault, sleep_for_ever};

pub(super) struct FaultyEngine {
    shared: Arc<Shared>,
    streams: usize,
    /// Locked as long as the process lives.
    room: Option<File>,
}

/// A file of its own, of so many that all share.
fn room_in_folder(n: u64) -> Option<File> {
    let folder = PathBuf::from(std::env::var_os(FAULT_ROOM)?);
    let lock =
        |nth| File::create(folder.join(format!("room-{nth}"))).ok().filter(|file| file.try_lock().is_ok());
    (0..n).find_map(lock)
}

/// What all streams of a worker have in common.
struct Shared {
    fault: Fault,
    arena: OnceLock<WorkerArena>,
    runs: AtomicU64,
}

impl Engine for FaultyEngine {
    fn sandbox(&self, _: &Load) -> Result<Sandbox, LoadError> {
        Ok(Sandbox { mode: SandboxMode::Off, ..Sandbox::default() })
    }

    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        let loaded = Loaded {
            providers: vec![("TestExecutionProvider".to_owned(), 1)],
            runtime_version: "none".to_owned(),
            warmed: load.padded_to.unwrap_or_default(),
        };
        let fault = &self.shared.fault;
        if fault.is("abort-at-load") {
            std::process::abort();
        }
        if fault.is("load-failed") {
            return Err(LoadError::permanent("the test worker was asked not to load".to_owned()));
        }
        if fault.is("room") {
            self.room = Some(room_in_folder(fault.number).ok_or_else(|| LoadError {
                class: ErrorClass::Overload,
                error: "the test worker finds no memory beside the others".to_owned(),
            })?);
        }
        if fault.is("garbage") {
            // SAFETY: the worker's protocol keeps this descriptor open as long as the process lives.
            let socket = unsafe { BorrowedFd::borrow_raw(WORKER_SOCKET_FD) };
            // The parent may be gone already; then no process is misled.
            let _ = rustix::io::write(socket, &[0xff; 64]);
        }
        self.streams = load.streams;
        // The protocol has one load frame.
        drop(self.shared.arena.set(arena));
        Ok(loaded)
    }

    fn run(
        &mut self,
        run: &BatchRun,
        _: &[u8],
        _: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        self.shared.run(run)
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        let stream = || Box::new(FaultyStream(Arc::clone(&self.shared))) as Box<dyn Stream>;
        std::iter::repeat_with(stream).take(self.streams).collect()
    }
}

struct FaultyStream(Arc<Shared>);

impl Stream for FaultyStream {
    fn run(
        &mut self,
        run: &BatchRun,
        _: &[u8],
        _: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        self.0.run(run)
    }
}

impl FaultyEngine {
    pub(super) fn new(fault: Fault) -> Self {
        let shared = Shared { fault, arena: OnceLock::new(), runs: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), streams: 1, room: None }
    }
}

impl Shared {
    fn run(&self, run: &BatchRun) -> Result<Vec<DynamicOutput>, EngineRunError> {
        let n = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        if self.fault.is("slow") {
            // The time is the fault itself; it synchronises nothing.
            std::thread::sleep(Duration::from_millis(self.fault.number));
        }
        if self.fault.is("hang-on-batch") && self.fault.number == n {
            sleep_for_ever()
        }
        match self.arena.get() {
            Some(arena) => copy_rows(arena, run).map(|()| Vec::new()),
            None => Err(failure(RunErrorKind::Device, "a run came before the load")),
        }
    }
}

/// Copies inputs to outputs, by place, where their rows have the same size.
fn copy_rows(arena: &WorkerArena, run: &BatchRun) -> Result<(), EngineRunError> {
    let layout = arena.layout();
    let pairs = layout.inputs.len().min(layout.outputs.len());
    for place in 0..pairs {
        let same_size =
            layout.outputs[place].as_ref().is_some_and(|o| o.row_bytes == layout.inputs[place].row_bytes);
        if !same_size {
            continue;
        }
        let from = arena.input_rows(run.slot, place, run.first_row, run.rows).map_err(outside)?;
        let to = arena.output_rows(run.output_slot, place, run.first_row, run.rows).map_err(outside)?;
        // SAFETY: both lie within their own mapping, and the parent leaves the rows alone until the answer.
        unsafe { std::ptr::copy_nonoverlapping(from.ptr, to.ptr, from.len.min(to.len)) };
    }
    Ok(())
}

fn outside(error: RangeError) -> EngineRunError {
    failure(RunErrorKind::Device, &error.to_string())
}

fn failure(kind: RunErrorKind, error: &str) -> EngineRunError {
    EngineRunError { kind, error: error.to_owned() }
}
