//! The plan of a stage over fake workers, made by the real planner from a workflow that exists in memory only.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    DeviceView, FileKind, Host, MachineView, ModelError, ModelFile, Plan, PlanOptions, RenderStyle, Signature,
};
use orchestra_source::{ItemEntry, ListError, ListingSpec};

use super::stage::{Stage, check_plan};

/// The plan of this stage.
pub fn plan_of(stage: &Stage) -> Plan {
    let text = workflow(stage);
    let memory = stage.gpus.as_ref().map_or(80 << 30, |gpus| gpus.total);
    let host = FakeHost { devices: stage.devices, dynamic: stage.dynamic, memory };
    let (plan, diags) =
        orchestra_plan::plan(&text, Path::new("/fake/flow.toml"), &PlanOptions::default(), &host);
    let plan = plan.unwrap_or_else(|| panic!("no plan:\n{}", diags.render(RenderStyle::Plain)));
    check_plan(&plan, stage);
    plan
}

fn workflow(stage: &Stage) -> String {
    let devices: Vec<String> = (0..stage.devices).map(|d| format!("\"cuda:{d}\"")).collect();
    let mut model =
        format!("workers = {}\nspare = {}\nstreams = {}\n", stage.workers, stage.spares, stage.streams);
    if stage.gpus.is_none() || stage.is_declared {
        let gib = stage.gpus.as_ref().map_or("0.001".to_owned(), |_| stage.takes.to_string());
        writeln!(model, "memory = \"{gib}GiB\"").unwrap();
    }
    let mut more = String::new();
    if stage.is_double {
        more = format!(
            "[models.other]\npath = \"other.onnx\"\nspare = 0\nworkers = {}\n[stages.second]\nkind = \"infer\"\nfrom = \"pixels\"\n\
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

struct FakeHost {
    devices: usize,
    dynamic: bool,
    /// Bytes of each device.
    memory: u64,
}

impl Host for FakeHost {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn model(&self, path: &Path) -> Result<ModelFile, ModelError> {
        let tensor = |name: &str, row: Vec<Dim>| TensorSpec {
            name: name.to_owned(),
            dtype: DType::F32,
            row,
            batch: Dim::Dynamic,
        };
        let one = Dim::Fixed(1);
        let out = if self.dynamic { Dim::Dynamic } else { one };
        let signature = Signature {
            inputs: vec![tensor("x", vec![one; 3])],
            outputs: vec![tensor("y", vec![out])],
            ir_version: 10,
            opset: 20,
        };
        let digest = [path.as_os_str().len() as u8; 32];
        Ok(ModelFile { digest, file_digest: digest, bytes: 1000, signature })
    }

    fn first_item(&self, _: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        Ok(Some(ItemEntry { name: "0".into(), path: "/fake/items/0".into() }))
    }

    fn file_kind(&self, _: &Path) -> FileKind {
        FileKind::Regular
    }

    fn machine(&self) -> Result<MachineView, String> {
        let gpu = |n| DeviceView {
            name: format!("cuda:{n}"),
            uuid: format!("GPU-{n}"),
            model: "fake".into(),
            total: self.memory,
            free: self.memory,
            node: None,
        };
        let devices = (0..self.devices).map(gpu).collect();
        Ok(MachineView { cores: 4, memory: 8 << 30, devices, ..MachineView::default() })
    }
}
