//! What a run is started with, beside its plan. It starts nothing.

use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::restart::RestartPolicy;
use orchestra_machine::GpuProbe;
use orchestra_onnx::library::{Library, LibraryError, Silent};
use orchestra_plan::Plan;
use orchestra_runtime::{Earlier, Engines, EventHook, GroupOwner, Launcher, RunOutcome, Timeouts, Tracer};

use crate::runtime_library;

/// How a run is started.
#[derive(Clone, Default)]
pub struct StartOptions {
    /// What becomes of an earlier run in the output folder.
    pub earlier: Earlier,
    /// Whose the control group of this process is: that of a host is left as it is.
    pub group_owner: GroupOwner,
    /// Run the tasks of the plan, and none of its pipelines.
    pub tasks_only: bool,
    /// The outcome of the first part, where the run has two: see [`RunOutcome::goes_on`].
    pub first_part: Option<Arc<RunOutcome>>,
    /// Never use the network.
    pub offline: bool,
    /// ONNX Runtime's shared library; `None` searches for it, and fetches it if need be.
    pub ort_library: Option<PathBuf>,
    /// Starts workers of models and kernels, loaders and keepers, and what plans ask; `None` runs this executable with the argument `worker`, which
    /// must be one that calls [`run_if_worker`](crate::run_if_worker).
    pub launcher: Option<Arc<dyn Launcher>>,
    /// What runs the batches of a plan in place of its models, programs and kernels: for tests of a host. No ONNX Runtime is looked for then.
    pub engines: Option<Arc<EnginesOfPlan>>,
    /// Bounds on what a worker may take.
    pub timeouts: Timeouts,
    /// When dead workers are replaced.
    pub restart: RestartPolicy,
    /// Follows the run: `telemetry::Recorder` (feature `telemetry`) makes spans of it, also through the host's own exporter.
    pub trace: Option<Arc<dyn Tracer>>,
    /// Is told what happens to worker processes, as it happens.
    pub events: Option<EventHook>,
    /// Is told, while a plan is made, what takes long.
    pub notice: Option<fn(&str)>,
    /// What is asked about GPUs while the run goes on; `None`: the driver.
    pub probe: Option<Arc<dyn GpuProbe>>,
}

/// Makes the engine of each batch stage of a plan.
pub type EnginesOfPlan = dyn Fn(&Plan) -> Engines + Send + Sync;

impl StartOptions {
    /// ONNX Runtime for a plan that is started with these options, as [`runtime_library`] finds it.
    ///
    /// # Errors
    /// See [`runtime_library`].
    pub fn library(&self, plan: &Plan) -> Result<Option<Library>, LibraryError> {
        match self.engines {
            Some(_) => Ok(None),
            None => runtime_library(plan, self.ort_library.clone(), self.offline, &mut Silent),
        }
    }
}
