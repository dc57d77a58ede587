//! `orchestra run`: plan, prepare, start, watch, sum up. What a run does is decided by the crates below.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use orchestra_launch::plan::LogFormat;
use orchestra_launch::telemetry::metrics::Metrics;
use orchestra_launch::telemetry::{LogSettings, Telemetry, TelemetryGuard, TraceSettings};
use orchestra_launch::{
    Earlier, GroupOwner, Library, Plan, PlanOptions, RunHandle, RunOutcome, RunStatus, StartOptions,
    StartRunError,
};
use orchestra_plan::TelemetryPlan;
use tokio::runtime::Runtime;

use self::end::{Output, end, finished_before};
use crate::args::{RunArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::live_page::LivePage;
use crate::notices::{LibraryNotes, Notices};
use crate::planning::{self, WorkflowText};
use crate::progress::{ProgressDisplay, ProgressMode};
use crate::signals::{self, AfterTheRun, Continued, Stopping};
use crate::surroundings::Surroundings;
use crate::watch::RateWatch;
use crate::{Failed, metrics, report, retry, stderr, stdout, tasks};

mod end;

pub use end::lost_spans;

/// How often the progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// Runs the workflow, or goes on with it.
pub fn run(args: &RunArgs, verbosity: Verbosity, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    if args.log_format == Some(LogFormat::Json) {
        stderr::speak_json();
    }
    let options = PlanOptions {
        // What is discarded is not there any more.
        tasks_done: args.fresh.then(Vec::new),
        ..planning::options(&args.workflow, args.output.as_deref())
    };
    let workflow = WorkflowText::read(&args.workflow.file)?;
    let machine = planning::machine(&args.workflow);
    let planned = workflow.plan(&options, &machine, &args.workflow);
    let said = planned.1.render(planning::style(surroundings));
    let plan = Arc::new(tasks::only(planning::show(planned, surroundings)?, &args.only)?);
    if args.dry_run {
        return dry_run(&plan, args);
    }
    let notices = Notices { quiet: verbosity.quiet };
    planning::say_why_cpu(&plan, &machine, notices);
    let telemetry = telemetry(args, verbosity, surroundings, &plan)?;
    // Before anything is discarded or begun: the address may be taken.
    let metrics = metrics::start(args, &plan, notices)?;
    let page = live_page(args, &plan, notices)?;
    let command = RunCommand {
        args,
        verbosity,
        surroundings,
        notices,
        telemetry: &telemetry,
        metrics: metrics.as_ref(),
        page: page.as_ref(),
        stopping: Stopping::default(),
    };
    let asked = asked(args);
    // Failed items are looked for when their sources are planned.
    let is_early = plan.deferred.is_some();
    let earlier = if is_early && asked == Earlier::RetryFailed { Earlier::GoOn } else { asked };
    let ended = match command.part(plan, earlier, None)? {
        PartEnd::Ended(first) if first.outcome.goes_on => {
            let second = command.second_part(&workflow, options, &said, &first, asked);
            first.runtime.shutdown_timeout(Duration::from_secs(1));
            if let Err(failed) = &second {
                // The tasks have ended, whatever keeps the rest from being started.
                let report = RunStatus { exit_code: failed.code.number().into(), ..first.outcome.report };
                report.write(&first.plan.output).map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
            }
            second?
        }
        ended => ended,
    };
    let EndedRun { plan, outcome, resumed_from, runtime, .. } = match ended {
        PartEnd::FinishedBefore(code) => return Ok(code),
        PartEnd::Ended(ended) => *ended,
    };
    // Without traces a signal waits for nothing.
    let after = telemetry.span_watch().is_some().then(|| AfterTheRun::caught().ok()).flatten();
    // Blocking tasks that hang (a dead network drive) must not hold the command.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let code = end(&outcome, &plan, resumed_from, Output::of(args, verbosity), telemetry, after);
    report::at_the_end(args.report, &plan, verbosity);
    code
}

fn asked(args: &RunArgs) -> Earlier {
    match (args.fresh, args.retry_failed) {
        (true, _) => Earlier::Discard,
        (false, true) => Earlier::RetryFailed,
        (false, false) => Earlier::GoOn,
    }
}

/// Serves the page of the run, where that was asked for.
fn live_page(args: &RunArgs, plan: &Plan, notices: Notices) -> Result<Option<LivePage>, Failed> {
    let page = args.page.as_deref().map(|address| LivePage::of_run(address, &plan.output)).transpose()?;
    if let Some(page) = &page {
        notices.say(&page.in_words());
    }
    Ok(page)
}

/// What all parts of a run share.
struct RunCommand<'a> {
    args: &'a RunArgs,
    verbosity: Verbosity,
    surroundings: &'a Surroundings,
    notices: Notices,
    telemetry: &'a TelemetryGuard,
    metrics: Option<&'a Metrics>,
    page: Option<&'a LivePage>,
    stopping: Stopping,
}

