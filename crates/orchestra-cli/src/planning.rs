//! From the command line to a plan: reads the file, shows what is wrong with it, and says which exit code that means.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use orchestra::{Cause, Diagnostics, Machine, MachineView, Plan, PlanOptions, RenderStyle};
use orchestra_plan::{RealHost, format_bytes};

use crate::Failed;
use crate::args::WorkflowArgs;
use crate::exit_code::ExitCode;
use crate::stderr;
use crate::surroundings::Surroundings;

/// What is larger is no file of settings, and a device such as `/dev/zero` never ends.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What the planner is told by the command line.
pub fn options(args: &WorkflowArgs) -> PlanOptions {
    PlanOptions {
        output: args.output.clone(),
        devices: (!args.devices.is_empty()).then(|| args.devices.clone()),
        set: args.set.iter().map(|s| (s.key.clone(), s.value.clone())).collect(),
        // `--offline` forbids these commands the network only; `check --offline` also leaves the machine alone.
        offline: false,
    }
}

/// Reads and plans the file.
pub fn read(
    file: &Path,
    options: &PlanOptions,
    machine: &Machine,
) -> Result<(Option<Plan>, Diagnostics), Failed> {
    read_for(file, options, orchestra::machine_view(machine))
}

/// Reads the file and plans it for a machine that need not be this one.
pub fn read_for(
    file: &Path,
    options: &PlanOptions,
    machine: MachineView,
) -> Result<(Option<Plan>, Diagnostics), Failed> {
    let text = read_text(file, "workflow file")?;
    let absolute = std::path::absolute(file)
        .with_context(|| format!("cannot find the workflow file `{}`", file.display()))
        .map_err(|e| Failed::new(ExitCode::BadFile, e))?;
    let host = RealHost::with_machine(machine)
        .with_measurements(orchestra::measurements())
        .with_engines(orchestra::engines());
    Ok(orchestra_plan::plan(&text, &absolute, options, &host))
}

/// Reads the description of a machine; what is wrong with it is printed, and its exit code given back.
pub fn described_machine(
    file: &Path,
    surroundings: &Surroundings,
) -> Result<Result<MachineView, ExitCode>, Failed> {
    let text = read_text(file, "machine file")?;
    let (machine, diagnostics) = orchestra_plan::machine_from_toml(&text, &file.display().to_string());
    stderr::say(&diagnostics.render(style(surroundings)));
    Ok(machine.ok_or(ExitCode::BadFile))
}

fn read_text(file: &Path, what: &str) -> Result<String, Failed> {
    bounded_text(file)
        .with_context(|| format!("cannot read the {what} `{}`", file.display()))
        .map_err(|e| Failed::new(ExitCode::BadFile, e))
}

/// The text of a file, or of a pipe such as a shell's `<(...)`.
fn bounded_text(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("it is larger than {}, and nobody writes that by hand", format_bytes(MAX_FILE_BYTES));
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("it is not text in UTF-8; a TOML file is expected"))
}

/// Prints errors and warnings to standard error; the plan, or the exit code of what is wrong.
pub fn show(
    (plan, diagnostics): (Option<Plan>, Diagnostics),
    surroundings: &Surroundings,
) -> Result<Plan, ExitCode> {
    if !diagnostics.all().is_empty() {
        stderr::say(&diagnostics.render(style(surroundings)));
    }
    match plan {
        Some(plan) if !diagnostics.has_errors() => Ok(plan),
        _ => Err(code(&diagnostics)),
    }
}

/// With colours or without.
pub fn style(surroundings: &Surroundings) -> RenderStyle {
    if surroundings.color() { RenderStyle::Coloured } else { RenderStyle::Plain }
}

/// What these diagnostics mean for the exit code.
pub fn code(diagnostics: &Diagnostics) -> ExitCode {
    match diagnostics.cause() {
        None => ExitCode::Done,
        Some(Cause::File) => ExitCode::BadFile,
        Some(Cause::Unavailable) => ExitCode::Unavailable,
    }
}
