//! The plan of a stage over fake workers, made by the real planner from a workflow that exists in memory only.

use std::fmt::Write as _;

use orchestra_plan::Plan;

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
    let host = fake::FakeHost { devices: stage.devices, dynamic: stage.dynamic, memory: 80 << 30 };
    let pixels = "[stages.pixels]\nkind = \"image\"\nfrom = \"items\"\nsize = [1, 1]\ncolor = \"gray\"\n";
    let text = [
        ("kind = \"images\"\npaths = [\"items\"]", "kind = \"request\"\ncolumns = { x = \"f32[1, 1, 1]\" }"),
        (pixels, ""),
        ("from = \"pixels\"", "from = \"items\""),
        ("kind = \"jsonl\"", "kind = \"reply\""),
    ];
    let text = text.into_iter().fold(workflow(stage), |text, (of, by)| {
        assert!(text.contains(of), "{of}\n{text}");
        text.replace(of, by)
    });
    fake::plan_of(&text, &host)
}

/// The plan of a workflow without a model.
pub fn plan_of_text(workflow: &str) -> Plan {
    let host = fake::FakeHost { devices: 0, dynamic: false, memory: 0 };
    fake::plan_of(workflow, &host)
}

fn workflow(stage: &Stage) -> String {
    let devices: Vec<String> = (0..stage.devices).map(|d| format!("\"cuda:{d}\"")).collect();
    let mut model = format!("workers = {}\nstreams = {}\n", stage.workers, stage.streams);
    if stage.gpus.is_none() || stage.is_declared {
        let gib = stage.gpus.as_ref().map_or("0.001".to_owned(), |_| stage.takes.to_string());
        writeln!(model, "memory = \"{gib}GiB\"").unwrap();
    }
    let mut more = String::new();
    if stage.is_double {
        more = format!(
            "[models.other]\npath = \"other.onnx\"\nworkers = {}\n[stages.second]\nkind = \"infer\"\nfrom = \"pixels\"\n\
             model = \"other\"\n[sinks.more]\nkind = \"jsonl\"\nfrom = \"second\"\n",
            stage.workers
        );
    }
    if let Some(batches) = stage.recycle_after {
        writeln!(model, "recycle = {{ batches = {batches} }}").unwrap();
    }
    format!(
        r#"
version = 1
[sources.items]
kind = "images"
paths = ["items"]
[models.fake]
path = "fake.onnx"
{model}
[stages.pixels]
kind = "image"
from = "items"
size = [1, 1]
color = "gray"
[stages.read]
kind = "infer"
from = "pixels"
model = "fake"
batch = {{ max = {max}, wait = "5ms" }}
[sinks.all]
kind = "jsonl"
from = "read"
[limits]
batch_timeout = "{timeout}ms"
[devices]
use = [{devices}]
{more}"#,
        max = stage.max_batch,
        timeout = stage.batch_timeout.as_millis(),
        devices = devices.join(", "),
    )
}
