//! `orchestra graph`: the workflow as a picture, from its file alone. Asks no driver and starts nothing.

use anyhow::{Context as _, anyhow};
use orchestra_launch::PlanOptions;
use orchestra_launch::plan::{GraphView, MachineView};

use crate::Failed;
use crate::args::{GraphArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::planning::{self, WorkflowText};
use crate::surroundings::Surroundings;
use crate::{stderr, stdout};

pub fn graph(
    args: &GraphArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    // Before the file is read, so that a wrong command line is the first thing that is said.
    let is_json = is_json(args).map_err(|e| Failed::new(ExitCode::Usage, e))?;
    let options = PlanOptions { offline: true, ..PlanOptions::default() };
    let planned = WorkflowText::read(&args.file)?.plan_for(&options, MachineView::default(), None);
    let plan = planning::show(planned, surroundings)?;
    if let Some(deferred) = &plan.deferred {
        let error = anyhow!("there is nothing to draw yet: {}", deferred.in_words());
        return Err(Failed::new(ExitCode::TryAgain, error));
    }
    let view = GraphView::new(&plan);
    let picture = if is_json { stdout::json(&view)? } else { view.to_mermaid() };
    let Some(path) = &args.output else { return stdout::print_bytes(picture.as_bytes()) };
    std::fs::write(path, picture)
        .with_context(|| format!("cannot write the picture `{}`", path.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    if !verbosity.quiet {
        stderr::say_line(&format!("wrote {}", path.display()));
    }
    Ok(ExitCode::Done)
}

/// Whether JSON was asked for, by the option or by the name of the file; else it is Mermaid.
fn is_json(args: &GraphArgs) -> anyhow::Result<bool> {
    let Some(path) = args.output.as_ref().filter(|_| !args.json) else { return Ok(args.json) };
    match path.extension().and_then(|e| e.to_str()) {
        Some("mmd" | "mermaid") => Ok(false),
        Some("json") => Ok(true),
        _ => Err(anyhow!(
            "the name of `{}` does not say which format it shall have; end it with `.mmd`, for Mermaid, or with `.json`. \
             GitHub, GitLab and most editors draw Mermaid, and `mmdc` makes an SVG or a PNG of it",
            path.display()
        )),
    }
}
