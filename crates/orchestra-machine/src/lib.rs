//! What this machine has: cores, memory, GPUs.
//! Observes only: it plans nothing, changes no process's environment and never loads CUDA or ONNX Runtime.
//!
//! ```no_run
//! let probe = orchestra_machine::NvmlProbe::new();
//! let inherited = std::env::var("CUDA_VISIBLE_DEVICES").ok();
//! let machine = orchestra_machine::inspect(&probe, inherited.as_deref());
//! println!("{} cores, {} GPUs", machine.cores, machine.gpus.len());
//! ```

mod driver;
mod gpu;
mod memory;
mod mps;
mod nvml;
pub mod processes;
mod topology;
mod visible;

pub use driver::{DriverProbe, driver_problem};
pub use gpu::{FakeProbe, Gpu, GpuProbe, GpuProcess, ProbeError};
pub use memory::{MachineUse, Memory};
pub use mps::mps;
pub use nvml::NvmlProbe;
pub use topology::Node;
pub use visible::{Visible, visible, worker_environment};

use std::num::NonZero;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A machine as this process may use it. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores this process may keep busy: the least of the machine's cores, the CPU affinity and the cgroup's CPU quota.
    pub cores: usize,
    /// Main memory, or the limit of the cgroup or of the process where that is less.
    pub memory_total: u64,
    /// How much of it can still be taken without swapping.
    pub memory_available: u64,
    /// The GPUs that may be used, in the order in which they are numbered: `cuda:0` is the first.
    pub gpus: Vec<Gpu>,
    /// The NUMA nodes on which this process may use a core, where the kernel tells.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Why there are no GPUs, or fewer than the machine has; `None` when nothing is missing.
    pub gpu_error: Option<String>,
    /// Why no worker could use the GPUs, although the driver lists them: what is missing besides, and what to do. `None`: nothing is known
    /// to be missing, or it was not looked for.
    #[serde(default)]
    pub gpus_unusable: Option<String>,
}

/// Looks at this machine. `cuda_visible_devices` is the inherited variable of that name: a list given by a scheduler is
/// only ever narrowed, so `gpus` holds no GPU that it hides.
pub fn inspect(probe: &dyn GpuProbe, cuda_visible_devices: Option<&str>) -> Machine {
    inspect_under(Path::new("/"), probe, cuda_visible_devices)
}

/// As `inspect`, with `proc` and `sys` under `root`.
fn inspect_under(root: &Path, probe: &dyn GpuProbe, cuda_visible_devices: Option<&str>) -> Machine {
    let memory = Memory::read(root);
    let (mut gpus, gpu_error) = visible_gpus(probe, cuda_visible_devices);
    let nodes = topology::nodes(root);
    // On one node everything is equally near.
    for gpu in gpus.iter_mut().filter(|_| nodes.len() > 1) {
        gpu.numa_node = gpu.numa_node.or_else(|| topology::node_of(root, &gpu.pci_bus_id));
    }
    Machine {
        cores: std::thread::available_parallelism().map_or(1, NonZero::get),
        memory_total: memory.total,
        memory_available: memory.available,
        gpus,
        nodes,
        gpu_error,
        gpus_unusable: None,
    }
}

/// The model name of the CPU, as the kernel gives it.
pub fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn visible_gpus(probe: &dyn GpuProbe, cuda_visible_devices: Option<&str>) -> (Vec<Gpu>, Option<String>) {
    let (all, problem) = match probe.gpus() {
        Ok(gpus) => (gpus, None),
        Err(ProbeError::Partial { gpus, problem }) => (gpus, Some(problem)),
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let Some(list) = cuda_visible_devices else { return (all, problem) };
    let Visible { gpus, hidden } = visible(&all, list, |uuid| probe.gpu_by_uuid(uuid).ok());
    let error = match (problem, hidden) {
        (Some(a), Some(b)) => Some(format!("{a}; {b}")),
        (a, b) => a.or(b),
    };
    (gpus, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::{gpu, slice};

    #[test]
    fn a_machine_without_a_driver_has_cores_memory_and_a_reason() {
        let machine = inspect(&FakeProbe::failing(ProbeError::NoDriver("not loaded".into())), None);
        assert!(machine.cores >= 1);
        assert!(machine.memory_total > 0 && machine.memory_available <= machine.memory_total);
        assert!(machine.gpus.is_empty());
        assert!(machine.gpu_error.unwrap().contains("driver"));
    }

    #[test]
    fn the_inherited_list_narrows_and_reorders() {
        let probe = FakeProbe::new(vec![gpu(0), gpu(1), gpu(2)]);
        let machine = inspect(&probe, Some("2,0"));
        assert_eq!(machine.gpus, [gpu(2), gpu(0)]);
        assert_eq!(machine.gpu_error, None);
    }

    #[test]
    fn gpus_and_their_slices_are_on_the_node_that_they_are_plugged_into() {
        let probe = FakeProbe::new(vec![gpu(0), slice(1, 0), slice(1, 1)]);
        let of_gpus = [
            ("sys/bus/pci/devices/0000:00:00.0/numa_node", "0\n"),
            ("sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ];
        let nodes = |files: &[(&str, &str)]| -> Vec<_> {
            let root = topology::tests::machine(files);
            inspect_under(root.path(), &probe, None).gpus.iter().map(|gpu| gpu.numa_node).collect()
        };
        let second = [("sys/devices/system/node/node1/cpulist", "4-7\n")];
        assert_eq!(nodes(&[&of_gpus[..], &second].concat()), [Some(0), Some(1), Some(1)]);
        assert_eq!(nodes(&of_gpus), [None, None, None]);
    }

    #[test]
    fn a_lost_gpu_is_named_and_the_others_stay() {
        let problem = "GPU 1 cannot be read".to_owned();
        let probe = FakeProbe::failing(ProbeError::Partial { gpus: vec![gpu(0)], problem: problem.clone() });
        let machine = inspect(&probe, None);
        assert_eq!(machine.gpus, [gpu(0)]);
        assert_eq!(machine.gpu_error, Some(problem));
    }

    #[test]
    fn a_machine_survives_json() {
        let machine = inspect(&FakeProbe::new(vec![gpu(3)]), None);
        let text = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
        assert!(text.contains("\"uuid\":\"GPU-3"), "{text}");
    }
}
