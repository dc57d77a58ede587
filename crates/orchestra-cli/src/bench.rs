//! `orchestra bench`: measure the limit of this machine for a workflow, and how close a run comes. It passes on what `orchestra-lab` says,
//! and judges nothing.

use std::time::Duration;

use orchestra::lab::bench::{Bench, Options};

use crate::Failed;
use crate::args::{BenchArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::lab::{self, Told, failed};
use crate::notices::Notices;
use crate::stdout;
use crate::surroundings::Surroundings;

mod table;

pub fn bench(
    args: &BenchArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let (notices, level) = (Notices { quiet: verbosity.quiet }, verbosity.terminal_level());
    let setting = lab::Setting { args: &args.lab, surroundings, level, otlp: None, notices };
    let ready = lab::get_ready(&setting)?;
    let options = Options {
        rounds: args.runs,
        part: Duration::from_secs_f64(args.seconds),
        items: args.items,
        repeat: args.repeat,
        tools: ready.tools,
    };
    let mut told = Told::new(notices, surroundings);
    let mut tell = |progress| told.tell(progress);
    let text = Bench::prepare(ready.plan, options, &mut tell).and_then(|mut bench| {
        Ok(if let Some(sizes) = &args.batch_sizes {
            let sizes: Vec<usize> = sizes.iter().map(|size| *size as usize).collect();
            let report = bench.batch_sizes(&sizes)?;
            if args.json { stdout::json(&report) } else { Ok(table::batch_sizes(&report)) }
        } else {
            let report = bench.measure(&mut tell)?;
            if args.json { stdout::json(&report) } else { Ok(table::table(&report, args)) }
        })
    });
    told.end();
    stdout::print(&text.map_err(failed)??)
}
