//! The engine that runs ONNX models. It knows frames and the arena, but neither sockets nor threads.

pub(crate) mod axis_graph;
mod binding;
mod constant_graph;
mod cpu_arena;
mod cuda;
mod cuda_runtime;
mod errors;
mod graph_edit;
mod iteration;
pub(crate) mod largest_graph;
mod library;
mod loop_parts;
mod memory;
mod memory_ceiling;
mod model;
mod nodes;
mod not_finite;
mod pixel_graph;
pub(crate) mod probe;
#[cfg(test)]
mod provider_options;
mod rows_alone;
pub(crate) mod rows_graph;
mod running_loop;
mod session;
mod shrink;
mod tensorrt;
mod text_inputs;
mod trim_graph;
mod warm_up;

/// What reads and writes the bytes of models.
pub(crate) mod edits {
    pub use super::graph_edit::{EditError, GraphEdit};
    pub use super::largest_graph::put_behind;
    pub use super::pixel_graph::{Front, put_in_front};
    pub use super::trim_graph::put_in_front as put_trim_in_front;
}

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use orchestra_core::DeviceKind;
use orchestra_worker::Sandbox;
use orchestra_worker::arena::WorkerArena;
use orchestra_worker::frames::{BatchRun, DynamicOutput, Load, RunErrorKind, RunTiming};

use crate::digest::{model_digest, short};
use crate::spec::OnnxSpec;
use binding::BoundSession;
use iteration::{IteratedSession, say_rounds};
use loop_parts::{FirstRounds, RowParts};
use memory::PrivateRows;
use model::{RowAddresses, SessionModel};
use orchestra_worker::engine::{Engine, EngineRunError, Loaded, Stream, nanos};
use orchestra_worker::load_error::LoadError;
use ort::environment::Environment;
use ort::session::Session;
use rows_alone::{FinishedBatch, RowsAlone};
use tensorrt::EngineCache;
use warm_up::warm_up;

/// One ONNX Runtime session over one arena.
#[derive(Default)]
pub struct OnnxEngine {
    /// As many as batches run at once; empty until a model is loaded.
    streams: Vec<SessionStream>,
}

/// What runs one batch at a time on the session. Fields are dropped in this order: what points into memory before the memory.
struct SessionStream {
    /// Where the model runs on its own outputs.
    iterated: Option<IteratedSession>,
    bound: BoundSession,
    /// The size that smaller batches are padded to; `None` where batches run as they are. It is halved when memory runs out for it.
    padded_to: Option<usize>,
    /// Where smaller batches are padded; made when it is needed.
    padding: Option<PrivateRows>,
    /// What the first round of a loop takes that lies in no slot; made when it is needed.
    first_rounds: Option<FirstRounds>,
    /// Which batches are compared with what their items are alone.
    alone: RowsAlone,
    shared: Arc<SharedModel>,
}

/// What all streams of a session have in common.
struct SharedModel {
    model: SessionModel,
    arena: WorkerArena,
}

impl OnnxEngine {
    /// An engine without a model. Nothing is loaded yet, ONNX Runtime's library neither.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Engine for OnnxEngine {
    fn sandbox(&self, load: &Load) -> Result<Sandbox, LoadError> {
        Ok(OnnxSpec::decode(&load.spec)?.sandbox(&load.device))
    }

    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        let spec = OnnxSpec::decode(&load.spec)?;
        let environment = prepare(load, &spec)?;
        // Held until the model is warm: then all that there is to compile has been compiled.
        let engines = EngineCache::of(load, &spec);
        let session = session::open(&environment, load, &spec, engines.as_ref())?;
        if let DeviceKind::Cuda { uuid } = &load.device {
            cuda::check_alone(uuid)?;
            cuda::page_lock(&arena, load.streams);
        }
        let model = SessionModel::check(&session, arena.layout(), &spec)?;
        let providers = nodes::providers(&session, load, &spec)?;
        self.streams = SessionStream::streams(session, model, arena, load, &spec).map_err(errors::load)?;
        let warmed = warm_up(&mut self.streams, load.padded_to)?;
        Ok(Loaded { providers, runtime_version: library::version(&spec.library), warmed })
    }

    fn run(
        &mut self,
        run: &BatchRun,
        values: &[u8],
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        match self.streams.first_mut() {
            Some(stream) => stream.run_batch((run, values), timing),
            None => Err(EngineRunError { kind: RunErrorKind::Model, error: "no model is loaded".to_owned() }),
        }
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        if self.streams.len() < 2 {
            return Vec::new();
        }
        self.streams.drain(..).map(|stream| Box::new(stream) as Box<dyn Stream>).collect()
    }
}

