//! `orchestra report`: a run as one page in a file of its own. Reads the output folder, and writes nothing but the page.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};

use orchestra_launch::{COMPARED_PAGE, Plan, REPORT_PAGE};
use orchestra_report::{RunReport, compare, compared_page, page, read};

use crate::args::{ReportArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::{Failed, stderr, stdout};

pub fn report(args: &ReportArgs, verbosity: Verbosity) -> Result<ExitCode, Failed> {
    let runs = args.outputs.iter().map(|output| read(output)).collect::<Result<Vec<RunReport>, _>>();
    let runs = runs.map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let (html, beside) = match &runs[..] {
        [a, b] if args.json => return stdout::print_json(&compare(a, b)),
        [a, b] => (compared_page(&compare(a, b)), args.outputs[1].join(COMPARED_PAGE)),
        _ if args.json => {
            let why = anyhow!(
                "--json is for two runs: name a second output folder; of one, `run.json` in it says the same as JSON"
            );
            return Err(Failed::new(ExitCode::Usage, why));
        }
        [run, ..] => (page(run), args.outputs[0].join(REPORT_PAGE)),
        [] => return Err(Failed::new(ExitCode::Usage, anyhow!("name an output folder"))),
    };
    write(&args.page.clone().unwrap_or(beside), &html, verbosity)?;
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
    let written = read.and_then(|run| write(&output.join(REPORT_PAGE), &page(&run), verbosity));
    if let Err(Failed { error: Some(error), .. }) = written {
        stderr::say_line(&format!("warning: the page of the run is not written: {error:#}"));
    }
}

fn write(path: &Path, html: &str, verbosity: Verbosity) -> Result<(), Failed> {
    if let Some(other) = other_content(path) {
        return Err(Failed::new(ExitCode::Usage, other));
    }
    orchestra_launch::write_atomic(path, html.as_bytes())
        .with_context(|| format!("cannot write the page `{}`", path.display()))
        .map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    if !verbosity.quiet {
        stderr::say_line(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// Why a file that is there is not replaced: only a page is.
fn other_content(path: &Path) -> Option<anyhow::Error> {
    const BEGIN: &[u8] = b"<!DOCTYPE html>";
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGIN.len() as u64).read_to_end(&mut begin));
    let is_other = read.is_ok() && !begin.is_empty() && begin != BEGIN;
    is_other.then(|| anyhow!("`{}` is there and is no page: name another file with `-o`", path.display()))
}
