//! `orchestra chaos`: run a workflow while its workers are killed and stopped, and audit what came out. It passes on what
//! `orchestra-chaos` says, and judges nothing.

use std::time::Duration;

use anyhow::anyhow;
use orchestra::Plan;
use orchestra_chaos::{Chaos, ChaosError, Options, Progress, Report, Strikes};
use tracing::level_filters::LevelFilter;

use crate::Failed;
use crate::args::{ChaosArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::human::count;
use crate::planning::{self, Workflow};
use crate::run::{Talk, lost_spans};
use crate::surroundings::Surroundings;
use crate::trial::{self, Told};
use crate::{stderr, stdout};

mod table;

const DIFFERING: &str = "differing";

/// Runs, and prints a table or one JSON object.
pub fn chaos(
    args: &ChaosArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let strikes = Strikes {
        kill_every: args.kill_every.0,
        stop_every: args.stop_every.0,
        spares: args.spares,
        seed: args.seed,
    };
    if strikes.kill_every.is_none() && strikes.stop_every.is_none() {
        let what =
            anyhow!("`--kill-every` and `--stop-every` are both off: nothing would happen to any worker");
        return Err(Failed::new(ExitCode::Usage, what));
    }
    let workflow = Workflow::read(&args.trial.file)?;
    let machine = planning::machine(&trial::workflow_args(&args.trial));
    let talk = Talk { quiet: verbosity.quiet };
    // Of every worker that is struck the log says that it was lost: here that is no news.
    let level = if verbosity.verbose == 0 { LevelFilter::ERROR } else { verbosity.terminal_level() };
    let otlp = args.otlp.as_deref();
    let setting = trial::Setting { args: &args.trial, machine: &machine, surroundings, level, otlp, talk };
    let refuse = |plan: &Plan| match plan.infer_stages().next() {
        Some(_) => Ok(()),
        None => Err(failed(ChaosError::NoInferStage)),
    };
    let ready = match trial::get_ready(&workflow, &setting, refuse)? {
        Ok(ready) => ready,
        Err(code) => return Ok(code),
    };
    let options = Options {
        runs: args.runs,
        items: args.items,
        lasting: Duration::from_secs_f64(args.seconds),
        strikes,
        launcher: ready.launcher.clone(),
        library: ready.library.clone(),
        preload: ready.preload.clone(),
        trace: ready.telemetry.tracer(),
        cancel: ready.cancel.clone(),
        folder: args.trial.scratch.clone(),
    };
    let mut told = Told::new(talk, surroundings);
    let report = run(ready.plan.clone(), options, &mut told);
    told.end();
    if let Some(warning) = ready.telemetry.shutdown().spans.as_ref().and_then(lost_spans) {
        stderr::say_line(&warning);
    }
    let report = report.map_err(failed)?;
    print(&report, args.json)?;
    if report.passed {
        return Ok(ExitCode::Done);
    }
    stderr::say_line(&complaint(&flaws(&report)));
    Ok(ExitCode::Bug)
}

fn run(plan: Plan, options: Options, told: &mut Told<'_>) -> Result<Report, ChaosError> {
    let mut tell = |progress: Progress| told.tell(&progress, line_in_a_pipe(progress));
    Chaos::prepare(plan, options, &mut tell)?.run(&mut tell)
}

fn print(report: &Report, json: bool) -> Result<ExitCode, Failed> {
    if !json {
        return stdout::print(&table::table(report));
    }
    let text = serde_json::to_string_pretty(report).map_err(|e| Failed::new(ExitCode::Bug, e))?;
    stdout::print(&format!("{text}\n"))
}

fn flaws(report: &Report) -> Vec<(u64, &'static str)> {
    let counts = [
        (report.lost, "lost"),
        (report.doubled, "doubled"),
        (report.differing, DIFFERING),
        (report.unknown, "unknown"),
        (report.leaks.len() as u64, "leaked"),
    ];
    counts.into_iter().filter(|(n, _)| *n > 0).collect()
}

/// What is wrong, and whose fault it is. Only where results differ may that be the model's.
fn complaint(flaws: &[(u64, &str)]) -> String {
    let found: Vec<String> = flaws.iter().map(|(n, what)| format!("{} {what}", count(*n))).collect();
    let found = found.join(", ");
    match flaws {
        [(_, DIFFERING)] => format!(
            "error: {found}; either the model does not give the same answer each time, which two runs without faults would show, or this is a bug of ours: then please report it"
        ),
        _ => format!("error: {found}; this is a bug of ours, please report it"),
    }
}

fn failed(error: ChaosError) -> Failed {
    Failed::new(trial::code_of(error.cause()), error)
}

/// A line for each run.
fn line_in_a_pipe(progress: Progress) -> Option<String> {
    let is_news = !matches!(progress, Progress::Run { finished: 1.., .. } | Progress::Audit { .. });
    is_news.then(|| progress.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_that_differ_may_be_the_fault_of_the_model() {
        let both = complaint(&[(2, DIFFERING)]);
        assert!(
            both.starts_with("error: 2 differing; either the model") && both.contains("a bug of ours"),
            "{both}"
        );
        for flaws in [&[(1, "lost")][..], &[(1, "lost"), (2, DIFFERING)], &[(2, DIFFERING), (1, "leaked")]] {
            let ours = complaint(flaws);
            assert!(
                !ours.contains("either") && ours.ends_with("this is a bug of ours, please report it"),
                "{ours}"
            );
        }
    }
}
