//! Which cores the workers of a device and the loaders are kept on, where a machine has several NUMA nodes. Arithmetic only; the runtime
//! does it.

use crate::devices::Device;
use crate::host::NodeView;
use crate::placement::plural;
use crate::plan::NodeCores;

/// The nodes of the devices, and that of the loaders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Near {
    /// By device; `None`: anywhere.
    pub devices: Vec<Option<NodeCores>>,
    pub loaders: Option<NodeCores>,
}

/// Workers of a GPU stay on the node that it is plugged into: what they copy to it then does not cross from one socket to the other. CPU
/// devices are spread over the nodes if there are as many as nodes. Loaders stay on the node of the GPUs if all of them are on the same and
/// it has a core for each loader; else they need all cores, and a batch has rows of many of them anyway.
pub(crate) fn near(
    devices: &[&Device],
    nodes: &[NodeView],
    loaders: usize,
    reasons: &mut Vec<String>,
) -> Near {
    let anywhere = Near { devices: vec![None; devices.len()], loaders: None };
    if nodes.len() < 2 {
        return anywhere;
    }
    let cores_of = |id: u32| {
        let node = nodes.iter().find(|node| node.id == id && !node.cores.is_empty())?;
        Some(NodeCores { node: node.id, cores: node.cores.clone() })
    };
    let n_cpus = devices.iter().filter(|d| !d.is_cuda()).count();
    let mut cpu_nodes = nodes.iter().filter(|_| n_cpus == nodes.len());
    let of_devices: Vec<Option<NodeCores>> = devices
        .iter()
        .map(|device| if device.is_cuda() { cores_of(device.node?) } else { cores_of(cpu_nodes.next()?.id) })
        .collect();
    for (device, near) in devices.iter().zip(&of_devices) {
        reasons.push(match near {
            Some(near) => {
                format!(
                    "device {}: its workers stay on NUMA node {} ({})",
                    device.name,
                    near.node,
                    core_text(near)
                )
            }
            None if device.is_cuda() => {
                format!(
                    "device {}: its workers run on any core, because its NUMA node is not known",
                    device.name
                )
            }
            None => format!(
                "device {}: its workers run on any core of {}",
                device.name,
                plural(nodes.len(), "NUMA node")
            ),
        });
    }
    let mut used: Vec<Option<&NodeCores>> = of_devices.iter().map(Option::as_ref).collect();
    used.dedup();
    let loaders_near = match used[..] {
        [Some(one)] if loaders <= one.cores.len() => Some(one.clone()),
        _ => None,
    };
    if let Some(near) = &loaders_near {
        let text = core_text(near);
        reasons
            .push(format!("loaders: they stay on NUMA node {} ({text}), where all devices are", near.node));
    }
    Near { devices: of_devices, loaders: loaders_near }
}

/// `cores 0-3, 8`
fn core_text(near: &NodeCores) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for core in &near.cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => ranges.push((*core, *core)),
        }
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    format!("cores {}", ranges.iter().map(range).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use orchestra_core::DeviceKind;

    use super::*;

    fn nodes(n: u32) -> Vec<NodeView> {
        (0..n).map(|id| NodeView { id, cores: (id * 8..id * 8 + 8).collect() }).collect()
    }

    fn cpu() -> Device {
        Device { name: "cpu".into(), kind: DeviceKind::Cpu, product: String::new(), memory: None, node: None }
    }

    fn gpu(node: Option<u32>) -> Device {
        let kind = DeviceKind::Cuda { uuid: "GPU-1".into() };
        Device { name: "cuda:0".into(), kind, node, ..cpu() }
    }

    fn placed(devices: &[Device], n_nodes: u32, loaders: usize) -> (Vec<Option<u32>>, Option<u32>) {
        let devices: Vec<&Device> = devices.iter().collect();
        let near = near(&devices, &nodes(n_nodes), loaders, &mut Vec::new());
        (near.devices.iter().map(|d| d.as_ref().map(|d| d.node)).collect(), near.loaders.map(|l| l.node))
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
        let text = |cores: &[u32]| core_text(&NodeCores { node: 0, cores: cores.to_vec() });
        assert_eq!(text(&[0, 1, 2, 3, 8, 10, 11]), "cores 0-3, 8, 10-11");
    }
}
