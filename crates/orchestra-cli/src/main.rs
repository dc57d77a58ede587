//! The `orchestra` command: the only place that prints, exits and installs a log subscriber.
//! It decides nothing about a run: planning, running and reporting are the crates' below.

mod args;
mod bench;
mod chaos;
mod check;
mod columns;
mod devices;
mod doctor;
mod exit_code;
mod generated;
mod graph;
mod help;
mod init;
mod inspect;
mod item_counts;
mod lab;
mod left_out;
mod live_page;
mod metrics;
mod notices;
mod plan;
mod planning;
mod progress;
mod report;
mod retry;
mod run;
mod serve;
mod signals;
mod stderr;
mod stdout;
mod summary;
mod surroundings;
mod tasks;
mod tasks_watch;
mod verify;
mod watch;

use std::process::ExitCode as ProcessExitCode;

use clap::Parser as _;
use rustix::process::{Resource, getrlimit};

use args::{Cli, Command};
use exit_code::ExitCode;
use orchestra_report::human;
use surroundings::Surroundings;

/// Bytes that the stack of a thread has to have.
const LEAST_STACK: u64 = 1 << 20;

fn main() -> ProcessExitCode {
    if let Some((stack, set_by)) = small_stack() {
        stderr::say_line(&format!(
            "error: a stack may have {} KiB here, and {} are needed: raise `{set_by}`",
            stack >> 10,
            LEAST_STACK >> 10
        ));
        return ExitCode::TryAgain.into();
    }
    // A worker starts often and must start fast: nothing of the command line is set up for it.
    orchestra_launch::run_if_worker();
    command()
}

/// A bound on the stacks of this process or of its threads that is too small, in bytes, and what sets it. Beyond a stack, a program ends without a word.
fn small_stack() -> Option<(u64, &'static str)> {
    let of_process = getrlimit(Resource::Stack).current.map(|bytes| (bytes, "ulimit -s"));
    let of_threads = std::env::var("RUST_MIN_STACK").ok().and_then(|bytes| bytes.parse().ok());
    let bounds = [of_process, of_threads.map(|bytes| (bytes, "RUST_MIN_STACK"))];
    bounds.into_iter().flatten().find(|(bytes, _)| *bytes < LEAST_STACK)
}

/// What is needed for it lies on the stack, which [`small_stack`] has looked at.
#[inline(never)]
fn command() -> ProcessExitCode {
    let cli = Cli::parse();
    let surroundings = Surroundings::detect();
    let done = match cli.command {
        Command::Run(args) => run::run(&args, cli.verbosity, &surroundings),
        Command::Tasks(args) => tasks::tasks(&args, &surroundings),
        Command::Retry(args) => retry::retry(&args, cli.verbosity, &surroundings),
        Command::Serve(args) => serve::serve(&args, cli.verbosity, &surroundings),
        Command::Verify(args) => verify::verify(&args),
        Command::Page(args) => live_page::page(&args),
        Command::Report(args) => report::report(&args, cli.verbosity),
        Command::Check(args) => check::check(&args, &surroundings),
        Command::Plan(args) => plan::plan(&args, &surroundings),
        Command::Devices(args) => devices::devices(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench::bench(&args, cli.verbosity, &surroundings),
        Command::Chaos(args) => chaos::chaos(&args, cli.verbosity, &surroundings),
        Command::Graph(args) => graph::graph(&args, cli.verbosity, &surroundings),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Init(args) => init::init(&args, cli.verbosity),
        Command::Schema => generated::schema(),
        Command::Completions(args) => generated::completions(&args),
        Command::Worker => return orchestra_launch::worker_main(),
    };
    let code = done.unwrap_or_else(|failed| {
        if let Some(error) = &failed.error {
            stderr::say_line(&format!("error: {}", chain(error)));
        }
        failed.code
    });
    code.into()
}

/// An error and its causes, each said once: many a message quotes its cause already.
fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

/// What ends the command otherwise than well.
#[derive(Debug)]
pub struct Failed {
    /// `None`: it was said already.
    pub error: Option<anyhow::Error>,
    /// What a script is told.
    pub code: ExitCode,
}

impl Failed {
    /// An error that is still to be said.
    pub fn new(code: ExitCode, error: impl Into<anyhow::Error>) -> Self {
        Self { error: Some(error.into()), code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_a_message_quotes_is_not_said_again() {
        let disk = || anyhow::anyhow!("disk full");
        assert_eq!(chain(&disk().context("cannot write `a`")), "cannot write `a`: disk full");
        assert_eq!(
            chain(&disk().context("cannot write `a`: disk full; make room")),
            "cannot write `a`: disk full; make room"
        );
    }
}
