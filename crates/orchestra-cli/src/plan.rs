//! `orchestra plan`: what will run where, and why, on this machine or on one that is described. Starts nothing but a
//! probe of each model that is new.

use std::path::Path;

use orchestra_launch::MachineView;
use orchestra_launch::plan::format_bytes;

use crate::Failed;
use crate::args::PlanArgs;
use crate::exit_code::ExitCode;
use crate::human::counted;
use crate::item_counts;
use crate::planning::{self, WorkflowText};
use crate::stdout;
use crate::surroundings::Surroundings;

pub fn plan(args: &PlanArgs, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    let options = planning::options(&args.workflow, args.output.as_deref());
    let machine = match &args.machine {
        None => orchestra_launch::machine_view(&planning::machine(&args.workflow)),
        Some(file) => planning::described_machine(file, surroundings)?,
    };
    let about = args.machine.as_ref().map(|file| in_words(file, &machine));
    let planned = WorkflowText::read(&args.workflow.file)?.plan_for(&options, machine, Some(&args.workflow));
    let mut plan = planning::show(planned, surroundings)?;
    if args.machine.is_none() {
        item_counts::count(&mut plan)?;
    }
    if args.json {
        stdout::print_json(&plan)
    } else {
        stdout::print(&format!("{}{}", about.unwrap_or_default(), orchestra_launch::plan::describe(&plan)))
    }
}

/// Says that the plan is for a described machine, so that it is not taken for one of this machine.
fn in_words(file: &Path, machine: &MachineView) -> String {
    let memory = match machine.memory {
        0 => "memory unknown".to_owned(),
        bytes => format!("{} of memory", format_bytes(bytes)),
    };
    let gpus = counted(machine.devices.len() as u64, "GPU", "GPUs");
    format!("machine   {}: {} cores, {memory}, {gpus}\n", file.display(), machine.cores)
}
