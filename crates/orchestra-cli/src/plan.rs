//! `orchestra plan`: what will run where, and why. Starts nothing.

use crate::Failed;
use crate::args::PlanArgs;
use crate::exit_code::ExitCode;
use crate::planning;
use crate::surroundings::Surroundings;

/// Prints the plan.
pub fn plan(args: &PlanArgs, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    let options = planning::options(&args.workflow);
    let planned = planning::read(&args.workflow.file, &options, &orchestra::machine())?;
    let plan = match planning::show(planned, surroundings) {
        Ok(plan) => plan,
        Err(code) => return Ok(code),
    };
    if args.json {
        let json = serde_json::to_string_pretty(&plan).map_err(|e| Failed::new(ExitCode::Bug, e))?;
        println!("{json}");
    } else {
        print!("{}", orchestra_plan::describe(&plan));
    }
    Ok(ExitCode::Done)
}