/// What came of a part of a run, which mostly is all of it.
enum PartEnd {
    FinishedBefore(ExitCode),
    Ended(Box<EndedRun>),
}

struct EndedRun {
    plan: Arc<Plan>,
    outcome: RunOutcome,
    resumed_from: Option<u64>,
    runtime: Runtime,
}

impl RunCommand<'_> {
    /// Plans all of the file, since what its tasks have left is there, and carries it out. `said`: about the first plan.
    fn second_part(
        &self,
        workflow: &WorkflowText,
        options: PlanOptions,
        said: &str,
        first: &EndedRun,
        asked: Earlier,
    ) -> Result<PartEnd, Failed> {
        let Self { args, surroundings, .. } = self;
        let report = &first.outcome.report;
        let options = PlanOptions { tasks_done: Some(report.tasks_done()), ..options };
        let planned = workflow.plan(&options, &planning::machine(&args.workflow), &args.workflow);
        let plan = match planned {
            (Some(plan), diagnostics) if diagnostics.render(planning::style(surroundings)) == said => plan,
            planned => planning::show(planned, surroundings)?,
        };
        let plan = Arc::new(tasks::only(plan, &tasks::with_deferred(&first.plan, &args.only))?);
        let earlier = if asked == Earlier::Discard { Earlier::Replace } else { asked };
        self.part(plan, earlier, Some(first))
    }

    /// Carries a plan out. `first`: what the first part has done, in the second one.
    fn part(&self, plan: Arc<Plan>, earlier: Earlier, first: Option<&EndedRun>) -> Result<PartEnd, Failed> {
        let Self { args, verbosity, surroundings, notices, telemetry, metrics, page, stopping } = self;
        let runtime = runtime(&plan)?;
        // Nothing is discarded for a run that has no library to begin with, or another one.
        let discards = args.fresh || args.retry_failed;
        let ahead = discards.then(|| runtime_library(args, &plan, *notices)).transpose()?;
        let version = ahead.as_ref().and_then(Option::as_ref).map(orchestra_launch::onnxruntime_version);
        let prepared =
            orchestra_launch::prepare_with(Arc::clone(&plan), earlier, None, version).map_err(not_started)?;
        self.open_logs(&plan, &prepared.run_id)?;
        retry::keep_command(&plan.output);
        for reason in plan.reasons.iter().chain(&plan.deferred.as_ref().map(|deferred| deferred.in_words())) {
            tracing::info!(%reason, "planned");
        }
        if let Some(code) = prepared.nothing_to_do().filter(|_| args.only.is_empty()) {
            return finished_before(prepared, code, Output::of(args, *verbosity))
                .map(PartEnd::FinishedBefore);
        }
        notices.found(&prepared, first.is_some());
        let library = ahead.map_or_else(|| runtime_library(args, &plan, *notices), Ok)?;
        if let Some(library) = &library {
            let version = library.version.as_deref().unwrap_or("unknown");
            tracing::info!(path = %library.path.display(), version, origin = %library.origin, "onnxruntime found");
        }
        let resumed_from = Some(prepared.counts().total()).filter(|n| *n > 0);
        let mode = progress_mode(args, *verbosity, surroundings);
        let outcome = runtime.block_on(async {
            let options = StartOptions {
                trace: telemetry.tracer(),
                group_owner: GroupOwner::Run,
                tasks_only: tasks_alone(args, &plan),
                first_part: first.map(|first| Arc::new(first.outcome.clone())),
                ..StartOptions::default()
            };
            let options = orchestra_launch::run_options(options, &plan, library.as_ref())
                .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
            // From here on there is something to stop.
            let caught =
                stopping.catch().context("signals cannot be caught, so the run could not be stopped");
            caught.map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
            let handle = prepared.start(options).await.map_err(not_started)?;
            if let Some(page) = page {
                page.observe(handle.snapshots());
            }
            if let Some(metrics) = metrics {
                metrics::observe(metrics, handle.meter(), telemetry);
            }
            let progress = ProgressDisplay::new(mode, surroundings);
            telemetry.terminal().redirect(progress.printer());
            stopping.stop_by(handle.stop_handle(), progress.is_drawn());
            Ok::<_, Failed>(follow(handle, progress).await)
        })?;
        telemetry.terminal().restore();
        match outcome.goes_on {
            true => stopping.pause(),
            false => stopping.over(),
        }
        Ok(PartEnd::Ended(Box::new(EndedRun { plan, outcome, resumed_from, runtime })))
    }

    /// What is said from now on names the run.
    fn open_logs(&self, plan: &Plan, run_id: &str) -> Result<(), Failed> {
        stderr::set_run(run_id);
        self.telemetry.set_run(run_id);
        let pipelines: Vec<&str> = plan.pipelines.iter().map(|p| p.name.as_str()).collect();
        let opened = self.telemetry.log_files().open(&plan.output.join("logs"), &pipelines);
        opened.map_err(|e| Failed::new(ExitCode::TryAgain, e))
    }
}