impl Stream for SessionStream {
    fn run(
        &mut self,
        run: &BatchRun,
        values: &[u8],
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        self.run_batch((run, values), timing)
    }
}

impl SessionStream {
    /// One for each batch that may run at once, all on one session.
    fn streams(
        session: Session,
        model: SessionModel,
        arena: WorkerArena,
        load: &Load,
        spec: &OnnxSpec,
    ) -> ort::Result<Vec<SessionStream>> {
        let iterated = spec.iteration.as_ref();
        let iterated = iterated.map(|of| IteratedSession::new(of.clone(), &load.device)).transpose()?;
        let first = SessionStream {
            iterated,
            bound: BoundSession::new(session, &load.device)?,
            padded_to: load.padded_to,
            padding: None,
            first_rounds: None,
            alone: RowsAlone::new(spec),
            shared: Arc::new(SharedModel { model, arena }),
        };
        let others: Vec<SessionStream> =
            (1..load.streams).map(|_| first.another(load)).collect::<ort::Result<_>>()?;
        Ok(std::iter::once(first).chain(others).collect())
    }

    /// Another one on the same session.
    fn another(&self, load: &Load) -> ort::Result<SessionStream> {
        Ok(SessionStream {
            iterated: self.iterated.as_ref().map(IteratedSession::another),
            bound: self.bound.another(&load.device)?,
            padded_to: self.padded_to,
            padding: None,
            first_rounds: None,
            alone: self.alone.clone(),
            shared: Arc::clone(&self.shared),
        })
    }

    fn run_batch(
        &mut self,
        run: (&BatchRun, &[u8]),
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        match self.shared.model.batch {
            Some(batch) => self.run_as(run, batch, timing),
            None => self.run_padded(run, timing),
        }
    }

    /// A size that a device has not seen costs it time, so the batch is padded to one that it has seen. Where there is not enough memory for
    /// that one, there may be for the batch itself.
    fn run_padded(
        &mut self,
        run: (&BatchRun, &[u8]),
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        let rows = run.0.rows;
        let size = self.padded_to.filter(|size| *size >= rows).unwrap_or(rows);
        match self.run_as(run, size, timing) {
            Err(EngineRunError { kind: RunErrorKind::OutOfMemory, .. }) if size > rows => {
                self.padded_to = Some(size / 2); // As the parent halves the ceiling of its batches.
                self.padding = None;
                self.run_as(run, rows, timing)
            }
            ran => ran,
        }
    }

