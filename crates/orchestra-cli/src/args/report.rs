//! The command line of what shows runs.

use std::path::PathBuf;

use clap::Args;

use crate::help;

/// `orchestra report`
#[derive(Debug, Args)]
#[command(after_help = help::REPORT)]
pub struct ReportArgs {
    /// The output folder of a run: one that has ended, goes on or was killed. Of two, what differs between them
    #[arg(value_name = "DIR", required = true, num_args = 1..=2)]
    pub outputs: Vec<PathBuf>,
    /// The page to write; a page that is there is replaced [default: report.html in the output folder; of two runs, compare.html in that of the second]
    #[arg(short = 'o', long = "page", value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Print what differs between two runs as JSON, and write no page
    #[arg(long, conflicts_with = "page")]
    pub json: bool,
    /// Write the run as a trace for <https://ui.perfetto.dev> (JSON, compressed by gzip) to this file, and no page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["page", "json"])]
    pub perfetto: Option<PathBuf>,
}

/// `orchestra page`
#[derive(Debug, Args)]
#[command(after_help = help::PAGE)]
pub struct PageArgs {
    /// The output folder of a run, or a folder with several
    #[arg(value_name = "DIR")]
    pub output: PathBuf,
    /// Where the page is served; port 0 takes any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub listen: String,
}
