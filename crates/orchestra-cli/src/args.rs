//! The command line: what may be written, and its help. Parses and checks forms only; it opens no file and knows no workflow.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use orchestra_launch::plan::LogFormat;
use tracing::level_filters::LevelFilter;

use crate::help;
use orchestra_report::shell_word;

mod lab;
mod report;
mod values;

pub use lab::{BenchArgs, ChaosArgs, LabArgs};
pub use report::{PageArgs, ReportArgs};
pub use values::SetArg;
use values::{device, log_format, setting};

/// Runs ONNX models over images, on every GPU of this machine or on its CPU, from one workflow file.
#[derive(Debug, Parser)]
#[command(name = "orchestra", version, after_help = help::main(), disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How much to say.
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a workflow, or go on with it where it stopped
    Run(RunArgs),
    /// List the commands of a workflow: what would run, and what has run
    Tasks(TasksArgs),
    /// Do the items of a run again that have failed, with the command that started it
    Retry(RetryArgs),
    /// Answer requests over HTTP and gRPC by the models of a file, and by its graph
    Serve(ServeArgs),
    /// Count the items of a finished run again, from its files alone, and name what is lost, doubled or stray
    Verify(VerifyArgs),
    /// Write a run as one page to look at and to send: what it did, what set its pace, what failed
    Report(ReportArgs),
    /// Serve the page of a run that goes on or has ended, or of several, to a browser
    Page(PageArgs),
    /// Report every error of a workflow file, with line, caret and help
    Check(CheckArgs),
    /// Say what will run where: devices, workers, batch sizes, memory, threads, and why
    Plan(PlanArgs),
    /// Draw the workflow, as Mermaid
    Graph(GraphArgs),
    /// Measure the limits of this machine for a workflow, and how close a run comes
    Bench(BenchArgs),
    /// Run a workflow while its workers are killed and stopped, and audit what came out
    Chaos(ChaosArgs),
    /// List the devices of this machine
    Devices(DevicesArgs),
    /// Say whether this machine is ready, and what to do if not
    Doctor(DoctorArgs),
    /// Say what a model takes and gives, and write a workflow for it
    Inspect(InspectArgs),
    /// Write a small workflow to start from
    Init(InitArgs),
    /// Print the JSON Schema of workflow files, for editors
    #[command(after_help = help::SCHEMA)]
    Schema,
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// The other end of a worker's socket. Started by `run`, never by hand.
    #[command(hide = true)]
    Worker,
}

/// What all commands that plan have in common.
#[derive(Debug, Clone, Args)]
pub struct WorkflowArgs {
    /// The workflow file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Devices to use instead of the file's: `auto`, `cpu`, `cuda:0`, ... (comma-separated; `cpu,cpu` is two)
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', value_parser = device)]
    pub devices: Vec<String>,
    /// Change one setting of the file: `--set stages.classify.batch.max=16` (repeatable; the value is TOML or plain text)
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub set: Vec<SetArg>,
    /// Never use the network: ONNX Runtime must be on this machine already
    #[arg(long)]
    pub offline: bool,
    /// ONNX Runtime's shared library, instead of searching for it
    #[arg(long, value_name = "PATH")]
    pub ort_library: Option<PathBuf>,
}

/// `orchestra run`
#[derive(Debug, Args)]
#[command(after_help = help::run())]
pub struct RunArgs {
    /// File, devices, settings.
    #[command(flatten)]
    pub workflow: WorkflowArgs,
    /// Folder for results, journal and logs [default: out/ beside the file]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Start over: discard what earlier runs left in the output folder
    #[arg(long)]
    pub fresh: bool,
    /// Do the items again that have failed
    #[arg(long, conflicts_with = "fresh")]
    pub retry_failed: bool,
    /// Run this task of `[tasks.*]`, and what it comes after, and nothing else (repeatable; a table, or one task by its id)
    #[arg(long, value_name = "TASK")]
    pub only: Vec<String>,
    /// Say what would run, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the closing summary as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Send traces to this OTLP collector, for example `http://localhost:4318` [default: the file, then OTEL_EXPORTER_OTLP_*]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Serve metrics for Prometheus at this address, for example `127.0.0.1:9464` [default: the file]
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// Write the run as one page at its end: `report.html` in the output folder [default: the file]
    #[arg(long)]
    pub report: bool,
    /// Serve the run as a page to a browser while it goes on: `--page`, or `--page=HOST:PORT`
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:0")]
    pub page: Option<String>,
    /// How to say what is said on standard error; with `json`, each message is one line with one object [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = log_format())]
    pub log_format: Option<LogFormat>,
    /// What the lines of the log files look like [default: the file, else text]
    #[arg(long, value_name = "FORMAT", value_parser = log_format())]
    pub log_files: Option<LogFormat>,
}