/// Whether the tasks that were asked for can run without sources and sinks.
fn tasks_alone(args: &RunArgs, plan: &Plan) -> bool {
    !args.only.is_empty() && plan.tasks.tasks.iter().all(|task| task.after_sinks.is_empty())
}

fn dry_run(plan: &Plan, args: &RunArgs) -> Result<ExitCode, Failed> {
    if !plan.tasks.is_empty() {
        // What is discarded is not there any more.
        let records = if args.fresh { BTreeMap::new() } else { tasks::records(plan)? };
        return tasks::show(plan, &records, args.json);
    }
    match args.json {
        true => stdout::print_json(plan),
        false => stdout::print(&orchestra_launch::plan::describe(plan)),
    }
}

fn progress_mode(args: &RunArgs, verbosity: Verbosity, surroundings: &Surroundings) -> ProgressMode {
    match verbosity.quiet {
        true => ProgressMode::Off,
        // What is drawn is no line.
        false if args.log_format == Some(LogFormat::Json) => ProgressMode::Lines,
        false => ProgressMode::of(surroundings),
    }
}

fn runtime_library(args: &RunArgs, plan: &Plan, notices: Notices) -> Result<Option<Library>, Failed> {
    if tasks_alone(args, plan) {
        return Ok(None);
    }
    let (named, offline) = (args.workflow.ort_library.clone(), args.workflow.offline);
    orchestra_launch::runtime_library(plan, named, offline, &mut LibraryNotes { notices, last: None })
        .map_err(|e| Failed::new(ExitCode::Unavailable, e))
}

fn telemetry(
    args: &RunArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
    plan: &Plan,
) -> Result<TelemetryGuard, Failed> {
    let of_file = plan.telemetry.clone();
    let configured = TelemetryPlan { otlp: args.otlp.clone().or(of_file.otlp), ..of_file };
    let traces = TraceSettings::resolve(&configured, |name| std::env::var(name).ok())
        .map_err(|e| Failed::new(ExitCode::BadFile, e))?;
    let logs = LogSettings {
        terminal: verbosity.terminal_level(),
        filter: std::env::var("RUST_LOG").ok(),
        color: surroundings.color(),
        terminal_format: args.log_format.unwrap_or_default(),
        file_format: args.log_files.or(plan.telemetry.log_format).unwrap_or_default(),
        ..LogSettings::default()
    };
    let guard = Telemetry::build(&logs, traces.settings.as_ref())
        .and_then(Telemetry::install)
        .map_err(|e| Failed::new(ExitCode::Usage, e))?;
    for warning in &traces.warnings {
        tracing::warn!("{warning}");
    }
    Ok(guard)
}

fn runtime(plan: &Plan) -> Result<Runtime, Failed> {
    let started = orchestra_launch::actor_runtime(plan);
    let runtime = started
        .context("the threads of the run cannot be started; `orchestra doctor` looks at the limits of this machine")
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    let inside = runtime.enter();
    signals::survive_the_limit_on_file_sizes();
    drop(inside);
    Ok(runtime)
}

pub fn not_started(error: StartRunError) -> Failed {
    let code = match &error {
        error if error.is_of_folder() => ExitCode::BadFile,
        StartRunError::Listing { error, .. } if !error.is_of_source() => ExitCode::TryAgain,
        StartRunError::Bucket { error, .. } if !error.is_of_source() => ExitCode::TryAgain,
        StartRunError::Bucket { .. } | StartRunError::Taken { .. } => ExitCode::BadFile,
        StartRunError::Asked(_)
        | StartRunError::Changed { .. }
        | StartRunError::Doubted { .. }
        | StartRunError::Listing { .. }
        | StartRunError::Unreadable { .. }
        | StartRunError::Sealed(_) => ExitCode::BadFile,
        StartRunError::Actors(_) if !error.lacks_threads() => ExitCode::Bug,
        _ => ExitCode::TryAgain,
    };
    Failed::new(code, error)
}

/// Shows the run until it ends.
async fn follow(handle: RunHandle, mut progress: ProgressDisplay) -> RunOutcome {
    let mut continued = Continued::new();
    let snapshots = handle.snapshots();
    let mut watch = RateWatch::default();
    let mut tick = tokio::time::interval(DRAW_EVERY);
    let mut done = std::pin::pin!(handle.wait());
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut done => break outcome,
            // Before the next drawing, which would remove what the shell wrote.
            () = continued.next() => progress.resumed(),
            _ = tick.tick() => {
                let now = snapshots.borrow().clone();
                progress.update(watch.look(now));
            }
        }
    };
    progress.finish();
    outcome
}
