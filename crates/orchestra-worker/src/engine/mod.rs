//! The engine that runs ONNX models. It knows frames and the arena, but neither sockets nor threads.

mod binding;
mod cpu_arena;
mod cuda;
mod errors;
mod library;
mod memory;
mod model;
mod session;

use std::time::Instant;

use orchestra_core::ErrorClass;
use orchestra_wire::arena::WorkerArena;
use orchestra_wire::frames::{DynamicOutput, Load, Run, RunErrorKind, RunTiming};

use crate::digest::{model_digest, short};
use crate::serve::{Engine, LoadError, Loaded, RunError, nanos};
use binding::BoundSession;
use memory::PrivateRows;
use model::Model;

/// One ONNX Runtime session over one arena.
#[derive(Default)]
pub struct OnnxEngine {
    loaded: Option<Serving>,
}

/// A model that is loaded. Fields are dropped in this order: what points into memory before the memory.
struct Serving {
    bound: BoundSession,
    model: Model,
    /// Where batches smaller than the model's only size are padded, once there was one.
    padding: Option<PrivateRows>,
    arena: WorkerArena,
}

impl OnnxEngine {
    /// An engine without a model. Nothing is loaded yet, ONNX Runtime's library neither.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Engine for OnnxEngine {
    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        let environment = library::environment(&load.library)?;
        check_digest(load)?;
        let session = session::open(&environment, load)?;
        let model = Model::check(&session, arena.layout())?;
        let providers = session::providers(&session, &load.device)?;
        let loaded = Loaded {
            inputs: model.session_inputs.clone(),
            outputs: model.session_outputs.clone(),
            providers,
            runtime_version: library::version(&load.library),
        };
        let mut bound = BoundSession::new(session, &load.device).map_err(|e| errors::load(&e.to_string()))?;
        warm_up(&mut bound, &model, &load.warm_up)?;
        self.loaded = Some(Serving { bound, model, padding: None, arena });
        Ok(loaded)
    }

    fn run(&mut self, run: &Run, timing: &mut RunTiming) -> Result<Vec<DynamicOutput>, RunError> {
        let Some(serving) = &mut self.loaded else {
            return Err(RunError { kind: RunErrorKind::Model, error: "no model is loaded".to_owned() });
        };
        match serving.model.batch {
            Some(batch) if batch != run.rows => serving.run_padded(run, batch, timing),
            _ => serving.run_in_place(run, timing),
        }
    }
}

impl Serving {
    /// The session reads and writes the arena itself.
    fn run_in_place(&mut self, run: &Run, timing: &mut RunTiming) -> Result<Vec<DynamicOutput>, RunError> {
        let start = Instant::now();
        let places = self.model.places_in(&self.arena, run).map_err(|e| errors::model(e.to_string()))?;
        timing.bind_ns = nanos(start.elapsed());
        // SAFETY: the parent has leased these rows to this run, and the arena outlives the session.
        unsafe { self.bound.run(&self.model, &places, timing)? };
        let start = Instant::now();
        let dynamic = self.bound.take_dynamic(&self.model, places.rows, run.rows)?;
        timing.copy_out_ns = nanos(start.elapsed());
        Ok(dynamic)
    }

    /// The model takes one batch size only, and this batch has another: rows are copied to and from memory of that size, so that
    /// nothing outside of the run's rows is read or written.
    fn run_padded(
        &mut self,
        run: &Run,
        batch: usize,
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, RunError> {
        let start = Instant::now();
        let arena_places =
            self.model.places_in(&self.arena, run).map_err(|e| errors::model(e.to_string()))?;
        if self.padding.is_none() {
            self.padding = PrivateRows::new(&self.model, batch);
        }
        let padding = self.padding.as_mut().ok_or_else(|| errors::no_memory(batch))?;
        // SAFETY: the parent has leased these rows to this run.
        unsafe { padding.copy_in(&arena_places) };
        let places = padding.places();
        timing.bind_ns = nanos(start.elapsed());
        // SAFETY: the private rows belong to this engine alone and outlive the run.
        unsafe { self.bound.run(&self.model, &places, timing)? };
        let start = Instant::now();
        let dynamic = self.bound.take_dynamic(&self.model, places.rows, run.rows)?;
        // SAFETY: the parent has leased these rows to this run.
        unsafe { padding.copy_out(&arena_places) };
        timing.copy_out_ns = nanos(start.elapsed());
        Ok(dynamic)
    }
}

fn check_digest(load: &Load) -> Result<(), LoadError> {
    let path = load.model.display();
    let permanent = |error| LoadError { class: ErrorClass::Permanent, error };
    let found = model_digest(&load.model).map_err(|e| {
        permanent(format!("model `{path}` cannot be read: {e}; check the path and its permissions"))
    })?;
    if found == load.digest {
        return Ok(());
    }
    Err(permanent(format!(
        "model `{path}` changed since the plan was made (SHA-256 `{}…`, planned `{}…`); start the run again",
        short(&found),
        short(&load.digest)
    )))
}

/// Runs each batch size once over zeros, in memory of its own. Returns quietly where only a larger batch does not fit: the parent finds
/// the ceiling with real batches.
fn warm_up(bound: &mut BoundSession, model: &Model, rungs: &[usize]) -> Result<(), LoadError> {
    let mut sizes: Vec<usize> = match model.batch {
        Some(batch) if !rungs.is_empty() => vec![batch],
        _ => rungs.iter().copied().filter(|rows| (1..=model.max_rows).contains(rows)).collect(),
    };
    sizes.sort_unstable();
    for (place, &rows) in sizes.iter().enumerate() {
        let ran = PrivateRows::new(model, rows).ok_or_else(|| errors::no_memory(rows)).and_then(|zeros| {
            // SAFETY: the private rows belong to this function alone and outlive the run.
            let ran = unsafe { bound.run(model, &zeros.places(), &mut RunTiming::default()) };
            bound.release();
            ran
        });
        match ran {
            Ok(()) => {}
            // A model may refuse zeros; real data decides.
            Err(RunError { kind: RunErrorKind::Model, .. }) => {}
            Err(RunError { kind: RunErrorKind::OutOfMemory, error }) if place > 0 => {
                eprintln!(
                    "worker: a warm-up batch of `{rows}` rows does not fit into the device's memory: {error}"
                );
                return Ok(());
            }
            Err(RunError { error, .. }) => return Err(errors::load(&error)),
        }
    }
    Ok(())
}
