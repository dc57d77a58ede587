//! From a workflow file to a running plan: what the command and the library start runs with. It knows the machine, the engines, and which program is a worker.
//!
//! Models run in worker processes: copies of a worker executable, by default of the running one under the argument `worker`. A program therefore calls
//! [`run_if_worker`] first thing in its `main`, or names another executable in [`StartOptions::launcher`].
//!
//! ```no_run
//! # async fn command() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = orchestra_launch::usable_machine(None, false);
//! let options = orchestra_launch::PlanOptions::default();
//! let (plan, diagnostics) = orchestra_launch::plan_file("workflow.toml".as_ref(), &options, &machine)?;
//! let plan = plan.ok_or_else(|| diagnostics.render(orchestra_launch::RenderStyle::Plain))?;
//! let run = orchestra_launch::start(plan, orchestra_launch::StartOptions::default()).await?;
//! println!("{} items done", run.wait().await.report.items.done);
//! # Ok(())
//! # }
//! ```
//!
//! It prints nothing, and installs no subscriber and no tracer provider.

#![warn(missing_docs)]

mod engines;
mod probe;
mod program;
mod start_options;
mod unconfined;
mod usable;
mod verify;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use engines::{engines_of, onnxruntime};
pub use orchestra_core::batching::LeaveReason;
pub use orchestra_core::bottleneck::Bottleneck;
pub use orchestra_core::failure_causes::FailureCause;
pub use orchestra_core::restart::RestartPolicy;
pub use orchestra_core::tasks::{EndClass, MetricValues, TaskMetrics};
pub use orchestra_core::{
    DType, DeviceId, DeviceKind, Dim, FailureKind, LeftOut, LeftOutCount, PipelineId, StageId, TensorSpec,
    WorkerExit, WorkerId,
};
pub use orchestra_kinds::inspect::{Recognised, recognise, workflow as workflow_for};
pub use orchestra_machine::{
    DriverProbe, FakeProbe, Gpu, GpuProbe, GpuProcess, Machine, Node, NvmlProbe, ProbeError, cpu_model,
    driver_problem, mps,
};
/// ONNX Runtime's library: what is searched for, found and fetched.
pub use orchestra_onnx::library;
pub use orchestra_onnx::library::{
    CudaLibraries, Flavor, Library, LibraryError, LibraryOrigin, Progress, Silent,
};
use orchestra_onnx::library::{Env, LibraryRequest};
pub use orchestra_plan as plan;
use orchestra_plan::{AskProgram, BatchPlan, DeviceView, Kinds, LookInto, NodeView, RealHost, WorkerPlan};
pub use orchestra_plan::{
    Cause, Diagnostics, MachineView, ModelError, ModelFile, Plan, PlanOptions, RenderStyle, Signature,
    read_model, workflow_schema,
};
pub use orchestra_runtime::{
    BATCH_SIZES, BatchStatus, Counter, DeviceOptions, DeviceStats, DeviceStatus, DeviceUse, Earlier,
    EngineSpec, EngineVersion, Engines, EventHook, ExitKind, FoundResults, GroupOwner, HistogramReading,
    HistoryEvent, HistoryLine, ItemCounts, KnownTask, Launched, Launcher, LiveWorker, LiveWorkers,
    LoaderStatus, Meter, OutputReport, PipelineStats, PipelineStatus, PlannedRun, Prepared, ProcessError,
    ProcessLauncher, RunHandle, RunObserver, RunOptions, RunOutcome, RunStatus, StageOnDevice, StagePace,
    StageStats, StageStatus, StartFlowError, StartRunError, Stats, StopHandle, TIMES, TaskBoard, TaskLimits,
    TaskReport, TaskStanding, Timeouts, WorkerEvent, WorkerMemory, WorkerProcess, WorkerUse, actor_runtime,
    command_bounds, commands_live, each_history_line, expand_of, failure_causes, known_tasks,
    running_commands,
    trace::{self, Tracer},
};
pub use orchestra_store::{
    COMPARED_PAGE, Extent, FAILURE_RECORDS, REPORT_PAGE, RUN_SUMMARY, TaskJournal, TaskRecord, only_files,
    write_atomic,
};
#[cfg(feature = "telemetry")]
pub use orchestra_telemetry as telemetry;
pub use orchestra_worker::sandbox::missing as missing_of_sandbox;
use probe::ModelProbe;
pub use start_options::{EnginesOfPlan, StartOptions};
use thiserror::Error;
pub use usable::{usable_machine, why_no_cuda};
pub use verify::{FaultKind, Verified, VerifyError, verify};

