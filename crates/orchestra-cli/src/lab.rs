//! What `bench` and `chaos` have in common: from the command line to a plan and tools, signals, and a line that says what is being done.

use std::sync::Arc;

use orchestra::lab::{Cancel, LabError, Progress, Tools};
use orchestra::telemetry::{
    ConfiguredTraces, LogSettings, ResolvedTraces, Telemetry, TelemetryGuard, TraceSettings,
};
use orchestra::{Launcher, Plan, ProcessLauncher};
use tracing::level_filters::LevelFilter;

use crate::Failed;
use crate::args::LabArgs;
use crate::exit_code::ExitCode;
use crate::notices::{LibraryNotes, Notices};
use crate::planning::{self, Workflow};
use crate::run::configured_traces;
use crate::signals::Signals;
use crate::stderr;
use crate::surroundings::Surroundings;

/// All that runs need, and nothing has been run.
pub struct Ready {
    pub plan: Plan,
    /// Its `cancel` is called by the first signal.
    pub tools: Tools,
    /// Logs, and traces if they were asked for.
    pub telemetry: TelemetryGuard,
}

pub struct Setting<'a> {
    pub args: &'a LabArgs,
    pub surroundings: &'a Surroundings,
    pub level: LevelFilter,
    /// Where traces go. What the file and the environment say of that is for runs that count.
    pub otlp: Option<&'a str>,
    pub notices: Notices,
}

/// Plans, and finds or fetches the library.
pub fn get_ready(setting: &Setting<'_>) -> Result<Ready, Failed> {
    let Setting { args, surroundings, level, otlp, notices } = setting;
    let workflow = &args.workflow;
    let text = Workflow::read(&workflow.file)?;
    let machine = &planning::machine(workflow);
    let plan =
        planning::show(text.plan(&planning::options(workflow, None), machine, workflow), surroundings)?;
    planning::say_why_cpu(&plan, machine, *notices);
    if plan.batch_stages().next().is_none() {
        return Err(failed(LabError::NoBatchStage));
    }
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
    let mut notes = LibraryNotes { notices: *notices, last: None };
    let library =
        orchestra::runtime_library(&plan, workflow.ort_library.clone(), workflow.offline, &mut notes)
            .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    let launcher = ProcessLauncher::this_executable().map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    let scratch = args.scratch.clone();
    let engines = Arc::new(move |plan: &Plan, launcher: ProcessLauncher| {
        orchestra::engines_of(plan, &(Arc::new(launcher) as Arc<dyn Launcher>), library.as_ref())
    });
    let tools = Tools { launcher, engines, cancel: Cancel::default(), scratch };
    listen_for_signals(tools.cancel.clone())?;
    Ok(Ready { plan, tools, telemetry })
}

/// Traces to this address, else as a run of the workflow would send them.
fn traces(otlp: &str, plan: &Plan) -> Result<ResolvedTraces, Failed> {
    let configured = ConfiguredTraces { endpoint: Some(otlp), ..configured_traces(plan) };
    TraceSettings::resolve(configured, |name| std::env::var(name).ok())
        .map_err(|e| Failed::new(ExitCode::Usage, e))
}

pub fn failed(error: LabError) -> Failed {
    Failed::new(ExitCode::of(error.exit_code()), error)
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

/// Says what is being done: on a terminal in one line that changes, in a pipe in a line for each part that begins.
pub struct Told<'a> {
    notices: Notices,
    surroundings: &'a Surroundings,
    is_open: bool,
    /// In a pipe, what was said last: the first look at a part says the same as its beginning.
    last: Option<Progress>,
}

impl<'a> Told<'a> {
    pub fn new(notices: Notices, surroundings: &'a Surroundings) -> Self {
        Self { notices, surroundings, is_open: false, last: None }
    }

    pub fn tell(&mut self, what: Progress) {
        if self.notices.quiet {
            return;
        }
        if self.surroundings.interactive() {
            self.is_open = true;
            stderr::say(&format!("\r\x1b[K{what}"));
        } else if !matches!(what, Progress::Round { finished: 1.., .. })
            && self.last.replace(what) != Some(what)
        {
            stderr::say_line(&what.to_string());
        }
    }

    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            stderr::say("\r\x1b[K");
        }
    }
}
