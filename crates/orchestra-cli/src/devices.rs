//! `orchestra devices`: what this machine has. Changes nothing.

use std::fmt::Write as _;

use orchestra_launch::plan::format_bytes;
use orchestra_launch::{Gpu, Machine};

use crate::Failed;
use crate::args::DevicesArgs;
use crate::exit_code::ExitCode;
use crate::human::counted;
use crate::stdout;

pub fn devices(args: &DevicesArgs) -> Result<ExitCode, Failed> {
    let machine = orchestra_launch::usable_machine(None, false);
    if args.json {
        return stdout::print_json(&machine);
    }
    let model = orchestra_launch::cpu_model().unwrap_or_else(|| "unknown model".to_owned());
    stdout::print(&in_words(&machine, &model))
}

fn in_words(machine: &Machine, cpu_model: &str) -> String {
    let nodes = match machine.nodes.len() {
        0 | 1 => String::new(),
        n => format!(" on {n} NUMA nodes"),
    };
    let mut text = format!(
        "cpu     {cpu_model}, {} cores{nodes}, {} of {} memory free\n",
        machine.cores,
        format_bytes(machine.memory_available),
        format_bytes(machine.memory_total)
    );
    for (i, gpu) in machine.gpus.iter().enumerate() {
        let _ = writeln!(
            text,
            "cuda:{i}  {} ({}), {} of {} memory free",
            gpu.name,
            gpu.uuid,
            format_bytes(gpu.memory_free),
            format_bytes(gpu.memory_total)
        );
        for line in [place(gpu), state(gpu), processes(gpu)].into_iter().filter(|line| !line.is_empty()) {
            let _ = writeln!(text, "        {line}"); // writing to a string cannot fail
        }
    }
    if let Some(why) = &machine.gpu_error {
        let _ = writeln!(text, "GPUs    {why}");
    }
    if let Some(why) = &machine.gpus_unusable {
        let _ = writeln!(text, "auto    takes the CPU, because no GPU can be used: {why}");
    } else if machine.gpus.is_empty() {
        text += "auto    takes the CPU, because there is no GPU that can be used\n";
    }
    text
}

/// Where it is: what does not change.
fn place(gpu: &Gpu) -> String {
    let parts = [
        (!gpu.pci_bus_id.is_empty()).then(|| format!("PCI {}", gpu.pci_bus_id)),
        gpu.part_of.as_ref().map(|whole| format!("a part of {whole}")),
        gpu.numa_node.map(|node| format!("NUMA node {node}")),
    ];
    joined(parts)
}

/// What it does: what changes from second to second.
fn state(gpu: &Gpu) -> String {
    let watts = |mw: u32| format!("{:.0}", f64::from(mw) / 1000.0);
    let parts = [
        gpu.utilization.map(|percent| format!("{percent} % busy")),
        gpu.memory_utilization.map(|percent| format!("its memory {percent} %")),
        gpu.temperature_c.map(|t| format!("{t} °C")),
        gpu.power_mw.map(|mw| match gpu.power_limit_mw {
            Some(limit) => format!("{} of {} W", watts(mw), watts(limit)),
            None => format!("{} W", watts(mw)),
        }),
        gpu.clock_sm_mhz.map(|mhz| format!("{mhz} MHz")),
        gpu.clock_memory_mhz.map(|mhz| format!("memory at {mhz} MHz")),
    ];
    joined(parts)
}

fn processes(gpu: &Gpu) -> String {
    if gpu.processes.is_empty() {
        return String::new();
    }
    let each: Vec<String> = gpu
        .processes
        .iter()
        .map(|p| match p.memory {
            Some(bytes) => format!("{} ({})", p.pid, format_bytes(bytes)),
            None => p.pid.to_string(),
        })
        .collect();
    format!("{}: {}", counted(each.len() as u64, "process", "processes"), each.join(", "))
}

fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use orchestra_launch::{GpuProcess, Node};

    use super::*;

    fn gpu() -> Gpu {
        Gpu {
            uuid: "GPU-1".into(),
            name: "NVIDIA L4".into(),
            memory_total: 24 << 30,
            memory_free: 20 << 30,
            ..Gpu::default()
        }
    }

    fn with(gpus: Vec<Gpu>, gpu_error: Option<&str>) -> String {
        in_words(&machine(gpus, gpu_error), "A CPU")
    }

    fn machine(gpus: Vec<Gpu>, gpu_error: Option<&str>) -> Machine {
        let node = |id| Node { id, cores: vec![id] };
        Machine {
            cores: 2,
            memory_total: 16 << 30,
            memory_available: 8 << 30,
            gpus,
            nodes: vec![node(0), node(1)],
            gpu_error: gpu_error.map(str::to_owned),
            gpus_unusable: None,
        }
    }

    #[test]
    fn what_a_driver_does_not_tell_takes_no_room() {
        let text = with(vec![gpu()], None);
        assert_eq!(
            text,
            "cpu     A CPU, 2 cores on 2 NUMA nodes, 8 GiB of 16 GiB memory free\n\
             cuda:0  NVIDIA L4 (GPU-1), 20 GiB of 24 GiB memory free\n"
        );
    }

    #[test]
    fn a_gpu_and_a_slice_are_shown_with_all_that_is_known() {
        let whole = Gpu {
            pci_bus_id: "00000000:3B:00.0".into(),
            numa_node: Some(1),
            utilization: Some(97),
            memory_utilization: Some(40),
            temperature_c: Some(61),
            power_mw: Some(71_600),
            power_limit_mw: Some(72_000),
            clock_sm_mhz: Some(2040),
            clock_memory_mhz: Some(6251),
            processes: vec![
                GpuProcess { pid: 4711, memory: Some(5 << 30) },
                GpuProcess { pid: 4712, memory: None },
            ],
            ..gpu()
        };
        let slice = Gpu { uuid: "MIG-1".into(), part_of: Some("GPU-9".into()), ..gpu() };
        let text = with(vec![whole, slice], None);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "        PCI 00000000:3B:00.0, NUMA node 1",
                "        97 % busy, its memory 40 %, 61 °C, 72 of 72 W, 2040 MHz, memory at 6251 MHz",
                "        2 processes: 4711 (5 GiB), 4712",
                "cuda:1  NVIDIA L4 (MIG-1), 20 GiB of 24 GiB memory free",
                "        a part of GPU-9",
            ]
        );
    }

    #[test]
    fn without_a_gpu_it_says_why_and_what_auto_means_then() {
        let text = with(Vec::new(), Some("no driver"));
        assert!(
            text.ends_with(
                "GPUs    no driver\nauto    takes the CPU, because there is no GPU that can be used\n"
            ),
            "{text}"
        );
    }
    #[test]
    fn a_gpu_that_no_worker_could_use_is_shown_with_what_is_missing() {
        let unusable = Machine { gpus_unusable: Some("no cuBLAS".into()), ..machine(vec![gpu()], None) };
        let text = in_words(&unusable, "A CPU");
        assert!(text.contains("cuda:0  NVIDIA L4"), "{text}");
        assert!(text.ends_with("auto    takes the CPU, because no GPU can be used: no cuBLAS\n"), "{text}");
    }
}
