//! Which cores the workers of a device and the loaders are kept on, where a machine has several NUMA nodes. Arithmetic only; the runtime
//! does it.

use crate::devices::Device;
use crate::host::NodeView;
use crate::plan::NodeCores;
use crate::worker_placement::plural;

/// The nodes of the devices, and that of the loaders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodePlacement {
    /// By device; `None`: anywhere.
    pub devices: Vec<Option<NodeCores>>,
    pub loaders: Option<NodeCores>,
}

/// A device, and how many threads its workers have together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedDevice<'a> {
    pub device: &'a Device,
    pub threads: usize,
}

/// The fewest cores of a node that workers are bound to. A worker also has threads for its heartbeat and for CUDA: on a single core they would
/// take turns with its computation, so it runs anywhere where some node has more.
const LEAST_CORES: usize = 2;

/// Workers of a GPU stay on the node that it is plugged into: what they copy to it then does not cross from one socket to the other. CPU
/// devices are spread over the nodes if there are as many as nodes. Where a node has fewer cores for us than its workers
/// have threads (a cpuset may leave one core of 48), they run anywhere: waiting for a core costs more than crossing. Loaders
/// stay on the node of the GPUs if all of them are on the same and it has a core for each loader; else they need all cores, and a batch
/// has rows of many of them anyway.
pub(crate) fn cpu_affinity(
    placed: &[PlacedDevice<'_>],
    nodes: &[NodeView],
    loaders: usize,
    reasons: &mut Vec<String>,
) -> NodePlacement {
    if nodes.len() < 2 {
        return NodePlacement { devices: vec![None; placed.len()], loaders: None };
    }
    let homes = homes(placed, nodes);
    let of_devices: Vec<Option<NodeCores>> = homes
        .iter()
        .map(|home| {
            let home = (*home)?;
            let is_enough = home.cores.len() >= wanted(home, placed, &homes, nodes);
            is_enough.then(|| NodeCores { node: home.id, cores: home.cores.clone() })
        })
        .collect();
    for ((PlacedDevice { device, .. }, home), affinity) in placed.iter().zip(&homes).zip(&of_devices) {
        let what = match (affinity, home) {
            (Some(affinity), _) => {
                format!("stay on NUMA node {} ({})", affinity.node, core_text(&affinity.cores))
            }
            (None, Some(home)) => format!(
                "run on any core, because this process may use {} of NUMA node {}, and the workers that belong there want {}",
                match &home.cores[..] {
                    [] => "no core".into(),
                    cores => format!("only {}", core_text(cores)),
                },
                home.id,
                wanted(home, placed, &homes, nodes)
            ),
            (None, None) if device.is_cuda() => "run on any core, because its NUMA node is not known".into(),
            (None, None) => format!("run on any core of {}", plural(nodes.len(), "NUMA node")),
        };
        reasons.push(format!("device {}: its workers {what}", device.name));
    }
    let loaders = loader_affinity(&of_devices, loaders);
    if let Some(affinity) = &loaders {
        let text = core_text(&affinity.cores);
        reasons.push(format!(
            "loaders: they stay on NUMA node {} ({text}), where all devices are",
            affinity.node
        ));
    }
    NodePlacement { devices: of_devices, loaders }
}

/// The node that each device belongs to, where that is known.
fn homes<'a>(placed: &[PlacedDevice<'_>], nodes: &'a [NodeView]) -> Vec<Option<&'a NodeView>> {
    let n_cpus = placed.iter().filter(|p| !p.device.is_cuda()).count();
    let mut cpu_nodes = nodes.iter().filter(|_| n_cpus == nodes.len());
    let home = |p: &PlacedDevice<'_>| match p.device.is_cuda() {
        true => nodes.iter().find(|node| Some(node.id) == p.device.node),
        false => cpu_nodes.next(),
    };
    placed.iter().map(home).collect()
}

