//! A machine and a model that exist in memory only, for tests of other crates that need a plan: the real planner makes it.

use std::io;
use std::path::Path;

use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    DeviceView, FileKind, Files, Host, MachineView, ModelError, ModelFile, Plan, PlanOptions, RenderStyle,
    Signature,
};
use orchestra_store::{ItemEntry, ListError, ListingSpec};

/// The plan of this workflow there.
pub fn plan_of(workflow: &str, host: &FakeHost) -> Plan {
    let file = Path::new("/fake/flow.toml");
    let (plan, diags) = orchestra_plan::plan(workflow, file, &PlanOptions::default(), host);
    plan.unwrap_or_else(|| panic!("no plan:\n{}", diags.render(RenderStyle::Plain)))
}

/// What the planner looks up on a machine, as the test says that it is.
pub struct FakeHost {
    /// GPUs of the machine.
    pub devices: usize,
    /// The model says nothing of the size of its output.
    pub dynamic: bool,
    /// Bytes of each GPU.
    pub memory: u64,
}

impl Files for FakeHost {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn file_kind(&self, _: &Path) -> FileKind {
        FileKind::Regular
    }
}

impl Host for FakeHost {
    fn kinds(&self) -> orchestra_plan::Kinds {
        orchestra_kinds::builtin()
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
            outputs: vec![tensor("y", vec![out]).into()],
            ir_version: 10,
            opset: 20,
            ..Signature::default()
        };
        // Models of one plan are told apart by it.
        let digest = [path.as_os_str().len() as u8; 32];
        Ok(ModelFile { digest, file_digest: digest, weights: Vec::new(), bytes: 1000, signature })
    }

    fn first_item(&self, _: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        Ok(Some(ItemEntry { name: "0".into(), locator: "/fake/items/0".into() }))
    }

    fn machine(&self) -> Result<MachineView, String> {
        let gpu = |n| DeviceView {
            name: format!("cuda:{n}"),
            uuid: format!("GPU-{n}"),
            model: "fake".into(),
            total: self.memory,
            free: self.memory,
            mps: true,
            node: None,
        };
        let devices = (0..self.devices).map(gpu).collect();
        Ok(MachineView { cores: 4, memory: 8 << 30, devices, ..MachineView::default() })
    }
}
