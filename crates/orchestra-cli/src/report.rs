//! `orchestra report`: a run as one page in a file of its own. Reads the output folder, and writes nothing but the page.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};

use crate::args::{ReportArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::{Failed, stderr};

/// The page beside the results, where no other place is named.
const PAGE: &str = "report.html";

pub fn report(args: &ReportArgs, verbosity: Verbosity) -> Result<ExitCode, Failed> {
    let report = orchestra_report::read(&args.output).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let path = args.page.clone().unwrap_or_else(|| args.output.join(PAGE));
    if let Some(other) = other_content(&path) {
        return Err(Failed::new(ExitCode::Usage, other));
    }
    orchestra_launch::write_atomic(&path, orchestra_report::page(&report).as_bytes())
        .with_context(|| format!("cannot write the page `{}`", path.display()))
        .map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    if !verbosity.quiet {
        stderr::say_line(&format!("wrote {}", path.display()));
    }
    Ok(ExitCode::Done)
}

/// Why a file that is there is not replaced: only a page is.
fn other_content(path: &Path) -> Option<anyhow::Error> {
    const BEGIN: &[u8] = b"<!DOCTYPE html>";
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGIN.len() as u64).read_to_end(&mut begin));
    let is_other = read.is_ok() && !begin.is_empty() && begin != BEGIN;
    is_other.then(|| anyhow!("`{}` is there and is no page: name another file with `-o`", path.display()))
}
