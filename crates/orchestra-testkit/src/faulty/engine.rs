//! The engine of the misbehaving worker: copies inputs to outputs, and does what its fault says. It loads no runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orchestra_core::SandboxMode;
use orchestra_worker::arena::{RangeError, WorkerArena};
use orchestra_worker::frames::{DynamicOutput, Load, Run, RunErrorKind, RunTiming};
use orchestra_worker::{Answer, Engine, LoadError, Loaded, RunError, Sandbox, Stream};

use super::points;
use super::{Fault, sleep_for_ever};

/// What a worker writes that dies in the middle of its outputs: no test picture looks like it.
const TORN: u8 = 0xee;

pub(super) struct FaultyEngine {
    shared: Arc<Shared>,
    streams: usize,
}

/// What all streams of a worker have in common.
struct Shared {
    fault: Fault,
    arena: OnceLock<WorkerArena>,
    runs: AtomicU64,
}

/// A run, and its number among those of the process, from 1.
#[derive(Clone, Copy)]
struct Nth<'a> {
    run: &'a Run,
    n: u64,
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
        let shared = &self.shared;
        let fault = &shared.fault;
        if let Some(death) = fault.dies_at("load", 0) {
            death.die()
        }
        if let Some(death) = fault.dies_at("loaded", 0) {
            points::write_frame(&loaded.into_frame(1, 1));
            points::wait_for_unread_frame();
            death.die()
        }
        if fault.is("load-failed") {
            return Err(LoadError::permanent("the test worker was asked not to load".to_owned()));
        }
        if fault.is("garbage") {
            points::write_raw(&[0xff; 64]);
        }
        self.streams = load.streams;
        // The protocol has one load frame.
        drop(self.shared.arena.set(arena));
        Ok(loaded)
    }

    fn run(&mut self, run: &Run, _: &mut RunTiming) -> Result<Answer, RunError> {
        self.shared.run(run).map(Answer::Done)
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        let stream = || Box::new(FaultyStream(Arc::clone(&self.shared))) as Box<dyn Stream>;
        std::iter::repeat_with(stream).take(self.streams).collect()
    }
}

struct FaultyStream(Arc<Shared>);

impl Stream for FaultyStream {
    fn run(&mut self, run: &Run, _: &mut RunTiming) -> Result<Answer, RunError> {
        self.0.run(run).map(Answer::Done)
    }
}

impl FaultyEngine {
    pub(super) fn new(fault: Fault) -> Self {
        let shared = Shared { fault, arena: OnceLock::new(), runs: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), streams: 1 }
    }
}

impl Shared {
    fn run(&self, run: &Run) -> Result<Vec<DynamicOutput>, RunError> {
        let n = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let nth = Nth { run, n };
        let result = self.misbehave(nth).and_then(|()| match self.arena.get() {
            Some(arena) => copy_rows(arena, run),
            None => Err(failure(RunErrorKind::Device, "a run came before the load")),
        });
        if result.is_ok() {
            self.misbehave_afterwards(nth);
        }
        result.map(|()| Vec::new())
    }

    fn misbehave(&self, Nth { run, n }: Nth<'_>) -> Result<(), RunError> {
        if let Some(death) = self.fault.dies_at("run", n) {
            self.arena.get().map_or(Ok(()), |arena| tear_rows(arena, run))?;
            death.die()
        }
        if self.fault.is("slow") {
            // The time is the fault itself; it synchronises nothing.
            std::thread::sleep(Duration::from_millis(self.fault.number));
        }
        if self.fault.is("hang-on-batch") && self.fault.number == n {
            sleep_for_ever()
        }
        Ok(())
    }

    fn misbehave_afterwards(&self, Nth { run, n: nth, .. }: Nth<'_>) {
        let Some(death) = self.fault.death.filter(|_| self.fault.number == nth) else { return };
        match &*self.fault.name {
            "outputs" => {}
            "half-answer" => points::half_answer(run.batch),
            "answered" => points::answer(run.batch),
            "unread" => {
                points::answer(run.batch);
                points::wait_for_unread_frame();
            }
            _ => return,
        }
        death.die()
    }
}

/// Copies inputs to outputs, by place, where their rows have the same size.
fn copy_rows(arena: &WorkerArena, run: &Run) -> Result<(), RunError> {
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

/// Writes nonsense over the first half of each output's rows.
fn tear_rows(arena: &WorkerArena, run: &Run) -> Result<(), RunError> {
    for place in 0..arena.layout().outputs.len() {
        if arena.layout().outputs[place].is_none() {
            continue;
        }
        let to = arena.output_rows(run.output_slot, place, run.first_row, run.rows).map_err(outside)?;
        // SAFETY: it lies within the outputs, and the parent leaves the rows alone until the answer.
        unsafe { std::ptr::write_bytes(to.ptr, TORN, to.len / 2) };
    }
    Ok(())
}

fn outside(error: RangeError) -> RunError {
    failure(RunErrorKind::Device, &error.to_string())
}

fn failure(kind: RunErrorKind, error: &str) -> RunError {
    RunError { kind, error: error.to_owned() }
}
