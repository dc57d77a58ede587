//! `orchestra completions` and `orchestra man`: made of the definitions of the command line, so they cannot disagree with it.
//! It knows no command by name.

use std::fs;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::Failed;
use crate::args::{Cli, CompletionsArgs, ManArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::stdout;

/// Prints the completions of one shell.
pub fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failed> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut public(), "orchestra", &mut script);
    stdout::print_bytes(&script)
}

/// Prints the manual page, or writes it and those of all commands into a folder.
pub fn man(args: &ManArgs, verbosity: Verbosity) -> Result<ExitCode, Failed> {
    let mut command = public();
    command.build();
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page).map_err(|e| Failed::new(ExitCode::Bug, e))?;
        return stdout::print_bytes(&page);
    };
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| format!("cannot write manual pages to `{}`", folder.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    if !verbosity.quiet {
        eprintln!("wrote the manual pages to {}", folder.display());
    }
    Ok(ExitCode::Done)
}

/// The command without what only the program itself calls.
fn public() -> clap::Command {
    let all = Cli::command();
    let shown: Vec<_> = all.get_subcommands().filter(|c| !c.is_hide_set()).cloned().collect();
    let mut command = clap::Command::new("orchestra")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommands(shown)
        .args(all.get_arguments().cloned());
    if let Some(about) = all.get_about() {
        command = command.about(about.clone());
    }
    if let Some(help) = all.get_after_help() {
        command = command.after_help(help.clone());
    }
    command
}
