//! `orchestra run`: plan, prepare, start, watch, sum up. What a run does is decided by the crates below.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use orchestra::{
    Found, Plan, Prepared, Progress as LibraryProgress, RunHandle, RunOutcome, StartOptions, StartRunError,
    StopHandle,
};
use orchestra_core::bottleneck::Bottleneck;
use orchestra_telemetry::traces::context;
use orchestra_telemetry::{LogSettings, Telemetry, TelemetryGuard, TraceSettings};
use orchestra_wire::frames::TraceContext;
use tracing::Instrument as _;

use crate::Failed;
use crate::args::{RunArgs, Verbosity, resume_command};
use crate::exit_code::ExitCode;
use crate::human::count;
use crate::planning;
use crate::progress::{Progress, ProgressMode};
use crate::summary::{RunEnd, Summary};
use crate::surroundings::Surroundings;
use crate::watch::Watch;

/// How often the progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// Runs the workflow, or goes on with it.
pub fn run(args: &RunArgs, verbosity: Verbosity, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    let options = planning::options(&args.workflow);
    let planned = planning::read(&args.workflow.file, &options, &orchestra::machine())?;
    let plan = match planning::show(planned, surroundings) {
        Ok(plan) => Arc::new(plan),
        Err(code) => return Ok(code),
    };
    let telemetry = telemetry(args, verbosity, surroundings, &plan)?;
    let prepared = orchestra::prepare(Arc::clone(&plan), args.fresh).map_err(not_started)?;
    let pipelines: Vec<&str> = plan.pipelines.iter().map(|p| p.name.as_str()).collect();
    telemetry
        .log_files()
        .open(&plan.output.join("logs"), &pipelines)
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    let talk = Talk { quiet: verbosity.quiet };
    if let Some(code) = prepared.nothing_to_do() {
        return finished_before(prepared, code, Output::of(args, verbosity));
    }
    talk.found(&prepared);
    let library = orchestra::runtime_library(
        &plan,
        args.workflow.ort_library.clone(),
        args.workflow.offline,
        &mut LibraryNotes { talk, last: None },
    )
    .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    tracing::info!(path = %library.path.display(), version = ?library.version, origin = ?library.origin, "onnxruntime found");

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(actor_threads())
        .enable_all()
        .build()
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    let resumed_from = Some(prepared.counts().total()).filter(|n| *n > 0);
    let mode = if verbosity.quiet { ProgressMode::Off } else { ProgressMode::of(surroundings) };
    let outcome = runtime.block_on(async {
        let span = tracing::info_span!("workflow.run", run_id = %prepared.run_id, workflow = %plan.name);
        let options = StartOptions { trace: Some(Arc::new(trace_of)), ..StartOptions::default() };
        let options = orchestra::run_options(options, library.path)
            .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
        let handle = prepared.start(options).instrument(span.clone()).await.map_err(not_started)?;
        let progress = Progress::new(mode, surroundings);
        telemetry.terminal().redirect(progress.printer());
        Ok::<_, Failed>(follow(handle, progress).instrument(span).await)
    })?;
    telemetry.terminal().restore();
    // Blocking tasks that hang (a dead network drive) must not hold the command.
    runtime.shutdown_timeout(Duration::from_secs(1));
    end(&outcome, &plan, resumed_from, Output::of(args, verbosity), telemetry)
}

fn telemetry(
    args: &RunArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
    plan: &Plan,
) -> Result<TelemetryGuard, Failed> {
    let configured = args.otlp.as_deref().or(plan.telemetry.otlp.as_deref());
    let traces = TraceSettings::resolve(configured, |name| std::env::var(name).ok())
        .map_err(|e| Failed::new(ExitCode::BadFile, e))?;
    let logs = LogSettings {
        terminal: verbosity.terminal_level(),
        filter: std::env::var("RUST_LOG").ok(),
        color: surroundings.color(),
        ..LogSettings::default()
    };
    let guard = Telemetry::build(&logs, traces.settings.as_ref())
        .and_then(Telemetry::install)
        .map_err(|e| Failed::new(ExitCode::Usage, e))?;
    for warning in traces.warnings {
        tracing::warn!("{warning}");
    }
    Ok(guard)
}

