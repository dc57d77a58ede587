//! The command lines of `bench` and `chaos`, which make runs of their own to learn something from them.

use std::path::PathBuf;

use clap::Args;

use super::WorkflowArgs;
use super::values::{Every, every, rounds, seconds};
use crate::help;

/// What `bench` and `chaos` have in common.
#[derive(Debug, Clone, Args)]
pub struct LabArgs {
    /// File, devices, settings.
    #[command(flatten)]
    pub workflow: WorkflowArgs,
    /// Folder in which the runs write; nothing stays there [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
}

/// `orchestra bench`
#[derive(Debug, Args)]
#[command(after_help = help::BENCH)]
pub struct BenchArgs {
    /// Rounds; what is reported are medians over them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = rounds)]
    pub runs: usize,
    /// Items of each run, spread over the sources [default: as many as keep a run busy for about twice --seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub items: Option<u64>,
    /// How many times a run may go over the items: with few of them it is too short to be compared with the limit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub repeat: u64,
    /// How long each part is measured in each round
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// File, devices, settings.
    #[command(flatten)]
    pub lab: LabArgs,
    /// Print everything that was measured as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// `orchestra chaos`
#[derive(Debug, Args)]
#[command(after_help = help::CHAOS)]
pub struct ChaosArgs {
    /// Mean time between two SIGKILLs, for example `100ms`; `0` or `never`: none
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = every)]
    pub kill_every: Every,
    /// Mean time between two SIGSTOPs, after which a process lives and does nothing more; `0` or `never`: none
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = every)]
    pub stop_every: Every,
    /// Items of each run, spread over the sources; a list that is shorter comes again and again [default: as many as keep a run busy for
    /// --seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub items: Option<u64>,
    /// How long a run without faults would take, where --items does not say how many
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
    /// How many runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = rounds)]
    pub runs: usize,
    /// Send traces of all runs to this OTLP collector, for example `http://localhost:4318`
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// File, devices, settings.
    #[command(flatten)]
    pub lab: LabArgs,
    /// Print the report as JSON on standard output
    #[arg(long)]
    pub json: bool,
}
