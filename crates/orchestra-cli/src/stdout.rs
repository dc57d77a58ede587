//! Standard output. A reader that has seen enough, as in `orchestra plan FILE | head`, is no error. Formats nothing.

use std::io::{self, Write as _};

use anyhow::Context as _;
use orchestra_core::visible;

use crate::Failed;
use crate::exit_code::ExitCode;

/// Prints a text that is all that the command has to say. What it quotes of files and models steers no terminal.
pub fn print(text: &str) -> Result<ExitCode, Failed> {
    print_bytes(visible(text).as_bytes())
}

pub fn print_json(value: &impl serde::Serialize) -> Result<ExitCode, Failed> {
    print_bytes(json(value)?.as_bytes())
}

pub fn json(value: &impl serde::Serialize) -> Result<String, Failed> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failed::new(ExitCode::Bug, e))?;
    Ok(text + "\n")
}

/// The same for text that has its form already.
pub fn print_bytes(bytes: &[u8]) -> Result<ExitCode, Failed> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let failed = Err(error).context("cannot write to standard output");
            failed.map_err(|e| Failed::new(ExitCode::TryAgain, e))
        }
        _ => Ok(ExitCode::Done),
    }
}
