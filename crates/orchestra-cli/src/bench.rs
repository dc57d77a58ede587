//! `orchestra bench`: measure the limit of this machine for a workflow, and how close a run comes. It passes on what `orchestra-lab` says,
//! and judges nothing.

use std::time::Duration;

use orchestra_lab::LabError;
use orchestra_lab::bench::{Bench, Options};
use orchestra_lab::bench_report::{Report, RungReport};

use crate::Failed;
use crate::args::{BenchArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::lab::{self, Told, failed};
use crate::run::Talk;
use crate::stdout;
use crate::surroundings::Surroundings;

mod table;

enum Measured {
    Rungs(RungReport),
    Runs(Report),
}

/// Measures, and prints a table or one JSON object.
pub fn bench(
    args: &BenchArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let (talk, level) = (Talk { quiet: verbosity.quiet }, verbosity.terminal_level());
    let setting = lab::Setting { args: &args.lab, surroundings, level, otlp: None, talk };
    let ready = match lab::get_ready(&setting)? {
        Ok(ready) => ready,
        Err(code) => return Ok(code),
    };
    let options = Options {
        rounds: args.runs,
        part: Duration::from_secs_f64(args.seconds),
        items: args.items,
        repeat: args.repeat,
        tools: ready.tools,
    };
    let mut told = Told::new(talk, surroundings);
    let mut tell = |progress| told.tell(progress);
    let measure = || -> Result<Measured, LabError> {
        let mut bench = Bench::prepare(ready.plan, options, &mut tell)?;
        Ok(match args.rungs {
            true => Measured::Rungs(bench.rungs()?),
            false => Measured::Runs(bench.measure(&mut tell)?),
        })
    };
    let measured = measure();
    told.end();
    match measured.map_err(failed)? {
        Measured::Rungs(report) if args.json => lab::print_json(&report),
        Measured::Runs(report) if args.json => lab::print_json(&report),
        Measured::Rungs(report) => stdout::print(&table::rungs(&report)),
        Measured::Runs(report) => stdout::print(&table::table(&report, args)),
    }
}
