//! `orchestra retry`: the command that started a run, kept in its output folder, once more for what has failed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser as _;
use serde::{Deserialize, Serialize};

use crate::Failed;
use crate::args::{Cli, Command, RetryArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::run;
use crate::surroundings::Surroundings;

/// The last command that started the run, in its output folder.
const FILE: &str = ".orchestra/command.json";

#[derive(Serialize, Deserialize)]
struct StartedBy {
    folder: PathBuf,
    /// Without the program.
    arguments: Vec<String>,
}

/// Does the items of a run again that have failed.
pub fn retry(
    args: &RetryArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let usage = |error| Failed::new(ExitCode::Usage, error);
    let file = args.output.join(FILE);
    orchestra_launch::only_files(&args.output).map_err(|error| Failed::new(ExitCode::BadFile, error))?;
    let text = fs::read(&file).with_context(|| {
        format!(
            "`{}` is no output folder of a run that this command has started; `orchestra run FILE --retry-failed` retries any run",
            args.output.display()
        )
    });
    let kept: StartedBy = serde_json::from_slice(&text.map_err(usage)?)
        .with_context(|| format!("`{}` holds no command", file.display()))
        .map_err(usage)?;
    let output = fs::canonicalize(&args.output).map_err(|e| usage(e.into()))?;
    let words = std::iter::once("orchestra".to_owned()).chain(kept.arguments);
    let cli = Cli::try_parse_from(words).with_context(|| format!("the command in `{}`", file.display()));
    let Command::Run(mut command) = cli.map_err(usage)?.command else {
        return Err(usage(anyhow::anyhow!("`{}` holds no command that runs a workflow", file.display())));
    };
    let (from, out) = (kept.folder.display(), args.output.display());
    env::set_current_dir(&kept.folder)
        .with_context(|| format!("the run was started in `{from}`, which cannot be entered; from where its files are now, `orchestra run FILE --output {out} --retry-failed` retries it"))
        .map_err(usage)?;
    (command.retry_failed, command.fresh, command.output) = (true, false, Some(output));
    run::run(&command, verbosity, surroundings)
}

/// Whether this is `orchestra retry`, which starts what is kept already. Options that every command takes may stand in front of it, and have no values.
pub fn is_retry() -> bool {
    env::args_os()
        .skip(1)
        .find(|word| !word.as_encoded_bytes().starts_with(b"-"))
        .is_some_and(|word| word == "retry")
}

/// Keeps the command that has started a run. Where it cannot be kept, the run goes on, and `retry` says so.
pub fn keep_command(output: &Path) {
    let arguments: Option<Vec<String>> = env::args_os().skip(1).map(|word| word.into_string().ok()).collect();
    let (Some(arguments), Ok(folder)) = (arguments, env::current_dir()) else { return };
    if is_retry() {
        return;
    }
    let kept = serde_json::to_vec(&StartedBy { folder, arguments }).map_err(std::io::Error::from);
    if let Err(error) = kept.and_then(|kept| fs::write(output.join(FILE), kept)) {
        tracing::warn!(%error, "the command is not kept for `orchestra retry`");
    }
}
