//! A plan of one batch stage, made by the real planner from a workflow that exists in memory only.

use std::sync::Arc;

use orchestra_plan::Plan;

#[path = "../../../../orchestra-plan/tests/fake/mod.rs"]
mod fake;

/// Items -> pixels -> read -> all.
pub fn plan() -> Arc<Plan> {
    let text = r#"
version = 1
name = "flow"
[sources.items]
kind = "images"
paths = ["items"]
[models.fake]
path = "fake.onnx"
workers = 1
[stages.pixels]
kind = "image"
from = "items"
size = [1, 1]
color = "gray"
[stages.read]
kind = "infer"
from = "pixels"
model = "fake"
batch = { max = 4 }
[sinks.all]
kind = "jsonl"
from = "read"
"#;
    Arc::new(fake::plan_of(text, &fake::FakeHost { devices: 0, dynamic: false, memory: 0 }))
}
