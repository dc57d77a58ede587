//! Which cores are near to which memory and which GPU. Reads only; places nothing.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A NUMA node that has cores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The kernel's number for it.
    pub id: u32,
    /// Those of its cores that this process may use, ascending.
    pub cores: Vec<u32>,
}

/// Knows how a machine is laid out.
pub trait Topology {
    /// The nodes on which this process may use a core, by their numbers. Empty where the kernel does not tell.
    fn nodes(&self) -> Vec<Node>;

    /// The node that the device at this PCI address (`00000000:3B:00.0`) is plugged into.
    fn node_of(&self, pci_bus_id: &str) -> Option<u32>;
}

/// The machine that this process runs on.
#[derive(Debug, Clone)]
pub struct SysTopology {
    root: PathBuf,
}

impl SysTopology {
    /// Reads `proc` and `sys` under `root`, which is `/` outside tests.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Where the process may run, as the scheduler knows it.
    fn allowed(&self) -> Option<Vec<u32>> {
        let status = self.read("proc/self/status")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        core_list(list)
    }
}

impl Topology for SysTopology {
    fn nodes(&self) -> Vec<Node> {
        let Ok(entries) = fs::read_dir(self.root.join("sys/devices/system/node")) else { return Vec::new() };
        let allowed = self.allowed();
        let mut nodes: Vec<Node> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
            .filter_map(|id: u32| {
                let mut cores = core_list(&self.read(&format!("sys/devices/system/node/node{id}/cpulist"))?)?;
                cores.retain(|core| allowed.as_ref().is_none_or(|allowed| allowed.contains(core)));
                Some(Node { id, cores })
            })
            .filter(|node| !node.cores.is_empty())
            .collect();
        nodes.sort_by_key(|node| node.id);
        nodes
    }

    fn node_of(&self, pci_bus_id: &str) -> Option<u32> {
        // NVML writes the domain with eight digits, the kernel with four.
        let (domain, rest) = pci_bus_id.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        let path = format!("sys/bus/pci/devices/{domain:04x}:{}/numa_node", rest.to_ascii_lowercase());
        // -1 where the firmware does not say.
        self.read(&path)?.trim().parse().ok()
    }
}

/// A layout that was made up: for tests, and for machines that are described.
#[derive(Debug, Clone, Default)]
pub struct FakeTopology {
    /// What `nodes` answers.
    pub nodes: Vec<Node>,
    /// Addresses and their nodes.
    pub devices: Vec<(String, u32)>,
}

impl FakeTopology {
    /// `n` nodes with so many cores each, numbered through.
    #[must_use]
    pub fn even(n: u32, cores: u32) -> Self {
        let nodes = (0..n).map(|id| Node { id, cores: (id * cores..(id + 1) * cores).collect() });
        Self { nodes: nodes.collect(), devices: Vec::new() }
    }
}

impl Topology for FakeTopology {
    fn nodes(&self) -> Vec<Node> {
        self.nodes.clone()
    }

    fn node_of(&self, pci_bus_id: &str) -> Option<u32> {
        self.devices.iter().find(|(id, _)| id == pci_bus_id).map(|(_, node)| *node)
    }
}

/// The numbers of a list like `0-3,8,10-11`; `None` for anything else.
fn core_list(text: &str) -> Option<Vec<u32>> {
    /// More cores than any kernel knows: a bound on what a strange file makes us hold.
    const MOST: u32 = 1 << 16;
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MOST {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, SysTopology) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let topology = SysTopology::new(root.path());
        (root, topology)
    }

    #[test]
    fn two_nodes_have_the_cores_that_this_process_may_use() {
        let (_root, topology) = machine(&[
            ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7,12-15\n"),
            ("sys/devices/system/node/possible", "0-1\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-5,12\n"),
        ]);
        let nodes = [Node { id: 0, cores: vec![0, 1, 2, 3] }, Node { id: 1, cores: vec![4, 5, 12] }];
        assert_eq!(topology.nodes(), nodes);
    }

    #[test]
    fn nodes_without_a_usable_core_are_none() {
        let (_root, topology) = machine(&[
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "\n"),
            ("sys/devices/system/node/node2/cpulist", "2-3\n"),
            ("proc/self/status", "Cpus_allowed_list:\t0-1\n"),
        ]);
        assert_eq!(topology.nodes(), [Node { id: 0, cores: vec![0, 1] }]);
        assert!(SysTopology::new(Path::new("/nowhere")).nodes().is_empty());
    }

    #[test]
    fn a_gpu_is_on_the_node_that_the_kernel_names() {
        let (_root, topology) = machine(&[
            ("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/0001:af:00.0/numa_node", "-1\n"),
        ]);
        assert_eq!(topology.node_of("00000000:3B:00.0"), Some(1));
        assert_eq!(topology.node_of("00000001:AF:00.0"), None);
        assert_eq!(topology.node_of("00000000:00:00.0"), None);
        assert_eq!(topology.node_of("../../etc"), None);
        assert_eq!(topology.node_of(""), None);
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        assert_eq!(core_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(core_list(""), Some(vec![]));
        for bad in ["x", "1-", "0-99999999", "-1"] {
            assert_eq!(core_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_even_machine_has_every_core_once() {
        for n in [1, 2, 4] {
            let cores: Vec<u32> =
                FakeTopology::even(n, 8).nodes().into_iter().flat_map(|n| n.cores).collect();
            assert_eq!(cores, (0..n * 8).collect::<Vec<_>>());
        }
    }
}
