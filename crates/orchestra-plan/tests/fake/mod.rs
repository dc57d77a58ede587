//! A machine and a model that exist in memory only, for tests of other crates that need a plan: the real planner makes it.

mod models;

use std::io;
use std::path::Path;

use orchestra_plan::{
    FileKind, Files, Host, MachineView, ModelError, ModelFile, Plan, PlanOptions, RenderStyle,
};
use orchestra_store::{ItemEntry, ListError, ListingSpec};

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
        // The planner tells two models apart by their digests.
        let known = if self.dynamic { "fake-open" } else { "fake" };
        let model = models::model_of(known, 1000).ok_or(ModelError::Missing)?;
        Ok(ModelFile { digest: [path.as_os_str().len() as u8; 32], ..model })
    }

    fn first_item(&self, _: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        Ok(Some(ItemEntry { name: "0".into(), locator: "/fake/items/0".into() }))
    }

    fn machine(&self) -> Result<MachineView, String> {
        let devices = models::gpus(self.devices, self.memory, self.memory);
        Ok(MachineView { cores: 4, memory: 8 << 30, devices, ..MachineView::default() })
    }
}
