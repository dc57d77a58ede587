//! Which cores are near to which memory and which GPU. Reads only; places nothing.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A NUMA node that has cores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: u32,
    /// Those of its cores that this process may use, ascending.
    pub cores: Vec<u32>,
}

/// The nodes on which this process may use a core, by their numbers, as `proc` and `sys` under `root` have it, which is `/` outside tests.
/// Empty where the kernel does not tell.
pub(crate) fn nodes(root: &Path) -> Vec<Node> {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return Vec::new() };
    let allowed = allowed(root);
    let mut nodes: Vec<Node> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .filter_map(|id: u32| {
            let list = root.join(format!("sys/devices/system/node/node{id}/cpulist"));
            let mut cores = core_list(&fs::read_to_string(list).ok()?)?;
            cores.retain(|core| allowed.as_ref().is_none_or(|allowed| allowed.contains(core)));
            Some(Node { id, cores })
        })
        .filter(|node| !node.cores.is_empty())
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// The node that the device at this PCI address (`00000000:3B:00.0`) is plugged into.
pub(crate) fn node_of(root: &Path, pci_bus_id: &str) -> Option<u32> {
    // NVML writes the domain with eight digits, the kernel with four.
    let (domain, rest) = pci_bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let path = format!("sys/bus/pci/devices/{domain:04x}:{}/numa_node", rest.to_ascii_lowercase());
    // -1 where the firmware does not say.
    fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()
}

/// Where the process may run, as the scheduler knows it.
fn allowed(root: &Path) -> Option<Vec<u32>> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    core_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
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
pub(crate) mod tests {
    use super::*;

    pub(crate) fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn two_nodes_have_the_cores_that_this_process_may_use() {
        let root = machine(&[
            ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7,12-15\n"),
            ("sys/devices/system/node/possible", "0-1\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-5,12\n"),
        ]);
        let expected = [Node { id: 0, cores: vec![0, 1, 2, 3] }, Node { id: 1, cores: vec![4, 5, 12] }];
        assert_eq!(nodes(root.path()), expected);
    }

    #[test]
    fn nodes_without_a_usable_core_are_none() {
        let root = machine(&[
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "\n"),
            ("sys/devices/system/node/node2/cpulist", "2-3\n"),
            ("proc/self/status", "Cpus_allowed_list:\t0-1\n"),
        ]);
        assert_eq!(nodes(root.path()), [Node { id: 0, cores: vec![0, 1] }]);
        assert!(nodes(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_gpu_is_on_the_node_that_the_kernel_names() {
        let root = machine(&[
            ("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/0001:af:00.0/numa_node", "-1\n"),
        ]);
        assert_eq!(node_of(root.path(), "00000000:3B:00.0"), Some(1));
        assert_eq!(node_of(root.path(), "00000001:AF:00.0"), None);
        assert_eq!(node_of(root.path(), "00000000:00:00.0"), None);
        assert_eq!(node_of(root.path(), "../../etc"), None);
        assert_eq!(node_of(root.path(), ""), None);
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        assert_eq!(core_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(core_list(""), Some(vec![]));
        for bad in ["x", "1-", "0-99999999", "-1"] {
            assert_eq!(core_list(bad), None, "{bad}");
        }
    }
}