/// `orchestra serve`
#[derive(Debug, Args)]
#[command(after_help = help::SERVE)]
pub struct ServeArgs {
    /// File, devices, settings.
    #[command(flatten)]
    pub workflow: WorkflowArgs,
    /// Where the Open Inference Protocol is spoken over HTTP: HOST:PORT, or unix:/path/of/a.sock [default: serve.http of the file, or 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Where it is spoken over gRPC [default: serve.grpc of the file, or 127.0.0.1:8001]
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<String>,
    /// Without an answer in this time, a request fails: `500ms`, `5s` [default: serve.deadline of the file, or none]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub deadline: Option<Duration>,
    /// A file with the token that requests must bring (`Authorization: Bearer TOKEN`), but those for the health of the server [default: serve.token_file of the file, or none]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Send traces to this OTLP collector, for example `http://localhost:4318`: of requests that come with a `traceparent`, that fail or are tried again [default: OTEL_EXPORTER_OTLP_*]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Serve what it does as a page to a browser, which needs no token: `--page`, or `--page=HOST:PORT`
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:0")]
    pub page: Option<String>,
}

/// `orchestra tasks`
#[derive(Debug, Args)]
#[command(after_help = help::TASKS)]
pub struct TasksArgs {
    /// File, devices, settings.
    #[command(flatten)]
    pub workflow: WorkflowArgs,
    /// Folder for results, journal and logs [default: out/ beside the file]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// This task, and what it comes after (repeatable; a table, or one task by its id)
    #[arg(long, value_name = "TASK")]
    pub only: Vec<String>,
    /// Print the tasks as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Follow a run that is going on, until it ends: a table on a terminal, elsewhere a line whenever a task begins or ends
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
}

/// `orchestra retry`
#[derive(Debug, Args)]
#[command(after_help = help::RETRY)]
pub struct RetryArgs {
    /// The output folder of the run
    #[arg(value_name = "DIR")]
    pub output: PathBuf,
}

/// `orchestra verify`
#[derive(Debug, Args)]
#[command(after_help = help::VERIFY)]
pub struct VerifyArgs {
    /// The output folder of the run
    #[arg(value_name = "DIR")]
    pub output: PathBuf,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}

