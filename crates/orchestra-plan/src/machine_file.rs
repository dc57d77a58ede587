//! A machine described in a file, to plan for a machine that is not this one. Looks at no hardware.

use crate::diagnostics::{Audience, Diagnostics};
use crate::fields::Fields;
use crate::host::{DeviceView, MachineView, NodeView};
use crate::key::{Key, key};
use crate::tree::{self, Toml};

/// Reads a machine description:
///
/// ```toml
/// cores = 64
/// memory = "256GiB"
/// nodes = 2                  # NUMA nodes, with an even share of the cores; default: 1
///
/// [[devices]]                # numbered cuda:0, cuda:1 … in this order
/// memory = "80GiB"
/// free = "79GiB"             # default: all of it
/// count = 8                  # default: 1
/// model = "H100"             # default: empty
/// mps = true                 # NVIDIA's Multi-Process Service runs there; default: false
/// node = 1                   # the NUMA node that it is plugged into; default: unknown
/// ```
///
/// `file` is what messages call the file.
pub fn machine_from_toml(text: &str, file: &str) -> (Option<MachineView>, Diagnostics) {
    let mut diags = Diagnostics::new(file, text, Audience::default());
    let machine = tree::parse(text, &mut diags).and_then(|root| {
        let what = "the machine file".to_owned();
        let top = crate::diagnostics::Span::new(0, 0..0);
        let mut f = Fields::new(what, top, &root, &MACHINE, &mut diags);
        if f.entry("cores").is_none() {
            f.missing("cores", "cores = 16");
        }
        let cores = f.integer("cores").map(|n| n.value as usize);
        let memory = f.bytes("memory").map_or(0, |b| b.value);
        let n_nodes = f.value("nodes");
        let devices = devices(&mut f, n_nodes);
        let no_gpu = devices.is_empty().then(|| "the machine file names none".into());
        let cores = cores?;
        Some(MachineView {
            cores,
            memory,
            devices,
            nodes: nodes(n_nodes, cores),
            no_gpu,
            ..MachineView::default()
        })
    });
    let machine = if diags.has_errors() { None } else { machine };
    (machine, diags)
}

const MACHINE: [Key; 4] = [
    key("cores", "integer", "required", "cores of the CPU").from_to(1, 65_536),
    key("memory", "memory", "0", "of the machine"),
    key("nodes", "integer", "1", "NUMA nodes").from_to(1, 64),
    key("devices", "list of tables", "none", "its GPUs").of(&DEVICE),
];

const DEVICE: [Key; 6] = [
    key("memory", "memory", "required", "of the GPU"),
    key("free", "memory", "all of it", "what other programs leave of it"),
    key("count", "integer", "1", "how many GPUs there are of this sort").from_to(1, 64),
    key("model", "text", "none", "what it is called"),
    key("mps", "true or false", "false", "whether NVIDIA's Multi-Process Service runs there"),
    key("node", "integer", "unknown", "the NUMA node that it is plugged into"),
];

/// Nodes with an even share of the cores, which are numbered through.
fn nodes(n: u32, cores: usize) -> Vec<NodeView> {
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    let first = |id: u32| (u64::from(cores) * u64::from(id) / u64::from(n)) as u32; // at most `cores`
    (0..n).map(|id| NodeView { id, cores: (first(id)..first(id + 1)).collect() }).collect()
}

fn devices(f: &mut Fields<'_, '_>, n_nodes: u32) -> Vec<DeviceView> {
    let Some(entry) = f.entry("devices") else { return Vec::new() };
    let mut found = Vec::new();
    let Toml::Array(items) = &entry.node.value else {
        f.wrong("devices", &entry.node, "a list of tables: [[devices]]");
        return found;
    };
    for item in items {
        let Toml::Table(table) = &item.value else {
            f.wrong("devices", item, "a list of tables: [[devices]]");
            continue;
        };
        let mut d = Fields::new("device".into(), item.span, table, &DEVICE, f.diags);
        if d.entry("memory").is_none() {
            d.missing("memory", "memory = \"80GiB\"");
        }
        let Some(total) = d.bytes("memory") else { continue };
        let free = d.bytes("free").map_or(total.value, |b| b.value.min(total.value));
        let model = d.string("model").map_or_else(String::new, |m| m.value);
        let mps = d.value("mps");
        let node = d.integer_within("node", 0..=u64::from(n_nodes) - 1).map(|n| n.value as u32);
        for _ in 0..d.value::<u32>("count") {
            let n = found.len();
            let name = format!("cuda:{n}");
            let uuid = format!("GPU-described-{n}");
            let (model, total) = (model.clone(), total.value);
            found.push(DeviceView { name, uuid, model, total, free, mps, node });
        }
    }
    found
}