    /// Where the rows of a run lie, with their texts, and what the first round of a loop takes beside slots.
    fn row_addresses<'a>(
        &mut self,
        shared: &SharedModel,
        (run, values): (&BatchRun, &'a [u8]),
        parts: &RowParts<'_>,
    ) -> Result<RowAddresses<'a>, EngineRunError> {
        let SharedModel { model, arena } = shared;
        let slots = model.row_addresses(arena, run).map_err(|e| EngineRunError::of_model(e.to_string()))?;
        let texts = text_inputs::texts(&model.text_inputs, values, run.rows)?;
        let mut slots = RowAddresses { texts, ..slots };
        if let (Some(iterated), false) = (&self.iterated, model.loop_inputs.is_empty()) {
            if self.first_rounds.is_none() {
                self.first_rounds = Some(FirstRounds::new(model, arena.layout().slot_rows)?);
            }
            let first = self.first_rounds.as_mut().expect("it has just been made");
            slots.inputs.extend(first.addresses(model, iterated.iteration(), parts));
        }
        Ok(slots)
    }

    /// Runs the batch as one of `rows` rows. If it has fewer, rows are copied to and from memory of that size, so that nothing outside of
    /// the run's rows is read or written; else the session reads and writes the arena itself.
    fn run_as(
        &mut self,
        (run, values): (&BatchRun, &[u8]),
        rows: usize,
        timing: &mut RunTiming,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        let begun = Instant::now();
        let shared = Arc::clone(&self.shared);
        let SharedModel { model, arena } = &*shared;
        let parts = match &self.iterated {
            Some(_) => RowParts::read(&model.loop_inputs, values, run.rows)?,
            None => RowParts::default(),
        };
        let slots = self.row_addresses(&shared, (run, values), &parts)?;
        if rows > run.rows && self.padding.is_none() {
            self.padding = Some(PrivateRows::new(model, rows)?);
        }
        let mut private = self.padding.as_mut().filter(|_| rows > run.rows);
        // SAFETY: the parent has leased these rows to this run, and no other run uses the private rows.
        let copied = private.as_mut().map(|private| unsafe { private.copy_in(&slots) });
        let addresses = copied.as_ref().unwrap_or(&slots);
        timing.bind_ns = nanos(begun.elapsed());
        let (dynamic, start) = match &mut self.iterated {
            None => {
                // SAFETY: the parent has leased these rows to this run, and the arena outlives the session, as the private rows do.
                unsafe { self.bound.run(model, addresses, timing)? };
                let start = Instant::now();
                (self.bound.take_dynamic(model, rows, run.rows)?, start)
            }
            Some(iterated) => {
                // SAFETY: the parent has leased these rows to this run.
                let (rounds, collected) =
                    unsafe { iterated.run(&mut self.bound, model, addresses, &parts, timing)? };
                let start = Instant::now();
                // SAFETY: as above.
                unsafe { say_rounds(model, arena, run, &rounds) }
                    .map_err(|e| EngineRunError::of_model(e.to_string()))?;
                (collected, start)
            }
        };
        if let Some(private) = private {
            // SAFETY: the parent has leased these rows to this run, which is over.
            unsafe { private.copy_out(&slots) };
        }
        timing.copy_out_ns = timing.copy_out_ns.saturating_add(nanos(start.elapsed()));
        let alone = model.batch.or(self.padded_to).unwrap_or(1);
        let (took, is_loop) = (begun.elapsed(), self.iterated.is_some());
        let compared = if is_loop { &[][..] } else { &dynamic };
        let ran = FinishedBatch { slots: &slots, dynamic: compared, alone, rows, is_loop, took };
        // SAFETY: as above.
        unsafe { self.alone.compare(&mut self.bound, model, &ran)? };
        Ok(dynamic)
    }
}

/// Sets up the process for the model, which lasts as long as the process: how exact it is, what memory it may take, and ONNX Runtime. Checks that
/// the files are those of the plan before any is loaded.
fn prepare(load: &Load, spec: &OnnxSpec) -> Result<Environment, LoadError> {
    let is_cpu = load.device == DeviceKind::Cpu;
    if !is_cpu && !spec.tf32 {
        cuda::forbid_tf32();
    }
    // On a GPU `memory_limit` is that of the device, whose driver reserves far more of the address space than it takes.
    let ceiling = spec.memory_limit.filter(|_| is_cpu);
    if let Some(limit) = ceiling {
        memory_ceiling::set(limit, load, spec)?;
    }
    let environment = library::environment(&spec.library, ceiling)?;
    check_digests(spec)?;
    Ok(environment)
}

/// Whether the model, its external weights and its libraries of operators are those that were planned with.
fn check_digests(spec: &OnnxSpec) -> Result<(), LoadError> {
    check_digest("model", &spec.model, &spec.digest)?;
    spec.weights.iter().try_for_each(|(path, digest)| check_digest("weights file", path, digest))?;
    spec.custom_ops.iter().try_for_each(|(path, digest)| check_digest("operator library", path, digest))
}

fn check_digest(what: &str, file: &Path, planned: &[u8; 32]) -> Result<(), LoadError> {
    let path = file.display();
    let permanent = LoadError::permanent;
    let found = model_digest(file).map_err(|e| {
        permanent(format!("{what} `{path}` cannot be read: {e}; check the path and its permissions"))
    })?;
    if found == *planned {
        return Ok(());
    }
    Err(permanent(format!(
        "{what} `{path}` changed since the plan was made (SHA-256 `{}…`, planned `{}…`); start the run again, or `reload` what answers requests",
        short(&found),
        short(planned)
    )))
}
