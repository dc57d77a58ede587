//! `orchestra bench`: measure the limits of this machine for a workflow, and how close a run comes. It passes on what `orchestra-bench`
//! says, and judges nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use orchestra::{Machine, Plan, PlanOptions, ProcessLauncher};
use orchestra_bench::{Bench, BenchError, Cancel, Cause, Options, Progress, Report};
use orchestra_telemetry::{LogSettings, Telemetry};

use crate::Failed;
use crate::args::{BenchArgs, Verbosity, WorkflowArgs};
use crate::exit_code::ExitCode;
use crate::planning;
use crate::run::{LibraryNotes, Talk, trace_of};
use crate::stderr;
use crate::stdout;
use crate::surroundings::Surroundings;

mod table;

/// Measures, and prints a table or one JSON object.
pub fn bench(
    args: &BenchArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let workflow = workflow_args(args);
    let machine = orchestra::machine();
    let planned = planning::read(&args.file, &planning::options(&workflow), &machine)?;
    let plan = match planning::show(planned, surroundings) {
        Ok(plan) => plan,
        Err(code) => return Ok(code),
    };
    if plan.infer_stages().next().is_none() {
        return Err(failed(BenchError::NoInferStage)); // Nothing is fetched for nothing.
    }
    let logs = LogSettings {
        terminal: verbosity.terminal_level(),
        filter: std::env::var("RUST_LOG").ok(),
        color: surroundings.color(),
        ..LogSettings::default()
    };
    let _telemetry = Telemetry::build(&logs, None)
        .and_then(Telemetry::install)
        .map_err(|e| Failed::new(ExitCode::Usage, e))?;
    let talk = Talk { quiet: verbosity.quiet };
    let library = orchestra::runtime_library(
        &plan,
        args.ort_library.clone(),
        args.offline,
        &mut LibraryNotes { talk, last: None },
    )
    .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    let cancel = Cancel::new();
    listen_for_signals(cancel.clone())?;
    let launcher = ProcessLauncher::this_executable().map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
    let options = Options {
        rounds: args.runs,
        part: Duration::from_secs_f64(args.seconds),
        items: args.items,
        launcher: Arc::new(launcher),
        library: library.path,
        trace: Some(Arc::new(trace_of)),
        cancel,
        folder: args.scratch.clone(),
    };
    let mut told = Told { talk, surroundings, is_open: false };
    let measured = measure(args, &workflow, &machine, plan, options, &mut told);
    told.end();
    let (report, patch) = measured?;
    print(args, &report, &patch)
}

fn workflow_args(args: &BenchArgs) -> WorkflowArgs {
    WorkflowArgs {
        file: args.file.clone(),
        devices: args.devices.clone(),
        set: args.set.clone(),
        output: None,
        offline: args.offline,
        ort_library: args.ort_library.clone(),
    }
}

/// The report, and the patch that the tuning came to (empty without one).
fn measure(
    args: &BenchArgs,
    workflow: &WorkflowArgs,
    machine: &Machine,
    plan: Plan,
    options: Options,
    told: &mut Told<'_>,
) -> Result<(Report, String), Failed> {
    let mut tell = |progress: Progress<'_>| told.tell(progress);
    let mut bench = Bench::prepare(plan, options, &mut tell).map_err(failed)?;
    let mut report = bench.measure(&mut tell).map_err(failed)?;
    if !args.tune {
        return Ok((report, String::new()));
    }
    let base = planning::options(workflow);
    let mut replan = |settings: &[(String, u64)]| replan(&args.file, &base, settings, machine);
    let tuned = bench.tune(args.trials, &mut replan, &mut tell).map_err(failed)?;
    let settings: Vec<(String, u64)> = tuned.settings.iter().map(|s| (s.key.clone(), s.value)).collect();
    report.tune = Some(tuned);
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read the workflow file `{}`", args.file.display()))
        .map_err(|e| Failed::new(ExitCode::BadFile, e))?;
    let edited = orchestra_bench::edited(&text, &settings).map_err(|e| Failed::new(ExitCode::BadFile, e))?;
    let patch = orchestra_bench::unified_diff(&name_in_patch(&args.file), &text, &edited);
    if let Some(path) = args.patch.as_ref().filter(|_| !patch.is_empty()) {
        std::fs::write(path, &patch)
            .with_context(|| format!("cannot write the patch to `{}`", path.display()))
            .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    }
    Ok((report, patch))
}

