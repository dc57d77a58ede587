//! `orchestra bench`: measure the limits of this machine for a workflow, and how close a run comes. It passes on what `orchestra-bench`
//! says, and judges nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use orchestra::{Machine, Plan, PlanOptions};
use orchestra_bench::{Bench, BenchError, Job, Options, Progress, Report, RungReport, Settings, Tools};

use crate::Failed;
use crate::args::{BenchArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::planning::{self, Workflow};
use crate::run::Talk;
use crate::stdout;
use crate::surroundings::Surroundings;
use crate::trial::{self, Ready, Told};

mod part;
mod table;

use part::SharedText;
pub use part::part;

/// Items that are decoded to have something to run, unless the command line says how many.
const ITEMS_FOR_RUNGS: u64 = 64;

/// Measures, and prints a table or one JSON object.
pub fn bench(
    args: &BenchArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let workflow = Workflow::read(&args.trial.file)?;
    let machine = planning::machine(&trial::workflow_args(&args.trial));
    let (talk, level) = (Talk { quiet: verbosity.quiet }, verbosity.terminal_level());
    let setting =
        trial::Setting { args: &args.trial, machine: &machine, surroundings, level, otlp: None, talk };
    let refuse = |plan: &Plan| match plan.infer_stages().next() {
        Some(_) => Ok(()),
        None => Err(failed(BenchError::NoInferStage)),
    };
    let ready = match trial::get_ready(&workflow, &setting, refuse)? {
        Ok(ready) => ready,
        Err(code) => return Ok(code),
    };
    let text = SharedText::new(&workflow.text)
        .context("cannot keep the text of the workflow file for the processes that measure")
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    let options = Options {
        rounds: args.runs,
        part: Duration::from_secs_f64(args.seconds),
        items: args.items,
        tools: tools(&ready),
        memory: machine.memory_available,
        command: {
            let trial = args.trial.clone();
            Arc::new(move |settings: &Settings, job: &Job| part::command(&trial, &text, settings, job))
        },
        folder: args.trial.scratch.clone(),
    };
    let mut told = Told::new(talk, surroundings);
    if args.rungs {
        let rungs = rungs(ready.plan.clone(), options, &mut told);
        told.end();
        return print_rungs(args, &rungs?);
    }
    let measured = measure(args, &workflow, &machine, ready.plan.clone(), options, &mut told);
    told.end();
    let (report, patch) = measured?;
    print(args, &report, &patch)
}

fn tools(ready: &Ready) -> Tools {
    Tools {
        launcher: Arc::new(ready.launcher.clone()),
        library: ready.library.clone(),
        preload: ready.preload.clone(),
        cancel: ready.cancel.clone(),
    }
}

/// The report, and the patch that the tuning came to (empty without one).
fn measure(
    args: &BenchArgs,
    workflow: &Workflow,
    machine: &Machine,
    plan: Plan,
    options: Options,
    told: &mut Told<'_>,
) -> Result<(Report, String), Failed> {
    let mut tell = |progress: Progress<'_>| told.tell(&progress, line_in_a_pipe(progress));
    let mut bench = Bench::prepare(plan, options, &mut tell).map_err(failed)?;
    let mut report = bench.measure(&mut tell).map_err(failed)?;
    if !args.tune {
        return Ok((report, String::new()));
    }
    let base = planning::options(&trial::workflow_args(&args.trial));
    let mut replan = |settings: &[(String, u64)]| replan(workflow, &base, settings, machine);
    let tuned = bench.tune(args.trials, &mut replan, &mut tell).map_err(failed)?;
    let settings: Vec<(String, u64)> = tuned.settings.iter().map(|s| (s.key.clone(), s.value)).collect();
    report.tune = Some(tuned);
    let text = &workflow.text;
    let edited = orchestra_bench::edited(text, &settings).map_err(|e| Failed::new(ExitCode::BadFile, e))?;
    let patch = orchestra_bench::unified_diff(&name_in_patch(&args.trial.file), text, &edited);
    if let Some(path) = args.patch.as_ref().filter(|_| !patch.is_empty()) {
        std::fs::write(path, &patch)
            .with_context(|| format!("cannot write the patch to `{}`", path.display()))
            .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    }
    Ok((report, patch))
}

/// What batches of each size are worth.
fn rungs(plan: Plan, options: Options, told: &mut Told<'_>) -> Result<RungReport, Failed> {
    let mut tell = |progress: Progress<'_>| told.tell(&progress, line_in_a_pipe(progress));
    // Every item that the sample would have is only decoded to fill the batches.
    let options = Options { items: options.items.or(Some(ITEMS_FOR_RUNGS)), ..options };
    let mut bench = Bench::prepare(plan, options, &mut tell).map_err(failed)?;
    bench.rungs(&mut tell).map_err(failed)
}

fn print_rungs(args: &BenchArgs, report: &RungReport) -> Result<ExitCode, Failed> {
    if !args.json {
        return stdout::print(&table::rungs(report));
    }
    let text = serde_json::to_string_pretty(report).map_err(|e| Failed::new(ExitCode::Bug, e))?;
    stdout::print(&format!("{text}\n"))
}

/// The plan with settings changed; `None` where it cannot be planned so.
fn replan(
    workflow: &Workflow,
    base: &PlanOptions,
    settings: &[(String, u64)],
    machine: &Machine,
) -> Option<Plan> {
    let mut options = base.clone();
    options.set.extend(settings.iter().map(|(key, value)| (key.clone(), value.to_string())));
    let (plan, diagnostics) = workflow.plan(&options, machine);
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
    Failed::new(trial::code_of(error.cause()), error)
}

/// A line for each round and trial.
fn line_in_a_pipe(progress: Progress<'_>) -> Option<String> {
    match progress {
        Progress::Round { round, of } => Some(format!("round {round} of {of}")),
        Progress::Stage(_) => None,
        progress => Some(progress.to_string()),
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
