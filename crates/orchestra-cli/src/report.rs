//! `orchestra report`: a run as one page, or as a trace, in a file of its own. Reads the output folder, and writes nothing but that file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};

use orchestra_launch::{COMPARED_PAGE, Plan, REPORT_PAGE};
use orchestra_report::{RunReport, compare, compared_page, page, read, trace};

use crate::args::{ReportArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::{Failed, stderr, stdout};

/// What the files begin with that are replaced.
const BEGIN_OF_PAGE: &[u8] = b"<!DOCTYPE html>";
const BEGIN_OF_TRACE: &[u8] = b"\x1f\x8b";

pub fn report(args: &ReportArgs, verbosity: Verbosity) -> Result<ExitCode, Failed> {
    let runs = args.outputs.iter().map(|output| read(output)).collect::<Result<Vec<RunReport>, _>>();
    let runs = runs.map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let (html, beside) = match &runs[..] {
        [_, _] if args.perfetto.is_some() => {
            let why = anyhow!("--perfetto is for one run: name one output folder");
            return Err(Failed::new(ExitCode::Usage, why));
        }
        [a, b] if args.json => return stdout::print_json(&compare(a, b)),
        [a, b] => (compared_page(&compare(a, b)), args.outputs[1].join(COMPARED_PAGE)),
        _ if args.json => {
            let why = anyhow!(
                "--json is for two runs: name a second output folder; of one, `run.json` in it says the same as JSON"
            );
            return Err(Failed::new(ExitCode::Usage, why));
        }
        [run] => match &args.perfetto {
            Some(path) => {
                let trace = trace(run).map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
                write(path, &trace, BEGIN_OF_TRACE, verbosity)?;
                return Ok(ExitCode::Done);
            }
            None => (page(run), args.outputs[0].join(REPORT_PAGE)),
        },
        _ => return Err(Failed::new(ExitCode::Usage, anyhow!("name an output folder, or two"))),
    };
    write(&args.page.clone().unwrap_or(beside), html.as_bytes(), BEGIN_OF_PAGE, verbosity)?;
    Ok(ExitCode::Done)
}

/// Writes the page of a run that has just ended, if the command or the file asks for it. Where that fails, a warning says so: the run and its exit
/// code stand.
pub fn at_the_end(is_asked: bool, plan: &Plan, verbosity: Verbosity) {
    if !is_asked && !plan.telemetry.report {
        return;
    }
    let output = &plan.output;
    let read = read(output).map_err(|error| Failed::new(ExitCode::TryAgain, error));
    let written = read
        .and_then(|run| write(&output.join(REPORT_PAGE), page(&run).as_bytes(), BEGIN_OF_PAGE, verbosity));
    if let Err(Failed { error: Some(error), .. }) = written {
        stderr::say_line(&format!("warning: the page of the run is not written: {error:#}"));
    }
}

fn write(path: &Path, bytes: &[u8], begin: &[u8], verbosity: Verbosity) -> Result<(), Failed> {
    if let Some(other) = other_content(path, begin) {
        return Err(Failed::new(ExitCode::Usage, other));
    }
    orchestra_launch::write_atomic(path, bytes)
        .with_context(|| format!("cannot write `{}`", path.display()))
        .map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    if !verbosity.quiet {
        stderr::say_line(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// Why a file that is there is not replaced: only one of the same kind is.
fn other_content(path: &Path, begin: &[u8]) -> Option<anyhow::Error> {
    let mut found = Vec::new();
    let read = File::open(path).and_then(|file| file.take(begin.len() as u64).read_to_end(&mut found));
    let is_other = read.is_ok() && !found.is_empty() && found != begin;
    let what = if begin == BEGIN_OF_PAGE { "page" } else { "trace" };
    is_other.then(|| anyhow!("`{}` is there and is no {what}: name another file", path.display()))
}
