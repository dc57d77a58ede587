//! The plan of a stage over fake workers, made by the real planner from a workflow that exists in memory only.

use std::fmt::Write as _;
use std::path::Path;

use orchestra_plan::{Plan, PlanOptions, RenderStyle};
use orchestra_testkit::workflow_file::WorkflowFile;

use super::stage::{Stage, check_plan};

#[path = "../../../orchestra-plan/tests/fake/mod.rs"]
mod fake;

pub fn plan_of(stage: &Stage) -> Plan {
    let memory = stage.gpus.as_ref().map_or(80 << 30, |gpus| gpus.total);
    let host = fake::FakeHost { devices: stage.devices, dynamic: stage.dynamic, memory };
    let plan = fake::plan_of(&workflow(stage), &host);
    check_plan(&plan, stage);
    plan
}

/// The same, of which the items are requests for rows of the model.
pub fn plan_of_requests(stage: &Stage) -> Plan {
    let memory = stage.gpus.as_ref().map_or(80 << 30, |gpus| gpus.total);
    let host = fake::FakeHost { devices: stage.devices, dynamic: stage.dynamic, memory };
    let flow = WorkflowFile::new().source("items", "request", "columns = { x = 'f32[1, 1, 1]' }");
    let flow = read(flow, stage, "items").sink("all", "reply", "read");
    fake::plan_of(&settings(flow, stage), &host)
}

/// The plan of any workflow on a machine with so many GPUs, with its results in `output`; else what is wrong with it.
pub fn plan_of_text(workflow: &str, devices: usize, output: &Path) -> Result<Plan, String> {
    let host = fake::FakeHost { devices, dynamic: false, memory: 80 << 30 };
    let options = PlanOptions { output: Some(output.to_owned()), ..PlanOptions::default() };
    let (plan, diags) = orchestra_plan::plan(workflow, Path::new("/fake/flow.toml"), &options, &host);
    plan.ok_or_else(|| diags.render(RenderStyle::Plain))
}

fn workflow(stage: &Stage) -> WorkflowFile {
    let flow = WorkflowFile::new().source("items", "images", "paths = ['items']");
    let flow = read(flow.gray("pixels", "items", [1, 1], ""), stage, "pixels").sink("all", "jsonl", "read");
    if !stage.is_double {
        return settings(flow, stage);
    }
    let workers = if stage.is_on_cores { String::new() } else { format!("workers = {}", stage.workers) };
    let other = format!("path = 'other.onnx'\n{workers}");
    let flow = flow.table("models.other", other).infer("second", "pixels", "other");
    settings(flow.sink("more", "jsonl", "second"), stage)
}

/// The stage and its model.
fn read(flow: WorkflowFile, stage: &Stage, from: &str) -> WorkflowFile {
    let mut model = format!("path = 'fake.onnx'\nstreams = {}\n", stage.streams);
    if stage.is_on_cores {
        return flow.table("models.fake", model).stage("read", "infer", from, batch_of(stage));
    }
    writeln!(model, "workers = {}", stage.workers).unwrap();
    if stage.gpus.is_none() || stage.is_declared {
        let gib = stage.gpus.as_ref().map_or("0.001".to_owned(), |_| stage.takes.to_string());
        writeln!(model, "memory = '{gib}GiB'").unwrap();
    }
    if let Some(batches) = stage.recycle_after {
        writeln!(model, "recycle = {{ batches = {batches} }}").unwrap();
    }
    flow.table("models.fake", model).stage("read", "infer", from, batch_of(stage))
}

fn batch_of(stage: &Stage) -> String {
    format!("model = 'fake'\nbatch = {{ max = {}, wait = '5ms' }}", stage.max_batch)
}

fn settings(flow: WorkflowFile, stage: &Stage) -> WorkflowFile {
    let gpus = || (0..stage.devices).map(|d| format!("cuda:{d}")).collect();
    let devices: Vec<String> = if stage.is_on_cores { vec!["cpu".to_owned()] } else { gpus() };
    let timeout = format!("batch_timeout = '{}ms'", stage.batch_timeout.as_millis());
    flow.table("limits", timeout).table("devices", format!("use = {devices:?}"))
}