/// What a kind of source, stage or sink of your own is made of. A kind is an object that reads its keys and says what it gives for what it
/// reads; what it does to a row is a `Map`, a `Fold`, a `Fetch` or an `Encoder`.
pub mod kind {
    pub use crate::kinds as builtin;
    pub use orchestra_core::data::{
        Column, ColumnType, ItemError, Label, OwnedRow, OwnedValue, Picture, Pixels, Schema, TensorView,
        Value, WriteTensor, fixed_tensor,
    };
    pub use orchestra_core::row_bytes::StoredValue;
    pub use orchestra_core::shapes::{
        Emit, Encoder, FanOut, Fetch, FetchRun, FileAccess, Fold, InOrder, ItemInfo, KindSettings, Map,
        MapRun, Merge, MergeState, Network, PartFiles, Reduce, ReducedRow, Reduction, RowWork,
    };
    pub use orchestra_core::{Code, DType, Dim, FailureKind, Kernel, Program, TensorSpec};
    pub use orchestra_plan::keys::WORKERS;
    pub use orchestra_plan::{
        BatchDraft, Choice, Connect, Draft, Fields, Input, InputColumns, ItemSchema, Items, Json, Key, Kinds,
        Limits, NamedTexts, ObjectAccess, ProgramContext, ProgramDraft, ReadOptions, Reported,
        ResolvedProgram, Runs, Setting, Settings, SinkContext, SinkKind, SourceConnected, SourceContext,
        SourceKind, Spanned, StageConnected, StageContext, StageKind, Typed, TypedSink, TypedSource,
        TypedStage, Upstreams, Word, Writes, choices, key, settings,
    };
    pub use orchestra_store::{Expand, Found, ListError, ObjectStore, PassedOver, PushFound};
}

/// Why a run did not start.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// ONNX Runtime is not there and could not be fetched.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The output folder or the items.
    #[error(transparent)]
    Run(#[from] StartRunError),
    /// No worker can be started from the running executable: it cannot be found, or never called [`run_if_worker`].
    #[error("no worker can be started: {0}")]
    Executable(io::Error),
}

/// Whether this program has called [`run_if_worker`]: what was not, such as a test binary, would do its own work once more as a worker.
static BECOMES_WORKER: AtomicBool = AtomicBool::new(false);

/// Becomes the worker that this process was started as, by the argument `worker`, and ends with it; otherwise returns at once. Call it first thing in
/// `main` of a program whose workers are copies of itself.
pub fn run_if_worker() {
    if is_worker() {
        exit(worker_main());
    }
    BECOMES_WORKER.store(true, Ordering::Relaxed);
}

/// As [`run_if_worker`], with more kinds of sources and stages, which loaders can make again.
pub fn run_if_worker_with(kinds: &Kinds) {
    if is_worker() {
        exit(worker_main_with(kinds));
    }
    BECOMES_WORKER.store(true, Ordering::Relaxed);
}

fn is_worker() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == "worker")
}

fn exit(code: ExitCode) -> ! {
    // Its number cannot be read.
    let is_this = |number: &u8| ExitCode::from(*number) == code;
    std::process::exit((0..=u8::MAX).find(is_this).map_or(1, i32::from))
}

/// What starts workers where no launcher is named.
fn own_workers() -> io::Result<ProcessLauncher> {
    if !BECOMES_WORKER.load(Ordering::Relaxed) {
        return Err(io::Error::other(
            "workers are copies of this program, which has not called `orchestra::run_if_worker()`: call it first thing in `main`, or name a program that does by `Orchestra::builder().worker_program(path)`",
        ));
    }
    ProcessLauncher::this_executable()
}

/// The process of a worker, which serves a model or a kernel, of a loader, which reads and decodes items, or of a keeper, which has a command, until its parent
/// closes the socket: all of `main` of a program that is nothing else.
pub fn worker_main() -> ExitCode {
    worker_main_with(&orchestra_kinds::builtin())
}

/// As [`worker_main`], with more kinds of sources and stages, which loaders can make again.
pub fn worker_main_with(kinds: &Kinds) -> ExitCode {
    if std::env::args_os().next_back().is_some_and(|last| last == orchestra_worker::keeper::KEEPER) {
        return orchestra_worker::keeper::main();
    }
    match orchestra_worker::program::of_environment() {
        _ if orchestra_worker::process::is_loader() => orchestra_worker::process::run_as_loader(kinds),
        Some(program) => orchestra_worker::program::become_program(&program),
        None if let Some(probe) = orchestra_onnx::probe::of_environment() => {
            orchestra_onnx::probe::main(&probe)
        }
        None if orchestra_cuda::is_asked_for() => orchestra_cuda::main(),
        None => orchestra_onnx::main(),
    }
}

