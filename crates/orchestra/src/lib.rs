//! orchestra as a library: plan a workflow, start it, wait for it.
//!
//! Models run in worker processes: copies of a worker executable, by default of the running one under the argument `worker`. A
//! service therefore calls [`worker_main`] first thing in its own `main` when it is started with that argument, or names another
//! executable in [`StartOptions::launcher`].
//!
//! ```no_run
//! # async fn service() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = orchestra::machine();
//! let options = orchestra::PlanOptions::default();
//! let (plan, diagnostics) = orchestra::plan_file("workflow.toml".as_ref(), &options, &machine)?;
//! let plan = plan.ok_or_else(|| diagnostics.render(orchestra::RenderStyle::Plain))?;
//! let run = orchestra::start(plan, orchestra::StartOptions::default()).await?;
//! let outcome = run.wait().await;
//! println!("{} items done", outcome.report.items.done);
//! # Ok(())
//! # }
//! ```
//!
//! A run lives as long as its [`RunHandle`]: dropping that, or giving up the wait for it, aborts the run. [`RunHandle::stop_handle`] gives
//! a way to stop it in order. Whatever ended it, starting the same plan again goes on where it stopped.
//!
//! No ractor type appears here, nothing prints, and no global subscriber is installed: logs and spans go to the host's `tracing`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub use orchestra_core::restart::RestartPolicy;
pub use orchestra_core::{DeviceId, DeviceKind, StageId, WorkerExit, WorkerId};
pub use orchestra_machine::Machine;
use orchestra_ortlib::{Env, Flavor, Request};
pub use orchestra_ortlib::{Library, LibraryError, Progress, Silent};
pub use orchestra_plan::{Cause, Diagnostics, MachineView, Plan, PlanOptions, RenderStyle};
use orchestra_plan::{DeviceView, RealHost};
pub use orchestra_runtime::launcher::{Launched, WorkerProcess};
pub use orchestra_runtime::{
    DeviceReport, DeviceSnapshot, EventHook, Found, ItemCounts, Launcher, LoaderReport, Prepared,
    ProcessLauncher, Remains, RunHandle, RunOptions, RunOutcome, RunReport, Snapshot, StageReport,
    StageSnapshot, StartRunError, StopHandle, Timeouts, TraceHook, WorkerEvent, prepare,
};
use thiserror::Error;

/// Why a run did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// ONNX Runtime is not there and could not be fetched.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The output folder or the items.
    #[error(transparent)]
    Run(#[from] StartRunError),
    /// The running executable cannot be found, so no worker can be started from it.
    #[error("the executable of the workers cannot be found: {0}")]
    Executable(io::Error),
}

/// How a run is started.
#[derive(Clone, Default)]
pub struct StartOptions {
    /// Throw away what an earlier run left in the output folder.
    pub fresh: bool,
    /// Never use the network.
    pub offline: bool,
    /// ONNX Runtime's shared library; `None` searches for it, and fetches it if need be.
    pub ort_library: Option<PathBuf>,
    /// Starts the workers; `None` runs this executable with the argument `worker`.
    pub launcher: Option<Arc<dyn Launcher>>,
    /// Bounds on what a worker may take.
    pub timeouts: Timeouts,
    /// When dead workers are replaced.
    pub restart: RestartPolicy,
    /// Trace contexts for the workers, if the host exports traces.
    pub trace: Option<TraceHook>,
    /// Who is told what happens to worker processes, as it happens.
    pub events: Option<EventHook>,
}

/// The worker process: serves one model until its parent closes the socket. Call it first thing in `main`.
pub fn worker_main() -> ExitCode {
    orchestra_worker::main()
}

/// What this machine has.
#[must_use]
pub fn machine() -> Machine {
    let inherited = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    orchestra_machine::inspect(&orchestra_machine::NvmlProbe::new(), inherited.as_deref())
}

/// The machine as the planner sees it.
#[must_use]
pub fn machine_view(machine: &Machine) -> MachineView {
    let device = |(i, gpu): (usize, &orchestra_machine::Gpu)| DeviceView {
        name: format!("cuda:{i}"),
        uuid: gpu.uuid.clone(),
        model: gpu.name.clone(),
        total: gpu.memory_total,
        free: gpu.memory_free,
    };
    MachineView {
        cores: machine.cores,
        memory: machine.memory_total,
        devices: machine.gpus.iter().enumerate().map(device).collect(),
        no_gpu: machine.gpu_error.clone(),
    }
}

/// Reads and plans a workflow file. The plan is there unless the diagnostics hold an error.
///
/// # Errors
/// The file itself cannot be read.
pub fn plan_file(
    file: &Path,
    options: &PlanOptions,
    machine: &Machine,
) -> io::Result<(Option<Plan>, Diagnostics)> {
    let text = std::fs::read_to_string(file)?;
    let file = std::path::absolute(file)?;
    let host = RealHost::with_machine(machine_view(machine));
    Ok(orchestra_plan::plan(&text, &file, options, &host))
}

/// Finds ONNX Runtime for a plan, or fetches it once: the GPU build if a device of the plan needs it. Blocks.
///
/// # Errors
/// It is not there and may not or cannot be fetched.
pub fn runtime_library(
    plan: &Plan,
    explicit: Option<PathBuf>,
    offline: bool,
    progress: &mut dyn Progress,
) -> Result<Library, LibraryError> {
    let cuda = plan.devices.iter().any(|d| d.spec.kind != DeviceKind::Cpu);
    let flavor = if cuda { Flavor::Gpu } else { Flavor::Cpu };
    orchestra_ortlib::find_or_fetch(&Request { flavor, explicit, offline }, &Env::from_process(), progress)
}

/// Starts a plan: opens its output folder, lists its items, goes on where an earlier run stopped.
///
/// # Errors
/// See [`StartError`]. Nothing runs then.
pub async fn start(plan: Plan, options: StartOptions) -> Result<RunHandle, StartError> {
    let plan = Arc::new(plan);
    let fresh = options.fresh;
    let (prepared, library) = {
        let (plan, options) = (Arc::clone(&plan), options.clone());
        let blocking = tokio::task::spawn_blocking(move || {
            let library = runtime_library(&plan, options.ort_library, options.offline, &mut Silent)?;
            Ok::<_, StartError>((prepare(plan, fresh)?, library.path))
        });
        blocking.await.map_err(|e| StartRunError::Io(io::Error::other(e)))??
    };
    Ok(prepared.start(run_options(options, library)?).await?)
}

/// What `Prepared::start` needs.
///
/// # Errors
/// The running executable cannot be found.
pub fn run_options(options: StartOptions, library: PathBuf) -> Result<RunOptions, StartError> {
    let launcher = match options.launcher {
        Some(launcher) => launcher,
        None => Arc::new(ProcessLauncher::this_executable().map_err(StartError::Executable)?),
    };
    Ok(RunOptions {
        launcher,
        library,
        timeouts: options.timeouts,
        restart: options.restart,
        trace: options.trace,
        events: options.events,
    })
}
