//! A plan of one batch stage, made by the real planner from a workflow that exists in memory only.

use std::sync::Arc;

use orchestra_plan::Plan;
use orchestra_testkit::workflow_file::WorkflowFile;

#[path = "../../../../orchestra-plan/tests/fake/mod.rs"]
mod fake;

/// Items -> pixels -> read -> all.
pub fn plan() -> Arc<Plan> {
    let flow = WorkflowFile::new()
        .source("items", "images", "paths = ['items']")
        .table("models.fake", "path = 'fake.onnx'\nworkers = 1")
        .gray("pixels", "items", [1, 1], "")
        .stage("read", "infer", "pixels", "model = 'fake'\nbatch = { max = 4 }")
        .sink("all", "jsonl", "read");
    Arc::new(fake::plan_of(&flow, &fake::FakeHost { devices: 0, dynamic: false, memory: 0 }))
}
