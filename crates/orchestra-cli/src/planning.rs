//! From the command line to a plan: reads the file, shows what is wrong with it, and says which exit code that means.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use orchestra_launch::plan::{RealHost, format_bytes};
use orchestra_launch::{
    Cause, Diagnostics, Machine, MachineView, Plan, PlanOptions, RenderStyle, StartOptions,
};

use crate::Failed;
use crate::args::WorkflowArgs;
use crate::exit_code::ExitCode;
use crate::notices::Notices;
use crate::stderr;
use crate::surroundings::Surroundings;

/// What is larger is no file of settings, and a device such as `/dev/zero` never ends.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What the planner is told by the command line.
pub fn options(args: &WorkflowArgs, output: Option<&Path>) -> PlanOptions {
    PlanOptions {
        output: output.map(Path::to_owned),
        devices: (!args.devices.is_empty()).then(|| args.devices.clone()),
        set: args.set.iter().map(|s| (s.key.clone(), s.value.clone())).collect(),
        // `--offline` forbids these commands the network only; `check --offline` also leaves the machine alone.
        ..PlanOptions::default()
    }
}

/// This machine, as far as a run with these arguments could use it.
pub fn machine(args: &WorkflowArgs) -> Machine {
    orchestra_launch::usable_machine(args.ort_library.as_deref(), args.offline)
}

/// Says why a plan takes the CPU although the machine has GPUs: its speed should not be the first sign.
pub fn say_why_cpu(plan: &Plan, machine: &Machine, notices: Notices) {
    if let Some(reason) = why_cpu(plan, machine) {
        notices.say(reason);
    }
}

/// The reason of the plan that names what the GPUs lack; a plan that never asked for them has none.
fn why_cpu<'a>(plan: &'a Plan, machine: &Machine) -> Option<&'a str> {
    let lacking = machine.gpus_unusable.as_deref()?;
    plan.reasons.iter().map(String::as_str).find(|reason| reason.contains(lacking))
}

/// A workflow file that was read. A second plan is of the same text, whatever becomes of the file meanwhile; a pipe can be read
/// only once anyway.
#[derive(Debug, Clone)]
pub struct WorkflowText {
    pub text: String,
    /// Where it lies, from the root.
    path: PathBuf,
}

impl WorkflowText {
    pub fn read(file: &Path) -> Result<Self, Failed> {
        let text = read_text(file, "workflow file")?;
        let path = std::path::absolute(file)
            .with_context(|| format!("cannot find the workflow file `{}`", file.display()))
            .map_err(|e| Failed::new(ExitCode::BadFile, e))?;
        Ok(Self { text, path })
    }

    /// Plans it, and runs models a few times on the CPU where that tells what they give.
    pub fn plan(
        &self,
        options: &PlanOptions,
        machine: &Machine,
        args: &WorkflowArgs,
    ) -> (Option<Plan>, Diagnostics) {
        self.plan_with(options, &host(orchestra_launch::machine_view(machine), Some(args)))
    }

    /// Plans it without a run of any model.
    pub fn check(&self, options: &PlanOptions, machine: &Machine) -> (Option<Plan>, Diagnostics) {
        self.plan_with(options, &host(orchestra_launch::machine_view(machine), None))
    }

    /// The same without a look into the files of its sources.
    pub fn check_alone(&self, options: &PlanOptions, machine: &Machine) -> (Option<Plan>, Diagnostics) {
        let host = host(orchestra_launch::machine_view(machine), None);
        self.plan_with(options, &RealHost { look: None, ..host })
    }

    /// As [`WorkflowText::plan`], for a machine that is not this one; without arguments as [`WorkflowText::check`].
    pub fn plan_for(
        &self,
        options: &PlanOptions,
        machine: MachineView,
        args: Option<&WorkflowArgs>,
    ) -> (Option<Plan>, Diagnostics) {
        self.plan_with(options, &RealHost { is_described: true, ..host(machine, args) })
    }

    fn plan_with(&self, options: &PlanOptions, host: &RealHost) -> (Option<Plan>, Diagnostics) {
        orchestra_launch::plan::plan(&self.text, &self.path, options, host)
    }
}

