//! `orchestra completions`, made of the definitions of the command line, and `orchestra schema`, made of the declarations of keys: neither can
//! disagree with what it describes. It knows no command and no key by name.

use clap::CommandFactory as _;

use crate::Failed;
use crate::args::{Cli, CompletionsArgs};
use crate::exit_code::ExitCode;
use crate::stdout;

pub fn schema() -> Result<ExitCode, Failed> {
    stdout::print_json(&orchestra_launch::workflow_schema(&orchestra_launch::kinds()))
}

pub fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failed> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut public(), "orchestra", &mut script);
    stdout::print_bytes(&script)
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
