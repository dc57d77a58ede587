//! `orchestra check`: every error of a workflow file. Runs no model; with `--offline` it starts no loader, so that files of sources are not looked into.

use std::path::Path;

use orchestra_launch::plan::{KnownItems, SourcePlan, items_in_words};
use orchestra_launch::{Machine, PlanOptions};

use crate::Failed;
use crate::args::{CheckArgs, WorkflowArgs};
use crate::exit_code::ExitCode;
use crate::human::counted;
use crate::item_counts;
use crate::planning::{self, WorkflowText};
use crate::surroundings::Surroundings;
use crate::{stderr, stdout};

pub fn check(args: &CheckArgs, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    let CheckArgs { workflow: of_workflow, output, json: _ } = args;
    let WorkflowArgs { file, offline, .. } = of_workflow;
    let options = PlanOptions { offline: *offline, ..planning::options(of_workflow, output.as_deref()) };
    let machine = if *offline { no_devices() } else { planning::machine(of_workflow) };
    let workflow = match WorkflowText::read(file) {
        Err(Failed { error: Some(error), code }) if args.json => {
            stdout::print_bytes(format!("{}\n", unreadable(file, &error)).as_bytes())?;
            return Ok(code);
        }
        read => read?,
    };
    let (plan, diagnostics) = match *offline {
        true => workflow.check_alone(&options, &machine),
        false => workflow.check(&options, &machine),
    };
    let code = planning::code(&diagnostics);
    let mut plan = plan.filter(|_| code == ExitCode::Done);
    let counted_items = match &mut plan {
        Some(plan) if plan.deferred.is_none() && !*offline => item_counts::count(plan),
        _ => Ok(()),
    };
    if args.json {
        let (mut json, mut code) = (diagnostics.to_json(), code);
        json["sources"] = plan.iter().flat_map(|plan| &plan.sources).map(source_json).collect();
        if let Err(Failed { error: Some(error), code: of_files }) = counted_items {
            (json["errors"], code) = (vec![error_json(&error)].into(), of_files);
        }
        stdout::print_bytes(format!("{json}\n").as_bytes())?;
        return Ok(code);
    }
    stderr::say(&diagnostics.render(planning::style(surroundings)));
    if diagnostics.is_open() && code == ExitCode::Done {
        let file = file.display();
        stdout::print(&format!("{file}: no errors so far: not all of it was looked at\n"))?;
    }
    if let Some(plan) = plan {
        if let Some(deferred) = &plan.deferred {
            let tasks = counted(plan.tasks.tasks.len() as u64, "task", "tasks");
            let (file, deferred) = (file.display(), deferred.in_words());
            stdout::print(&format!("{file}: no errors so far: {tasks}; {deferred}\n"))?;
            return Ok(code);
        }
        counted_items?;
        stdout::print(&format!(
            "{}: no errors: {}, {}, {}{}\n",
            file.display(),
            counted(plan.sources.len() as u64, "source", "sources"),
            counted(plan.stages.iter().filter(|stage| !stage.is_join()).count() as u64, "stage", "stages"),
            counted(plan.sinks.len() as u64, "sink", "sinks"),
            match plan.tasks.tasks.len() as u64 {
                0 => String::new(),
                n => format!(", {}", counted(n, "task", "tasks")),
            }
        ))?;
        for source in &plan.sources {
            stdout::print(&format!("  source `{}`: {}\n", source.name, items_in_words(source)))?;
        }
    }
    Ok(code)
}

/// What is said of a file that could not even be read, in the form of the others.
fn unreadable(file: &Path, error: &anyhow::Error) -> serde_json::Value {
    serde_json::json!({
        "file": file.to_string_lossy(), "errors": [error_json(error)], "warnings": [], "sources": [],
    })
}

/// An error without a place in the workflow file.
fn error_json(error: &anyhow::Error) -> serde_json::Value {
    serde_json::json!({ "message": crate::chain(error), "label": "", "help": [], "cause": "file" })
}

fn source_json(source: &SourcePlan) -> serde_json::Value {
    let items = match source.n_items {
        Some(KnownItems::All(n)) => Some(n),
        Some(KnownItems::OfFirst(_)) | None => None,
    };
    serde_json::json!({ "name": source.name, "items": items, "in_words": items_in_words(source) })
}

/// A machine that no driver was asked about.
fn no_devices() -> Machine {
    Machine {
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_total: 0,
        memory_available: 0,
        gpus: Vec::new(),
        nodes: Vec::new(),
        gpu_error: Some("devices were not looked at, because of --offline".to_owned()),
        gpus_unusable: None,
    }
}