/// Threads that the actors share. Decoding, models and the journal have threads of their own, and what is left is a few messages per
/// batch: on a small machine more threads only wake each other up and take cores from the rest.
fn actor_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 8).clamp(1, 4)
}

fn trace_of(span: &tracing::Span) -> Option<TraceContext> {
    context::of_span(span).map(|(trace_id, span_id, flags)| TraceContext { trace_id, span_id, flags })
}

fn not_started(error: StartRunError) -> Failed {
    let code = match &error {
        StartRunError::Changed { .. } | StartRunError::Listing { .. } => ExitCode::BadFile,
        StartRunError::Actors(_) => ExitCode::Bug,
        _ => ExitCode::TryAgain,
    };
    Failed::new(code, error)
}

/// Shows the run until it ends, and turns signals into its stages of stopping.
async fn follow(handle: RunHandle, mut progress: Progress) -> RunOutcome {
    let signals = tokio::spawn(signals(handle.stop_handle()));
    let snapshots = handle.snapshots();
    let mut watch = Watch::default();
    let mut tick = tokio::time::interval(DRAW_EVERY);
    let mut done = std::pin::pin!(handle.wait());
    let outcome = loop {
        tokio::select! {
            outcome = &mut done => break outcome,
            _ = tick.tick() => {
                let now = snapshots.borrow().clone();
                let elapsed = now.elapsed;
                progress.update(&watch.look(now), elapsed);
            }
        }
    };
    signals.abort();
    progress.finish();
    outcome
}

/// The first signal lets the run finish what is in flight, the second kills its workers, the third ends the process at once; the
/// journal is then resumed as after any crash.
async fn signals(stop: StopHandle) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::warn!("signals cannot be caught; an interrupted run can be resumed all the same");
        return;
    };
    let mut n = 0;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        n += 1;
        match n {
            1 => {
                tracing::warn!("stopping: finishing what is in flight (again: kill the workers)");
                stop.interrupt();
            }
            2 => {
                tracing::warn!("stopping now: workers are killed (again: exit at once)");
                stop.abort();
            }
            _ => std::process::exit(i32::from(ExitCode::Interrupted.number())),
        }
    }
}

fn end(
    outcome: &RunOutcome,
    plan: &Plan,
    resumed_from: Option<u64>,
    output: Output,
    telemetry: TelemetryGuard,
) -> Result<ExitCode, Failed> {
    let report = &outcome.report;
    let summary = Summary {
        workflow: report.workflow.clone(),
        run_id: report.run_id.clone(),
        end: run_end(outcome),
        read: report.items.read,
        done: report.items.done,
        failed: report.items.failed,
        seconds: report.seconds,
        items_per_second: report.items_per_second,
        restarts: report.devices.iter().map(|d| d.restarts).sum(),
        bottleneck: bottleneck(&report.bottleneck),
        outputs: plan.sinks.iter().map(|s| s.path.clone()).collect(),
        failures_path: plan.output.join("failures.jsonl"),
        resumed_from,
        resume_command: resume_command(std::env::args_os()),
    };
    print_summary(&summary, report, output)?;
    let report = telemetry.shutdown();
    if let Some(lost) = report.spans.map(|s| s.lost()).filter(|n| *n > 0) {
        eprintln!("warning: {} spans could not be delivered to the trace collector", count(lost));
    }
    if let Some(error) = report.logs.error {
        eprintln!("warning: the log files are incomplete: {error}");
    }
    Ok(summary.exit_code())
}