/// `orchestra check`
#[derive(Debug, Args)]
#[command(after_help = help::CHECK, mut_arg("offline", |arg| arg.help(help::CHECK_OFFLINE).long_help(None)))]
pub struct CheckArgs {
    /// File, devices, settings.
    #[command(flatten)]
    pub workflow: WorkflowArgs,
    /// Folder for results, journal and logs [default: out/ beside the file]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print the diagnostics as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// `orchestra plan`
#[derive(Debug, Args)]
#[command(after_help = help::PLAN)]
pub struct PlanArgs {
    /// File, devices, settings.
    #[command(flatten)]
    pub workflow: WorkflowArgs,
    /// Folder for results, journal and logs [default: out/ beside the file]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Plan for the machine that this file describes instead of this one
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Print the plan as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// `orchestra graph`
#[derive(Debug, Args)]
#[command(after_help = help::GRAPH)]
pub struct GraphArgs {
    /// The workflow file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write to this file, `.mmd` or `.json`, instead of standard output; a file that is there is replaced
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Give nodes and edges as JSON instead of a picture
    #[arg(long)]
    pub json: bool,
}

/// `orchestra inspect`
#[derive(Debug, Args)]
#[command(after_help = help::INSPECT)]
pub struct InspectArgs {
    /// The ONNX file
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Print the findings as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// `orchestra init`
#[derive(Debug, Args)]
#[command(after_help = help::INIT)]
pub struct InitArgs {
    /// The folder to write to; it is made if it is missing
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Print what was written as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// `orchestra completions`
#[derive(Debug, Args)]
#[command(after_help = help::COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// `orchestra devices`
#[derive(Debug, Args)]
#[command(after_help = help::DEVICES)]
pub struct DevicesArgs {
    /// Print the devices as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// `orchestra doctor`
#[derive(Debug, Args)]
#[command(after_help = help::DOCTOR)]
pub struct DoctorArgs {
    /// Print the findings as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// ONNX Runtime's shared library, instead of searching for it
    #[arg(long, value_name = "PATH")]
    pub ort_library: Option<PathBuf>,
}

/// How much the terminal is told. The log files do not depend on it.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Verbosity {
    /// Say more (repeat for still more; RUST_LOG chooses in detail)
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 900, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Say nothing but errors, and show no progress
    #[arg(short, long, global = true, display_order = 901)]
    pub quiet: bool,
}

impl Verbosity {
    /// What the terminal shows of the log. Warnings and errors by default: the progress says the rest.
    pub fn terminal_level(self) -> LevelFilter {
        match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (false, 0) => LevelFilter::WARN,
            (false, 1) => LevelFilter::INFO,
            (false, 2) => LevelFilter::DEBUG,
            (false, _) => LevelFilter::TRACE,
        }
    }
}

/// The command that goes on with what `arguments` (with the program's name first) began: the same, without `--fresh`, fit for a
/// shell.
pub fn resume_command(arguments: impl IntoIterator<Item = OsString>) -> String {
    let words = arguments.into_iter().filter(|word| word != "--fresh" && word != "--retry-failed");
    words.map(|word| shell_word(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory as _;

    use super::*;
    use crate::exit_code::ExitCode;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn run(line: &str) -> (RunArgs, Verbosity) {
        let cli = parse(line).unwrap();
        let Command::Run(args) = cli.command else { panic!("{line} is no run") };
        (args, cli.verbosity)
    }

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_settings_and_devices_say_what_was_expected() {
        for (line, expected) in [
            ("orchestra run w --set nothing", "it has no `=`"),
            ("orchestra run w --set a..b=1", "`a..b` is no key"),
            ("orchestra run w --set =1", "`` is no key"),
            ("orchestra run w --devices cuda:0,", "a device has no name"),
            ("orchestra run", "FILE"),
            ("orchestra bench w --runs 0", "from 1 to 1000"),
            ("orchestra bench w --seconds nan", "from 0.05 to 3600"),
            ("orchestra chaos w --kill-every 5", "or `never`"),
            ("orchestra chaos w --stop-every 1us", "from 1ms to 1h"),
            ("orchestra chaos w --items 0", "1.."),
            ("orchestra run w -v -q", "cannot be used with"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn times_between_strikes_may_be_never() {
        let chaos = |line: &str| match parse(line).unwrap().command {
            Command::Chaos(args) => (args.kill_every.0, args.stop_every.0),
            _ => panic!("{line} is no chaos"),
        };
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(chaos("orchestra chaos w"), (seconds(1), seconds(10)));
        assert_eq!(chaos("orchestra chaos w --kill-every 0 --stop-every 2min"), (None, seconds(120)));
        assert_eq!(chaos("orchestra chaos w --kill-every never --stop-every 1s"), (None, seconds(1)));
    }

    #[test]
    fn the_help_lists_every_exit_code() {
        for help in [help::main(), help::run()] {
            for (code, meaning) in ExitCode::ALL {
                assert!(help.contains(&format!("\n  {:<5}{meaning}", code.number())), "{code:?}");
            }
        }
    }

    #[test]
    fn each_v_shows_one_level_more() {
        let level = |flags: &str| run(&format!("orchestra run w {flags}")).1.terminal_level();
        let levels = ["-q", "", "-v", "-vv", "-vvv", "-vvvvv"].map(level);
        assert_eq!(
            levels,
            [
                LevelFilter::ERROR,
                LevelFilter::WARN,
                LevelFilter::INFO,
                LevelFilter::DEBUG,
                LevelFilter::TRACE,
                LevelFilter::TRACE
            ]
        );
    }

    #[test]
    fn the_command_that_goes_on_can_be_pasted_into_a_shell() {
        let words =
            ["orchestra", "run", "my file's.toml", "--fresh", "--set", "a=[1, 2]"].map(OsString::from);
        assert_eq!(resume_command(words), r"orchestra run 'my file'\''s.toml' --set 'a=[1, 2]'");
    }
}
