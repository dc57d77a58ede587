//! `orchestra completions` and `orchestra man`, made of the definitions of the command line, and `orchestra schema`, made of the
//! declarations of keys: none of them can disagree with what it describes. It knows no command and no key by name.

use std::path::Path;
use std::{fs, io};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::Failed;
use crate::args::{Cli, CompletionsArgs, ManArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::{stderr, stdout};

pub fn schema() -> Result<ExitCode, Failed> {
    stdout::print_json(&orchestra::workflow_schema(&orchestra::kinds()))
}

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
        let page = manual_page(command).map_err(|e| Failed::new(ExitCode::Bug, e))?;
        return stdout::print_bytes(&page.text);
    };
    write_pages(&command, folder)
        .with_context(|| format!("cannot write manual pages to `{}`", folder.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    if !verbosity.quiet {
        stderr::say_line(&format!("wrote the manual pages to {}", folder.display()));
    }
    Ok(ExitCode::Done)
}

fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for command in command.get_subcommands().chain([command]) {
        let page = manual_page(command.clone())?;
        fs::write(folder.join(page.file_name), page.text)?;
    }
    Ok(())
}

struct Page {
    file_name: String,
    text: Vec<u8>,
}

/// The sections in their usual order; what stands at the end of a help text becomes sections of its own.
fn manual_page(command: clap::Command) -> io::Result<Page> {
    let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.has_subcommands();
    let source = concat!("orchestra ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).source(source).manual("orchestra");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_commands {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend_from_slice(end_of_page(&end).as_bytes());
    Ok(Page { file_name: man.get_filename(), text })
}

/// The end of a help text in the language of manual pages: indented lines stay as they are, others are filled.
fn end_of_page(help: &str) -> String {
    let mut page = String::new();
    for line in help.lines() {
        let rest = if line == "Examples:" {
            page.push_str(".SH EXAMPLES\n");
            continue;
        } else if let Some(rest) = line.strip_prefix("Exit codes:") {
            page.push_str(".SH \"EXIT STATUS\"\n");
            rest.trim_start()
        } else {
            line
        };
        match rest {
            "" => page.push_str(".PP\n"),
            kept if kept.starts_with(' ') => page.push_str(&format!(".nf\n{}\n.fi\n", escaped(kept))),
            filled => page.push_str(&format!("{}\n", escaped(filled))),
        }
    }
    page
}

/// Text without anything that the language could take for an instruction.
fn escaped(line: &str) -> String {
    format!("\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_instructions_stay_text() {
        let page = end_of_page("Examples:\n  a --b\n\n.TH is text\n\nExit codes: 0 done");
        assert_eq!(
            page,
            ".SH EXAMPLES\n.nf\n\\&  a \\-\\-b\n.fi\n.PP\n\\&.TH is text\n.PP\n.SH \"EXIT STATUS\"\n\\&0 done\n"
        );
    }
}