fn run_end(outcome: &RunOutcome) -> RunEnd {
    let reason = outcome.problems.join("; ");
    match outcome.exit_code {
        0 => RunEnd::Finished,
        65 if outcome.problems.is_empty() => RunEnd::Finished,
        65 => RunEnd::FailureLimit,
        130 => RunEnd::Interrupted,
        69 => RunEnd::Stopped { reason, code: ExitCode::Unavailable },
        70 => RunEnd::Stopped { reason, code: ExitCode::Bug },
        _ => RunEnd::Stopped { reason, code: ExitCode::TryAgain },
    }
}

fn bottleneck(name: &str) -> Bottleneck {
    let all = [Bottleneck::Loading, Bottleneck::Inference, Bottleneck::Cpu, Bottleneck::Sinks];
    all.into_iter().find(|b| b.to_string() == name).unwrap_or(Bottleneck::Unknown)
}

fn finished_before(prepared: Prepared, code: i32, output: Output) -> Result<ExitCode, Failed> {
    let plan = Arc::clone(&prepared.plan);
    let counts = prepared.counts();
    let summary = Summary {
        workflow: plan.name.clone(),
        run_id: prepared.run_id.clone(),
        end: RunEnd::FinishedBefore,
        read: counts.total(),
        done: counts.done,
        failed: counts.failed,
        seconds: 0.0,
        items_per_second: 0.0,
        restarts: 0,
        bottleneck: Bottleneck::Unknown,
        outputs: plan.sinks.iter().map(|s| s.path.clone()).collect(),
        failures_path: plan.output.join("failures.jsonl"),
        resumed_from: None,
        resume_command: resume_command(std::env::args_os()),
    };
    prepared.close().map_err(not_started)?;
    tracing::debug!(code, "the run was finished before");
    match output {
        Output::Json => print_json(&plan.output.join("run.json"))?,
        Output::Text => eprint!("{}", summary.text()),
        Output::Quiet => {}
    }
    Ok(summary.exit_code())
}

/// How the end of a run is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Text,
    Json,
    Quiet,
}

impl Output {
    fn of(args: &RunArgs, verbosity: Verbosity) -> Self {
        match (args.json, verbosity.quiet) {
            (true, _) => Self::Json,
            (false, true) => Self::Quiet,
            (false, false) => Self::Text,
        }
    }
}

/// A quiet run that is not all done still says why.
fn print_summary(summary: &Summary, report: &orchestra::RunReport, output: Output) -> Result<(), Failed> {
    match output {
        Output::Json => {
            let text = serde_json::to_string_pretty(report).map_err(|e| Failed::new(ExitCode::Bug, e))?;
            println!("{text}");
        }
        Output::Quiet if summary.exit_code() == ExitCode::Done => {}
        Output::Text | Output::Quiet => eprint!("{}", summary.text()),
    }
    Ok(())
}

fn print_json(path: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`", path.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    print!("{text}");
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Talk {
    quiet: bool,
}

impl Talk {
    fn say(self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    fn found(self, prepared: &Prepared) {
        match prepared.found {
            Found::Fresh => {}
            Found::Discarded { finished } => {
                self.say(&format!(
                    "starting over: the records of {} finished items are discarded",
                    count(finished)
                ));
            }
            Found::Resumed { finished, new_items } => {
                let new =
                    if new_items > 0 { format!(", {} of them new", count(new_items)) } else { String::new() };
                let left = prepared.total.saturating_sub(finished);
                self.say(&format!(
                    "going on: {} items are finished, {} are left{new}",
                    count(finished),
                    count(left)
                ));
            }
        }
    }
}

/// Says what the search for the runtime library does when it takes a while.
struct LibraryNotes {
    talk: Talk,
    last: Option<u64>,
}

impl LibraryProgress for LibraryNotes {
    fn note(&mut self, line: &str) {
        self.talk.say(line);
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        const STEP: u64 = 10 << 20;
        if self.last.is_none_or(|last| done >= last + STEP) {
            self.last = Some(done);
            let of = total.map(|t| format!(" of {}", orchestra_plan::format_bytes(t))).unwrap_or_default();
            self.talk.say(&format!("  {}{of}", orchestra_plan::format_bytes(done)));
        }
    }
}