/// The plan with settings changed; `None` where it cannot be planned so.
fn replan(file: &Path, base: &PlanOptions, settings: &[(String, u64)], machine: &Machine) -> Option<Plan> {
    let mut options = base.clone();
    options.set.extend(settings.iter().map(|(key, value)| (key.clone(), value.to_string())));
    let (plan, diagnostics) = planning::read(file, &options, machine).ok()?;
    plan.filter(|_| !diagnostics.has_errors())
}

/// The file as seen from here: `patch` refuses paths that start at the root.
fn name_in_patch(file: &Path) -> String {
    let here = std::env::current_dir().ok();
    let below = here.and_then(|here| file.strip_prefix(here).ok().map(Path::to_owned));
    let name = match below {
        Some(below) => below,
        None if file.is_absolute() => file.file_name().map_or_else(|| file.to_owned(), PathBuf::from),
        None => file.to_owned(),
    };
    name.display().to_string()
}

fn print(args: &BenchArgs, report: &Report, patch: &str) -> Result<ExitCode, Failed> {
    if args.json {
        let mut value = serde_json::to_value(report).map_err(|e| Failed::new(ExitCode::Bug, e))?;
        value["patch"] = if args.tune { patch.into() } else { serde_json::Value::Null };
        let text = serde_json::to_string_pretty(&value).map_err(|e| Failed::new(ExitCode::Bug, e))?;
        return stdout::print(&format!("{text}\n"));
    }
    let mut text = table::table(report);
    if !patch.is_empty() {
        text.push_str(&match &args.patch {
            Some(path) => format!("\nThe patch is in {}.\n", path.display()),
            None => format!("\n{patch}"),
        });
    }
    stdout::print(&text)
}

fn failed(error: BenchError) -> Failed {
    let code = match error.cause() {
        Cause::File => ExitCode::BadFile,
        Cause::Items => ExitCode::ItemsFailed,
        Cause::Unavailable => ExitCode::Unavailable,
        Cause::Surroundings => ExitCode::TryAgain,
        Cause::Interrupted => ExitCode::Interrupted,
        Cause::Bug => ExitCode::Bug,
    };
    Failed::new(code, error)
}

/// The first signal ends the measurement, which then cleans up; the second ends the process, should something hang.
fn listen_for_signals(cancel: Cancel) -> Result<(), Failed> {
    use tokio::signal::unix::{SignalKind, signal};
    let started = std::thread::Builder::new().name("signals".into()).spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            for exit_now in [false, true] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                cancel.cancel();
                if exit_now {
                    std::process::exit(i32::from(ExitCode::Interrupted.number()));
                }
            }
        });
    });
    started.map(drop).map_err(|e| Failed::new(ExitCode::TryAgain, e))
}

/// Says what is being done: on a terminal in one line that changes, in a pipe a line for each round and trial.
struct Told<'a> {
    talk: Talk,
    surroundings: &'a Surroundings,
    is_open: bool,
}

impl Told<'_> {
    fn tell(&mut self, progress: Progress<'_>) {
        if self.talk.quiet {
            return;
        }
        if self.surroundings.interactive() {
            self.is_open = true;
            stderr::say(&format!("\r\x1b[K{progress}"));
            return;
        }
        match progress {
            Progress::Part { round, of, part: "run" } => stderr::say_line(&format!("round {round} of {of}")),
            Progress::Part { .. } => {}
            progress => stderr::say_line(&progress.to_string()),
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            stderr::say("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_never_names_a_path_from_the_root() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(name_in_patch(Path::new("a/w.toml")), "a/w.toml");
        assert_eq!(name_in_patch(&here.join("a/w.toml")), "a/w.toml");
        assert_eq!(name_in_patch(Path::new("/nowhere/else/w.toml")), "w.toml");
    }
}