/// How many cores the workers want that belong to this node.
fn wanted(
    home: &NodeView,
    placed: &[PlacedDevice<'_>],
    homes: &[Option<&NodeView>],
    nodes: &[NodeView],
) -> usize {
    let most = nodes.iter().map(|node| node.cores.len()).max().unwrap_or_default();
    let there = placed.iter().zip(homes).filter(|(_, h)| h.is_some_and(|h| h.id == home.id));
    there.map(|(p, _)| p.threads).sum::<usize>().max(LEAST_CORES.min(most)).max(1)
}

fn loader_affinity(of_devices: &[Option<NodeCores>], loaders: usize) -> Option<NodeCores> {
    let mut used: Vec<Option<&NodeCores>> = of_devices.iter().map(Option::as_ref).collect();
    used.dedup();
    match used[..] {
        [Some(one)] if loaders <= one.cores.len() => Some(one.clone()),
        _ => None,
    }
}

/// `cores 0-3, 8`
fn core_text(cores: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => ranges.push((*core, *core)),
        }
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let word = if cores.len() == 1 { "core" } else { "cores" };
    format!("{word} {}", ranges.iter().map(range).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use orchestra_core::DeviceKind;

    use super::*;

    fn nodes(n: u32) -> Vec<NodeView> {
        (0..n).map(|id| NodeView { id, cores: (id * 8..id * 8 + 8).collect() }).collect()
    }

    fn cpu() -> Device {
        let (name, product) = ("cpu".into(), String::new());
        Device { name, kind: DeviceKind::Cpu, product, memory: None, mps: false, node: None }
    }

    fn gpu(node: Option<u32>) -> Device {
        let kind = DeviceKind::Cuda { uuid: "GPU-1".into() };
        Device { name: "cuda:0".into(), kind, node, ..cpu() }
    }

    fn placed(devices: &[Device], n_nodes: u32, loaders: usize) -> (Vec<Option<u32>>, Option<u32>) {
        let placed: Vec<PlacedDevice<'_>> =
            devices.iter().map(|device| PlacedDevice { device, threads: 1 }).collect();
        let affinity = cpu_affinity(&placed, &nodes(n_nodes), loaders, &mut Vec::new());
        (
            affinity.devices.iter().map(|d| d.as_ref().map(|d| d.node)).collect(),
            affinity.loaders.map(|l| l.node),
        )
    }

    /// The nodes of devices whose workers have this many threads, and what is said, where node 0 has the cores 0 to 7 and node 1 only
    /// these.
    fn on_a_part_of_node_1(devices: &[(Device, usize)], left: &[u32]) -> (Vec<Option<u32>>, String) {
        let placed: Vec<PlacedDevice<'_>> =
            devices.iter().map(|(device, threads)| PlacedDevice { device, threads: *threads }).collect();
        let mut nodes = nodes(2);
        nodes[1].cores = left.to_vec();
        let mut reasons = Vec::new();
        let affinity = cpu_affinity(&placed, &nodes, 4, &mut reasons);
        (affinity.devices.into_iter().map(|d| d.map(|d| d.node)).collect(), reasons.join("\n"))
    }

    #[test]
    fn no_worker_is_squeezed_into_what_a_cpuset_leaves_of_a_node() {
        let one = |threads, left: &[u32]| on_a_part_of_node_1(&[(gpu(Some(1)), threads)], left);
        assert_eq!(one(2, &[8, 9]).0, [Some(1)]);
        let (affinity, said) = one(1, &[8]);
        assert_eq!(affinity, [None]);
        assert!(
            said.contains("only core 8 of NUMA node 1, and the workers that belong there want 2"),
            "{said}"
        );
        let (affinity, said) = one(3, &[8, 9]);
        assert_eq!(affinity, [None]);
        assert!(said.contains("only cores 8-9 of NUMA node 1") && said.contains("want 3"), "{said}");
        assert!(one(1, &[]).1.contains("no core of NUMA node 1"), "{}", one(1, &[]).1);
        // Two GPUs share what is left of their node.
        let both = [(gpu(Some(1)), 2), (gpu(Some(1)), 2)];
        assert_eq!(on_a_part_of_node_1(&both, &[8, 9, 10, 11]).0, [Some(1); 2]);
        assert_eq!(on_a_part_of_node_1(&both, &[8, 9, 10]).0, [None; 2]);
        // And the CPU device of the other node stays there.
        let cpus = [(cpu(), 4), (cpu(), 4)];
        assert_eq!(on_a_part_of_node_1(&cpus, &[8, 9]).0, [Some(0), None]);
    }

    #[test]
    fn on_one_node_everything_runs_anywhere() {
        for n in [0, 1] {
            assert_eq!(placed(&[gpu(Some(0)), cpu()], n, 4), (vec![None, None], None));
        }
    }

    #[test]
    fn workers_stay_with_their_gpu_on_two_and_four_nodes() {
        assert_eq!(placed(&[gpu(Some(1)), gpu(Some(0))], 2, 4), (vec![Some(1), Some(0)], None));
        assert_eq!(placed(&[gpu(Some(3)), gpu(Some(3))], 4, 4), (vec![Some(3), Some(3)], Some(3)));
    }

    #[test]
    fn a_gpu_whose_node_is_unknown_or_has_no_core_for_us_runs_anywhere() {
        assert_eq!(placed(&[gpu(None), gpu(Some(7))], 2, 4), (vec![None, None], None));
    }

    #[test]
    fn loaders_are_not_squeezed_into_a_node_that_has_too_few_cores() {
        assert_eq!(placed(&[gpu(Some(1))], 2, 8).1, Some(1));
        assert_eq!(placed(&[gpu(Some(1))], 2, 9).1, None);
    }

    #[test]
    fn cpu_devices_are_spread_if_there_is_one_for_each_node() {
        assert_eq!(placed(&[cpu(), cpu()], 2, 4).0, [Some(0), Some(1)]);
        assert_eq!(placed(&[cpu()], 2, 4).0, [None]);
        assert_eq!(placed(&[cpu(), cpu(), cpu()], 2, 4).0, [None, None, None]);
    }

    #[test]
    fn cores_are_written_as_ranges() {
        assert_eq!(core_text(&[0, 1, 2, 3, 8, 10, 11]), "cores 0-3, 8, 10-11");
        assert_eq!(core_text(&[5]), "core 5");
    }
}
