//! `orchestra bench-part`: a part of a benchmark in a process of its own, and the command line that starts it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use orchestra_bench::{Job, Part, Settings};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{failed, tools};
use crate::Failed;
use crate::args::{BenchPartArgs, MeasuredPart, TrialArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::planning::{self, Workflow};
use crate::run::Talk;
use crate::surroundings::Surroundings;
use crate::trial;

/// The running executable. The kernel's link stays good when the file is replaced by an upgrade meanwhile.
const THIS_EXECUTABLE: &str = "/proc/self/exe";
/// By how much more time passes than a part has for itself, at most: of four turns it has one or two.
const STRETCH: u32 = 4;

/// Measures a part, told when on standard input, and tells on standard output.
pub fn part(
    args: &BenchPartArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let workflow = Workflow::from_copy(&args.trial.file, &args.text_at)?;
    let machine = planning::machine(&trial::workflow_args(&args.trial));
    let (talk, level) = (Talk { quiet: true }, verbosity.terminal_level());
    let setting =
        trial::Setting { args: &args.trial, machine: &machine, surroundings, level, otlp: None, talk };
    let mut ready = match trial::get_ready(&workflow, &setting, |_| Ok(()))? {
        Ok(ready) => ready,
        Err(code) => return Ok(code),
    };
    // What is stopped again and again takes that much longer.
    let limits = &mut ready.plan.limits;
    for limit in [&mut limits.batch_timeout, &mut limits.item_timeout] {
        *limit = limit.saturating_mul(STRETCH);
    }
    let job = Job {
        part: match args.part {
            MeasuredPart::Decode => Part::Decode,
            MeasuredPart::Infer => Part::Infer,
            MeasuredPart::Run => Part::Run,
        },
        lasting: Duration::from_secs_f64(args.seconds),
        folder: args.folder.clone(),
        seat: args.seat,
    };
    let tools = tools(&ready);
    orchestra_bench::serve(ready.plan, tools, &job, BufReader::new(io::stdin()), &mut io::stdout())
        .map_err(failed)?;
    Ok(ExitCode::Done)
}

/// The text of the workflow for all parts: a pipe can be read only once, and a file may be changed between two rounds. It lies in no folder,
/// so that nothing is left of it however this process ends.
pub struct SharedText(File);

impl SharedText {
    /// Keeps it as long as this is there.
    pub fn new(text: &str) -> io::Result<Self> {
        let mut file = File::from(memfd_create("workflow", MemfdFlags::CLOEXEC)?);
        file.write_all(text.as_bytes())?;
        Ok(Self(file))
    }

    /// Where others read it, each from its beginning.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

/// Starts this program for a part of a benchmark with these arguments.
pub fn command(trial: &TrialArgs, text: &SharedText, settings: &Settings, job: &Job) -> Command {
    let TrialArgs { file, scratch: _, devices, set, offline, ort_library } = trial;
    let mut command = Command::new(THIS_EXECUTABLE);
    if let Ok(path) = std::env::current_exe() {
        command.arg0(path); // For whoever looks at a list of processes.
    }
    command.args(["bench-part", "--quiet", "--part"]).arg(match job.part {
        Part::Decode => "decode",
        Part::Infer => "infer",
        Part::Run => "run",
    });
    command.arg("--seconds").arg(job.lasting.as_secs_f64().to_string());
    command.arg("--seat").arg(job.seat.to_string());
    command.arg(option("--folder=", &job.folder));
    command.arg(option("--text-at=", &text.path()));
    if !devices.is_empty() {
        command.arg("--devices").arg(devices.join(","));
    }
    let changed = settings.iter().map(|(key, value)| format!("{key}={value}"));
    for setting in set.iter().map(|s| format!("{}={}", s.key, s.value)).chain(changed) {
        command.arg(format!("--set={setting}"));
    }
    if *offline {
        command.arg("--offline");
    }
    if let Some(library) = ort_library {
        command.arg(option("--ort-library=", library));
    }
    command.arg("--").arg(file);
    command
}

/// An option and its path, whatever that begins with.
fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}
