//! Descriptions of machines: bytes to a machine that can be planned for, or to diagnostics. It looks at no real machine.

use orchestra_plan::{PlanOptions, machine_from_toml};

use crate::diagnostics;
use crate::workflow;
use crate::world::World;

/// A workflow that is right on any machine with room for it.
const WORKFLOW: &str = "version = 1\n\
    [sources.scans]\nkind = \"images\"\npaths = [\"*.png\"]\n\
    [models.digits]\npath = \"digits.onnx\"\nmemory = \"1GiB\"\n\
    [stages.pixels]\nkind = \"image\"\nfrom = \"scans\"\nsize = [32, 32]\ncolor = \"gray\"\n\
    [stages.classify]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"digits\"\n\
    [sinks.results]\nkind = \"jsonl\"\nfrom = \"classify\"\n";

/// A machine file describes a machine that can be planned for, or is explained; never a panic.
pub fn machine_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (machine, diags) = machine_from_toml(text, "machine.toml");
    diagnostics::check(&diags, machine.is_some());
    let Some(machine) = machine else { return };
    assert!((1..=65_536).contains(&machine.cores));
    for (at, device) in machine.devices.iter().enumerate() {
        assert!(device.free <= device.total);
        assert_eq!(device.name, format!("cuda:{at}"));
    }
    assert_eq!(machine.no_gpu.is_some(), machine.devices.is_empty());
    let world = World { machine: Ok(machine), ..World::with_gpus(0) };
    workflow::check(WORKFLOW, &PlanOptions::default(), &world);
}
