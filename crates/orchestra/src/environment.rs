//! What every run, model and flow of a program shares: the machine, the kinds, what starts workers. It plans and starts nothing by itself.

use std::path::PathBuf;
use std::sync::Arc;

use orchestra_launch::{
    Machine, PlanOptions, ProcessLauncher, StartOptions, Tracer, WorkerEvent, machine_view, usable_machine,
};
use orchestra_plan::tree::Table;
use orchestra_plan::{Diagnostics, Kinds, Plan};

use crate::error::StartError;
use crate::workflow::{Workflow, WorkflowError};

/// The way into orchestra for a program: cheap to clone, and shared by all that it starts.
#[derive(Clone)]
pub struct Orchestra(Arc<Environment>);

struct Environment {
    machine: Machine,
    kinds: Kinds,
    start: StartOptions,
}

/// How a program uses orchestra.
#[must_use]
#[derive(Clone, Default)]
pub struct OrchestraBuilder {
    kinds: Option<Kinds>,
    pub(crate) start: StartOptions,
}

impl OrchestraBuilder {
    /// Workers and loaders are processes of this program, whose `main` is [`worker_main`](crate::worker_main). Else they are copies of the running
    /// one, which calls [`run_if_worker`](crate::run_if_worker) first thing in its `main`.
    pub fn worker_program(mut self, program: impl Into<PathBuf>) -> Self {
        let launcher = ProcessLauncher { program: program.into(), args: Vec::new(), env: Vec::new() };
        self.start.launcher = Some(Arc::new(launcher));
        self
    }

    /// All of it: for tests of orchestra.
    #[doc(hidden)]
    pub fn start_options(mut self, options: StartOptions) -> Self {
        self.start = options;
        self
    }

    /// The shared library of ONNX Runtime. Else it is searched for, and fetched once if it is nowhere.
    pub fn onnxruntime(mut self, library: impl Into<PathBuf>) -> Self {
        self.start.ort_library = Some(library.into());
        self
    }

    /// Fetch nothing: what is not there is an error.
    pub fn offline(mut self) -> Self {
        self.start.offline = true;
        self
    }

    /// The kinds of sources, stages and sinks that workflows may name: those of [`kind::builtin`](crate::kind::builtin), and some of your own. A program
    /// that has its own calls [`run_if_worker_with`](crate::run_if_worker_with).
    pub fn kinds(mut self, kinds: Kinds) -> Self {
        self.kinds = Some(kinds);
        self
    }

    /// Follows all runs, models and flows: with the feature `telemetry`, `telemetry::Recorder` makes spans for the program's own OpenTelemetry pipeline.
    pub fn tracer(mut self, tracer: Arc<dyn Tracer>) -> Self {
        self.start.trace = Some(tracer);
        self
    }

    /// Is told what happens to worker processes, as it happens. It must not block.
    pub fn on_worker_event(mut self, hook: impl Fn(&WorkerEvent) + Send + Sync + 'static) -> Self {
        self.start.events = Some(Arc::new(hook));
        self
    }

    /// Looks at the machine, without blocking the executor: some files, the drivers of GPUs, perhaps the start of a Python.
    ///
    /// # Errors
    /// The executor ends meanwhile.
    pub async fn build(self) -> Result<Orchestra, StartError> {
        blocking(move || self.build_blocking()).await
    }

    /// As [`OrchestraBuilder::build`]. Blocks.
    pub(crate) fn build_blocking(self) -> Result<Orchestra, StartError> {
        let Self { kinds, start } = self;
        let machine = match start.engines {
            None => usable_machine(start.ort_library.as_deref(), start.offline),
            Some(_) => Machine { gpus: Vec::new(), gpu_error: None, ..orchestra_launch::machine() },
        };
        let kinds = kinds.unwrap_or_else(orchestra_launch::kinds);
        Ok(Orchestra(Arc::new(Environment { machine, kinds, start })))
    }
}

impl Orchestra {
    /// What can be said before.
    pub fn builder() -> OrchestraBuilder {
        OrchestraBuilder::default()
    }

    /// What a file holds that is wrong, without starting anything. Asks processes what only they can tell, as the start does.
    ///
    /// # Errors
    /// All mistakes of the workflow.
    pub async fn check(&self, workflow: &Workflow) -> Result<(), StartError> {
        let (orchestra, workflow) = (self.clone(), workflow.clone());
        blocking(move || orchestra.plan(&workflow, None).map(drop)).await
    }

    pub(crate) fn start_options(&self) -> StartOptions {
        self.0.start.clone()
    }

    /// Blocks. `tasks_done`: those that count as done, in the second part of a run.
    pub(crate) fn plan(
        &self,
        workflow: &Workflow,
        tasks_done: Option<Vec<String>>,
    ) -> Result<Plan, StartError> {
        let options = PlanOptions { tasks_done, ..workflow.options.clone() };
        self.planned(&workflow.file.display().to_string(), |host| {
            orchestra_plan::plan(&workflow.text, &workflow.file, &options, host)
        })
    }

    /// As [`Orchestra::plan`], of tables that a program has made, or has read from the text of `workflow`.
    pub(crate) fn plan_tables(&self, tables: Table, workflow: &Workflow) -> Result<Plan, StartError> {
        self.planned(&workflow.file.display().to_string(), |host| {
            orchestra_plan::plan_tables(tables, &workflow.text, &workflow.file, &workflow.options, host)
        })
    }

    fn planned(
        &self,
        file: &str,
        plan: impl FnOnce(&orchestra_plan::RealHost) -> (Option<Plan>, Diagnostics),
    ) -> Result<Plan, StartError> {
        let Environment { machine, kinds, start } = &*self.0;
        let (plan, diagnostics) = plan(&orchestra_launch::host(kinds.clone(), machine_view(machine), start));
        let Some(plan) = plan else { return Err(WorkflowError(diagnostics).into()) };
        if !diagnostics.all().is_empty() {
            tracing::warn!(file, diagnostics = %WorkflowError(diagnostics), "the workflow has warnings");
        }
        Ok(plan)
    }
}

/// Runs what blocks beside the executor.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    orchestra_runtime::join_blocking(work).await.unwrap_or_else(|error| Err(StartError::workers(error)))
}
