//! A plan of one infer stage, made by the real planner from a workflow that exists in memory only.

use std::io;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    FileKind, Host, MachineView, ModelError, ModelFile, Plan, PlanOptions, RenderStyle, Signature,
};
use orchestra_source::{ItemEntry, ListError, ListingSpec};

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
spare = 0
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
    let (plan, diags) =
        orchestra_plan::plan(text, Path::new("/fake/flow.toml"), &PlanOptions::default(), &FakeHost);
    Arc::new(plan.unwrap_or_else(|| panic!("no plan:\n{}", diags.render(RenderStyle::Plain))))
}

struct FakeHost;

impl Host for FakeHost {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn model(&self, _: &Path) -> Result<ModelFile, ModelError> {
        let one = Dim::Fixed(1);
        let tensor = |name: &str, row: Vec<Dim>| TensorSpec {
            name: name.to_owned(),
            dtype: DType::F32,
            row,
            batch: Dim::Dynamic,
        };
        let signature = Signature {
            inputs: vec![tensor("x", vec![one; 3])],
            outputs: vec![tensor("y", vec![one])],
            ir_version: 10,
            opset: 20,
        };
        Ok(ModelFile { digest: [0; 32], file_digest: [0; 32], bytes: 1000, signature })
    }

    fn first_item(&self, _: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        Ok(Some(ItemEntry { name: "0".into(), path: "/fake/items/0".into() }))
    }

    fn file_kind(&self, _: &Path) -> FileKind {
        FileKind::Regular
    }

    fn machine(&self) -> Result<MachineView, String> {
        Ok(MachineView { cores: 4, memory: 8 << 30, devices: Vec::new(), nodes: Vec::new(), no_gpu: None })
    }
}
