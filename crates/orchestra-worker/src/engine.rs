//! What an engine is to the process that serves it. It knows nothing of ONNX Runtime and never touches a tensor.

use std::time::Duration;

use bincode::Decode;
use orchestra_core::{ErrorClass, wire};

use crate::arena::WorkerArena;
use crate::frames::{BatchRun, DynamicOutput, FromWorker, Load, RunErrorKind, RunTiming};
use crate::load_error::LoadError;
use crate::sandbox::Sandbox;

/// What runs batches. Called from one thread, in the order of the frames.
pub trait Engine {
    /// What this process has to be able to do for `load`, and nothing else. It is confined to that before anything is loaded, for good.
    ///
    /// # Errors
    /// `load` makes no sense to this engine.
    fn sandbox(&self, load: &Load) -> Result<Sandbox, LoadError>;

    /// Loads a model and warms it up for `load.streams` batches at once. Called once.
    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError>;

    /// Runs one batch, whose rows lie within the arena; `values` is what they have beside it, as a `RunWithValues` frame holds it. Leaves outputs of fixed shape in the rows of its output slot and returns the others, in the order of
    /// the model.
    /// Notes in `timing` how long each phase took, also when it fails.
    fn run(&mut self, run: &BatchRun, values: &[u8], timing: &mut RunTiming) -> RunResult;

    /// Gives what it loaded away, as parts that run batches at the same time, each on a thread of its own: `load.streams`.
    /// Called once after a load. With one or none, `run` is called instead.
    fn take_streams(&mut self) -> Vec<Box<dyn Stream>>;
}

/// What runs one batch at a time, beside others that do the same.
pub trait Stream: Send {
    /// As [`Engine::run`].
    fn run(&mut self, run: &BatchRun, values: &[u8], timing: &mut RunTiming) -> RunResult;
}

/// The outputs of a run that have no fixed shape.
pub type RunResult = Result<Vec<DynamicOutput>, EngineRunError>;

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

/// Reads what a `Load` frame has for one engine alone, of `MOST` bytes.
///
/// # Errors
/// It is of another engine.
pub fn decode_spec<T: Decode<()>, const MOST: usize>(bytes: &[u8]) -> Result<T, LoadError> {
    wire::decode_within::<T, MOST>(bytes).map_err(|error| {
        LoadError::permanent(format!(
            "the `Load` frame is for another engine: {error}; use the worker executable of the same build"
        ))
    })
}

/// Why a run gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct EngineRunError {
    /// What it means for the batch. After `Device` the worker exits.
    pub kind: RunErrorKind,
    /// The runtime's words.
    pub error: String,
}

impl EngineRunError {
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
            RunErrorKind::Model
            | RunErrorKind::Row(_)
            | RunErrorKind::Shape
            | RunErrorKind::Mixed
            | RunErrorKind::TooLarge => ErrorClass::Permanent,
        };
        LoadError { class, error: self.error }
    }
}

/// A duration in nanoseconds; 584 years fit.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
