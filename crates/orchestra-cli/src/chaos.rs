//! `orchestra chaos`: run a workflow while its workers are killed and stopped, and audit what came out. It passes on what `orchestra-lab`
//! says, and judges nothing.

use std::time::Duration;

use anyhow::anyhow;
use orchestra::lab::chaos::{Chaos, Options};
use orchestra::lab::chaos_report::Report;
use orchestra::lab::striker::Strikes;
use tracing::level_filters::LevelFilter;

use crate::Failed;
use crate::args::{ChaosArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::human::count;
use crate::lab::{self, Told, failed};
use crate::notices::Notices;
use crate::run::lost_spans;
use crate::surroundings::Surroundings;
use crate::{stderr, stdout};

mod table;

const DIFFERING: &str = "differing";

pub fn chaos(
    args: &ChaosArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let strikes = Strikes { kill_every: args.kill_every.0, stop_every: args.stop_every.0, seed: args.seed };
    if strikes.kill_every.is_none() && strikes.stop_every.is_none() {
        let what =
            anyhow!("`--kill-every` and `--stop-every` are both off: nothing would happen to any worker");
        return Err(Failed::new(ExitCode::Usage, what));
    }
    let notices = Notices { quiet: verbosity.quiet };
    // Of every worker that is struck the log says that it was lost: here that is no news.
    let level = if verbosity.verbose == 0 { LevelFilter::ERROR } else { verbosity.terminal_level() };
    let setting = lab::Setting { args: &args.lab, surroundings, level, otlp: args.otlp.as_deref(), notices };
    let ready = lab::get_ready(&setting)?;
    let options = Options {
        runs: args.runs,
        items: args.items,
        lasting: Duration::from_secs_f64(args.seconds),
        strikes,
        trace: ready.telemetry.tracer(),
        tools: ready.tools,
    };
    let mut told = Told::new(notices, surroundings);
    let mut tell = |progress| told.tell(progress);
    let report = Chaos::prepare(ready.plan, options, &mut tell).and_then(|chaos| chaos.run(&mut tell));
    told.end();
    if let Some(warning) = ready.telemetry.shutdown().spans.as_ref().and_then(lost_spans) {
        stderr::say_line(&warning);
    }
    let report = report.map_err(failed)?;
    stdout::print(&if args.json { stdout::json(&report)? } else { table::table(&report) })?;
    if report.passed {
        return Ok(ExitCode::Done);
    }
    stderr::say_line(&complaint(&flaws(&report)));
    Ok(ExitCode::Bug)
}

fn flaws(report: &Report) -> Vec<(u64, &'static str)> {
    let flaws = ["lost", "doubled", DIFFERING, "unknown"].map(|what| (report.count(what), what));
    let leaked = (report.leaks.len() as u64, "leaked");
    flaws.into_iter().chain([leaked]).filter(|(n, _)| *n > 0).collect()
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