/// What this machine has. Whether workers could use its GPUs, `usable_machine` looks at as well.
#[must_use]
pub fn machine() -> Machine {
    let inherited = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    orchestra_machine::inspect(&NvmlProbe::new(), inherited.as_deref())
}

/// The machine as the planner sees it: without GPUs that no worker could use.
#[must_use]
pub fn machine_view(machine: &Machine) -> MachineView {
    let mps = mps(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")).is_ok();
    let device = |(i, gpu): (usize, &Gpu)| DeviceView {
        name: format!("cuda:{i}"),
        uuid: gpu.uuid.clone(),
        model: gpu.name.clone(),
        total: gpu.memory_total,
        free: gpu.memory_free,
        mps,
        node: gpu.numa_node,
    };
    let gpus: Vec<DeviceView> = machine.gpus.iter().enumerate().map(device).collect();
    let (devices, for_commands) = match machine.gpus_unusable {
        None => (gpus, Vec::new()),
        Some(_) => (Vec::new(), gpus),
    };
    MachineView {
        cores: machine.cores,
        memory: machine.memory_total,
        devices,
        for_commands,
        nodes: machine.nodes.iter().map(|n| NodeView { id: n.id, cores: n.cores.clone() }).collect(),
        no_gpu: machine.gpus_unusable.clone().or_else(|| machine.gpu_error.clone()),
    }
}

/// The kinds of sources, stages and sinks that orchestra brings along.
#[must_use]
pub fn kinds() -> Kinds {
    orchestra_kinds::builtin()
}

/// Where workers of this user keep what TensorRT has compiled; `None` if no variable names a folder.
#[must_use]
pub fn engines() -> Option<PathBuf> {
    Some(Env::from_process().user_folder()?.join("tensorrt"))
}

/// Reads and plans a workflow file. The plan is there unless the diagnostics hold an error. What only a run can tell is found out by processes of this
/// executable: what files of sources hold, which outputs of models have a row for each item, what scripts take and give. Blocks meanwhile.
///
/// # Errors
/// The file itself cannot be read.
pub fn plan_file(
    file: &Path,
    options: &PlanOptions,
    machine: &Machine,
) -> io::Result<(Option<Plan>, Diagnostics)> {
    plan_file_with(file, options, machine, kinds(), &StartOptions::default())
}

/// Like [`plan_file`], for a file that may name these kinds of sources, stages and sinks: those of [`kinds`], and some of your own. The launcher and the
/// library of ONNX Runtime are those that the plan is started with.
///
/// # Errors
/// The file itself cannot be read.
pub fn plan_file_with(
    file: &Path,
    options: &PlanOptions,
    machine: &Machine,
    kinds: Kinds,
    start: &StartOptions,
) -> io::Result<(Option<Plan>, Diagnostics)> {
    let text = std::fs::read_to_string(file)?;
    let file = std::path::absolute(file)?;
    Ok(orchestra_plan::plan(&text, &file, options, &host(kinds, machine_view(machine), start)))
}

/// What plans are made with: real files, this machine or another, and what this user's earlier runs have left. The launcher of `start` starts what looks into
/// files of sources, runs models a few times and asks scripts; where it starts no processes, the plan says what is not known.
#[must_use]
pub fn host(kinds: Kinds, machine: MachineView, start: &StartOptions) -> RealHost {
    let launcher = match &start.launcher {
        Some(launcher) => {
            launcher.loaders().ok_or_else(|| io::Error::other("its launcher starts no processes"))
        }
        None => own_workers(),
    };
    let launcher = launcher.map_err(|error| error.to_string());
    let look = launcher.as_ref().ok().map(|launcher| {
        Arc::new(orchestra_runtime::LooksInLoader { launcher: launcher.clone() }) as Arc<dyn LookInto>
    });
    let ask: Arc<dyn AskProgram> = Arc::new(program::Asks { launcher: launcher.clone() });
    let (ort_library, offline) = (start.ort_library.clone(), start.offline);
    let probe = ModelProbe { launcher, ort_library, offline, notice: start.notice };
    RealHost {
        engines: engines(),
        ask: Some(ask),
        compilers: Some(engines::compilers as _),
        task_history: Some(orchestra_runtime::task_history as _),
        task_results: Some(orchestra_runtime::task_results as _),
        look,
        probe: Some(Arc::new(probe)),
        ..RealHost::with_machine(kinds, machine)
    }
}

/// Finds ONNX Runtime for a plan, or fetches it once: the GPU build, and the libraries of CUDA and TensorRT, if the plan needs them. `None` for a
/// plan that runs no model: nothing is looked for then. Blocks.
///
/// # Errors
/// It is not there and may not or cannot be fetched.
pub fn runtime_library(
    plan: &Plan,
    explicit: Option<PathBuf>,
    offline: bool,
    progress: &mut dyn Progress,
) -> Result<Option<Library>, LibraryError> {
    if plan.models.iter().all(|model| model.code.is_some()) {
        return Ok(None);
    }
    let env = Env::from_process();
    let is_gpu = |worker: &WorkerPlan| plan.devices[worker.device.index()].spec.kind != DeviceKind::Cpu;
    let runs_models = |batch: &BatchPlan| plan.models[batch.model.index()].code.is_none();
    let mut of_models = plan.batch_stages().map(|(_, batch)| batch).filter(|batch| runs_models(batch));
    let library = match of_models.any(|batch| batch.workers.iter().any(is_gpu)) {
        true => {
            let request = LibraryRequest { flavor: Flavor::Gpu, explicit, offline };
            let library = orchestra_onnx::library::find_or_fetch_with_cuda(&request, &env, progress)?;
            if plan.needs_tensorrt() {
                orchestra_onnx::library::add_tensorrt(library, &env)?
            } else {
                library
            }
        }
        false => orchestra_onnx::library::find_or_fetch(
            &LibraryRequest { flavor: Flavor::Cpu, explicit, offline },
            &env,
            progress,
        )?,
    };
    Ok(Some(library))
}

/// Starts a plan: opens its output folder, lists its items, goes on where an earlier run stopped.
///
/// # Errors
/// See [`LaunchError`]. Nothing runs then.
pub async fn start(plan: Plan, options: StartOptions) -> Result<RunHandle, LaunchError> {
    let plan = Arc::new(plan);
    let earlier = options.earlier;
    let (prepared, library) = {
        let (plan, options) = (Arc::clone(&plan), options.clone());
        let blocking = orchestra_runtime::join_blocking(move || {
            let library = options.library(&plan)?;
            let version = library.as_ref().map(onnxruntime_version);
            Ok::<_, LaunchError>((prepare_with(plan, earlier, options.launcher.as_ref(), version)?, library))
        });
        blocking.await.map_err(StartRunError::Io)??
    };
    Ok(prepared.start(run_options(options, &plan, library.as_ref())?).await?)
}

/// Opens the output folder and the journal, and lists the items: all of them where results of an earlier run count; else the first ones, and
/// the others while the run is prepared and works. Files that hold several items are listed in loader processes, which `launcher` starts; `None` runs
/// this executable with the argument `worker`. Blocks. With the `version` of ONNX Runtime, items that have failed are done again only with that of the other results.
///
/// # Errors
/// See [`StartRunError`].
pub fn prepare_with(
    plan: Arc<Plan>,
    earlier: Earlier,
    launcher: Option<&Arc<dyn Launcher>>,
    version: Option<&str>,
) -> Result<Prepared, StartRunError> {
    let loaders = match launcher {
        Some(launcher) => launcher.loaders(),
        None => Some(own_workers()?),
    };
    orchestra_runtime::prepare(plan, earlier, loaders, Some(&onnxruntime(version)))
}

/// What results so far are compared with, see [`prepare_with`].
#[must_use]
pub fn onnxruntime_version(library: &Library) -> &str {
    library.version.as_deref().unwrap_or("unknown")
}

/// What `Prepared::start` needs for this plan; `library` is that of [`runtime_library`]. Warns of what this kernel cannot confine.
///
/// # Errors
/// The running executable cannot be found.
pub fn run_options(
    options: StartOptions,
    plan: &Plan,
    library: Option<&Library>,
) -> Result<RunOptions, LaunchError> {
    let launcher = match options.launcher {
        Some(launcher) => launcher,
        None => Arc::new(own_workers().map_err(LaunchError::Executable)?),
    };
    let devices = DeviceOptions {
        probe: Some(options.probe.unwrap_or_else(|| Arc::new(NvmlProbe::new()))),
        ..DeviceOptions::default()
    };
    let options = RunOptions {
        engine: library.map(|library| onnxruntime(Some(onnxruntime_version(library)))),
        loaders: launcher.loaders(),
        keepers: launcher.loaders(),
        group_owner: options.group_owner,
        tasks_only: options.tasks_only,
        first_part: options.first_part,
        engines: match &options.engines {
            Some(engines) => engines(plan),
            None => engines_of(plan, &launcher, library),
        },
        devices,
        timeouts: options.timeouts,
        restart: options.restart,
        trace: options.trace,
        events: options.events,
    };
    unconfined::warn(plan, &options);
    Ok(options)
}
