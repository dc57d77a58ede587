//! What `bench` and `chaos` have in common: from the command line to a plan, a library and a launcher, signals, and a line that says what
//! is being done. It measures nothing and judges nothing.

use std::fmt::Display;
use std::path::PathBuf;

use orchestra::{Machine, Plan, ProcessLauncher};
use orchestra_telemetry::{
    ConfiguredTraces, LogSettings, ResolvedTraces, Telemetry, TelemetryGuard, TraceSettings,
};
use orchestra_trial::{Cancel, Cause};
use tracing::level_filters::LevelFilter;

use crate::Failed;
use crate::args::{TrialArgs, WorkflowArgs};
use crate::exit_code::ExitCode;
use crate::planning::{self, Workflow};
use crate::run::{LibraryNotes, Talk, configured_traces};
use crate::signals::Signals;
use crate::stderr;
use crate::surroundings::Surroundings;

/// All that runs need, and nothing has been run.
pub struct Ready {
    /// The workflow.
    pub plan: Plan,
    /// ONNX Runtime's shared library.
    pub library: PathBuf,
    /// What workers on GPUs load first.
    pub preload: Vec<PathBuf>,
    /// Starts workers.
    pub launcher: ProcessLauncher,
    /// Is used by the first signal.
    pub cancel: Cancel,
    /// Logs, and traces if they were asked for.
    pub telemetry: TelemetryGuard,
}

/// How to get ready.
pub struct Setting<'a> {
    /// What was asked for.
    pub args: &'a TrialArgs,
    /// Where it runs.
    pub machine: &'a Machine,
    /// Who reads it.
    pub surroundings: &'a Surroundings,
    /// What the terminal shows of the log.
    pub level: LevelFilter,
    /// Where traces go. What the file and the environment say of that is for runs that count.
    pub otlp: Option<&'a str>,
    /// How to say things.
    pub talk: Talk,
}

/// Plans, and finds or fetches the library. `refuse` is asked first, so that nothing is fetched for nothing. `Ok(Err(..))`: what is wrong
/// with the file has been said.
pub fn get_ready(
    workflow: &Workflow,
    setting: &Setting<'_>,
    refuse: impl FnOnce(&Plan) -> Result<(), Failed>,
) -> Result<Result<Ready, ExitCode>, Failed> {
    let Setting { args, machine, surroundings, level, otlp, talk } = setting;
    let planned = workflow.plan(&planning::options(&workflow_args(args)), machine);
    let plan = match planning::show(planned, surroundings) {
        Ok(plan) => plan,
        Err(code) => return Ok(Err(code)),
    };
    planning::say_why_cpu(&plan, machine, *talk);
    refuse(&plan)?;
    let logs = LogSettings {
        terminal: *level,
        filter: std::env::var("RUST_LOG").ok(),
        color: surroundings.color(),
        ..LogSettings::default()
    };
    let traces = otlp.map(|otlp| traces(otlp, &plan)).transpose()?.unwrap_or_default();
    let telemetry = Telemetry::build(&logs, traces.settings.as_ref())
        .and_then(Telemetry::install)
        .map_err(|e| Failed::new(ExitCode::Usage, e))?;
    for warning in &traces.warnings {
        tracing::warn!("{warning}");
    }
    let mut notes = LibraryNotes { talk: *talk, last: None };
    let library = orchestra::runtime_library(&plan, args.ort_library.clone(), args.offline, &mut notes)
        .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    let (library, preload) = (library.path, library.cuda.preload());
    let cancel = Cancel::new();
    listen_for_signals(cancel.clone())?;
    let launcher = ProcessLauncher::this_executable().map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    Ok(Ok(Ready { plan, library, preload, launcher, cancel, telemetry }))
}

/// Traces to this address, else as a run of the workflow would send them.
fn traces(otlp: &str, plan: &Plan) -> Result<ResolvedTraces, Failed> {
    let configured = ConfiguredTraces { endpoint: Some(otlp), ..configured_traces(plan) };
    TraceSettings::resolve(configured, |name| std::env::var(name).ok())
        .map_err(|e| Failed::new(ExitCode::Usage, e))
}

/// The part of it that the planner understands.
pub fn workflow_args(args: &TrialArgs) -> WorkflowArgs {
    WorkflowArgs {
        file: args.file.clone(),
        devices: args.devices.clone(),
        set: args.set.clone(),
        output: None,
        offline: args.offline,
        ort_library: args.ort_library.clone(),
    }
}

/// What a script is told about an error of this kind.
pub fn code_of(cause: Cause) -> ExitCode {
    match cause {
        Cause::File => ExitCode::BadFile,
        Cause::Items => ExitCode::ItemsFailed,
        Cause::Unavailable => ExitCode::Unavailable,
        Cause::Surroundings => ExitCode::TryAgain,
        Cause::Interrupted => ExitCode::Interrupted,
        Cause::Bug => ExitCode::Bug,
    }
}

/// The first signal ends what is being done, which then cleans up; the second ends the process, should something hang. They are caught
/// from the return on.
fn listen_for_signals(cancel: Cancel) -> Result<(), Failed> {
    let failed = |e| Failed::new(ExitCode::TryAgain, e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::caught().map_err(failed)?
    };
    let started = std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            for exit_now in [false, true] {
                signals.next().await;
                cancel.cancel();
                if exit_now {
                    std::process::exit(i32::from(ExitCode::Interrupted.number()));
                }
            }
        });
    });
    started.map(drop).map_err(failed)
}

/// Says what is being done: on a terminal in one line that changes, in a pipe in a line for what takes long.
pub struct Told<'a> {
    talk: Talk,
    surroundings: &'a Surroundings,
    is_open: bool,
    last_line: Option<String>,
}

impl<'a> Told<'a> {
    /// Nothing has been said.
    pub fn new(talk: Talk, surroundings: &'a Surroundings) -> Self {
        Self { talk, surroundings, is_open: false, last_line: None }
    }

    /// Says `what` on a terminal, and in a pipe `line`, if there is any, and once.
    pub fn tell(&mut self, what: &dyn Display, line: Option<String>) {
        if self.talk.quiet {
            return;
        }
        if self.surroundings.interactive() {
            self.is_open = true;
            stderr::say(&format!("\r\x1b[K{what}"));
        } else if line.is_some() && line != self.last_line {
            stderr::say_line(line.as_deref().unwrap_or_default());
            self.last_line = line;
        }
    }

    /// The line goes away.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            stderr::say("\r\x1b[K");
        }
    }
}