/// What plans are made with; without arguments no model is run.
fn host(machine: MachineView, args: Option<&WorkflowArgs>) -> RealHost {
    let start = args.map_or_else(StartOptions::default, |args| StartOptions {
        ort_library: args.ort_library.clone(),
        offline: args.offline,
        notice: Some(stderr::say_line),
        ..StartOptions::default()
    });
    let host = orchestra_launch::host(orchestra_launch::kinds(), machine, &start);
    RealHost { probe: host.probe.filter(|_| args.is_some()), ..host }
}

/// Reads the description of a machine; what is wrong with it is printed.
pub fn described_machine(file: &Path, surroundings: &Surroundings) -> Result<MachineView, Failed> {
    let text = read_text(file, "machine file")?;
    let (machine, diagnostics) =
        orchestra_launch::plan::machine_from_toml(&text, &file.display().to_string());
    stderr::say(&diagnostics.render(style(surroundings)));
    machine.ok_or(Failed { error: None, code: ExitCode::BadFile })
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
        bail!(
            "it is larger than {}, the limit for such a file; check the path",
            format_bytes(MAX_FILE_BYTES)
        );
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("it is not text in UTF-8; a TOML file is expected"))
}

/// Prints errors and warnings to standard error; the plan, if there is one.
pub fn show(
    (plan, diagnostics): (Option<Plan>, Diagnostics),
    surroundings: &Surroundings,
) -> Result<Plan, Failed> {
    if !diagnostics.all().is_empty() {
        stderr::say(&diagnostics.render(style(surroundings)));
    }
    match plan {
        Some(plan) if !diagnostics.has_errors() => Ok(plan),
        _ => Err(Failed { error: None, code: code(&diagnostics) }),
    }
}

pub fn style(surroundings: &Surroundings) -> RenderStyle {
    if surroundings.color() { RenderStyle::Coloured } else { RenderStyle::Plain }
}

pub fn code(diagnostics: &Diagnostics) -> ExitCode {
    match diagnostics.cause() {
        None => ExitCode::Done,
        Some(Cause::File) => ExitCode::BadFile,
        Some(Cause::Unavailable) => ExitCode::Unavailable,
        Some(Cause::Outside) => ExitCode::TryAgain,
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::Gpu;

    use super::*;

    /// A machine with a GPU that lacks this.
    fn lacking(what: Option<&str>) -> Machine {
        let gpu = Gpu { uuid: "GPU-1".into(), memory_total: 8 << 30, memory_free: 8 << 30, ..Gpu::default() };
        Machine {
            gpus: vec![gpu],
            gpu_error: None,
            gpus_unusable: what.map(str::to_owned),
            ..orchestra_launch::machine()
        }
    }

    fn planned(machine: &Machine, devices: &str) -> (Option<Plan>, Diagnostics) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/workflow.toml");
        let options = PlanOptions { devices: Some(vec![devices.into()]), ..PlanOptions::default() };
        WorkflowText::read(&file).unwrap().check(&options, machine)
    }

    #[test]
    fn a_plan_that_takes_the_cpu_for_want_of_a_usable_gpu_says_why_and_no_other_plan_does() {
        let unusable = lacking(Some("no cuBLAS"));
        let why = |machine: &Machine, devices: &str| {
            let plan = planned(machine, devices).0.unwrap();
            (plan.devices[0].spec.name.clone(), why_cpu(&plan, machine).map(str::to_owned))
        };
        let said = "devices: the CPU, because no GPU can be used: no cuBLAS".to_owned();
        assert_eq!(why(&unusable, "auto"), ("cpu".into(), Some(said)));
        assert_eq!(why(&unusable, "cpu"), ("cpu".into(), None), "no GPU was asked for");
        assert_eq!(why(&lacking(None), "auto"), ("cuda:0".into(), None));
    }

    #[test]
    fn a_gpu_that_is_named_and_cannot_be_used_is_unavailable_with_the_reason() {
        let (plan, diagnostics) = planned(&lacking(Some("no cuBLAS")), "cuda:0");
        assert!(plan.is_none());
        assert_eq!(code(&diagnostics), ExitCode::Unavailable);
        let text = diagnostics.render(RenderStyle::Plain);
        assert!(text.contains("device `cuda:0` is not available") && text.contains("no cuBLAS"), "{text}");
    }
}
