//! Which devices each batch stage runs on, and how many workers it has there.

use std::collections::HashSet;

use orchestra_core::Code;

use crate::cx::Cx;
use crate::devices::{Device, Devices, check_tuning};
use crate::host::MachineView;
use crate::plan::TasksPlan;
use crate::rules::behind_reduce;
use crate::worker_placement::{WorkerDemand, WorkerPlacement};
use crate::workflow::WorkflowTables;

/// All devices that some used batch stage may use. Its workers there become a part of its plan.
pub(crate) fn place(
    workflow: &mut WorkflowTables,
    devices: &mut Devices<'_>,
    tasks: Option<&TasksPlan>,
    cx: &mut Cx<'_>,
) -> Vec<Device> {
    let (mut table, mut demands, mut no_compiler) = (Vec::new(), Vec::new(), None);
    let n_reduces = behind_reduce::n_before(workflow);
    // Several stages may run one model.
    let mut checked = HashSet::new();
    for (at, node) in workflow.stages.iter().enumerate() {
        let Some(model) = node.model else { continue };
        let of_model = devices.of_model(&workflow.models[model], cx);
        let (Ok(own), true) = (of_model, at < workflow.n_stages) else { continue };
        let model = &workflow.models[model];
        if let Some(Code::Kernel(kernel)) = model.code() {
            no_compiler = no_compiler.or(kernel.compilers.as_ref().err());
        }
        if checked.insert(&model.name.value) {
            check_tuning(model, &own, devices.are_named, cx);
        }
        let own = own.into_iter().map(|device| index_of(&mut table, device)).collect();
        let (stage, n_reduces) = (&*node.name.value, n_reduces[at]);
        demands.push(WorkerDemand { stage, at, n_reduces, model, devices: own });
    }
    if let Some(why) = no_compiler.filter(|_| devices.machine.is_some()) {
        cx.error(None, format!("CUDA kernels cannot be compiled: {why}")).unavailable();
    }
    if !demands.is_empty() {
        let takes_more = table.iter().all(Device::is_cuda) && !devices.in_use.iter().any(Device::is_cuda);
        cx.reasons.push(match takes_more {
            true => "devices: the GPUs, for code that needs nothing of what models need".to_owned(),
            false => devices.reason.clone(),
        });
    }
    let placement = WorkerPlacement {
        demands: &demands,
        devices: &table,
        of_shares: table.iter().map(|device| of_shares(tasks, device)).collect(),
        cores: cores_each(&table, devices.machine),
        headroom: workflow.devices.headroom,
    };
    let workers = placement.place(cx);
    let placed: Vec<_> = demands.iter().map(|demand| demand.at).zip(workers).collect();
    for (stage, workers) in placed {
        if let Some(batch) = workflow.stages[stage].batch_plan_mut() {
            batch.workers = workers;
        }
    }
    table
}

/// Cores of each CPU device of the table, all of which are used.
pub(crate) fn cores_each(table: &[Device], machine: Option<&MachineView>) -> usize {
    let n_cpus = table.iter().filter(|device| !device.is_cuda()).count();
    (machine.map_or(1, |m| m.cores) / n_cpus.max(1)).max(1)
}

/// Bytes of a device that models leave to commands with a share of it.
pub(crate) fn of_shares(tasks: Option<&TasksPlan>, device: &Device) -> u64 {
    let gpu = tasks.and_then(|tasks| tasks.gpus.iter().find(|gpu| gpu.name == device.name));
    gpu.map_or(0, |gpu| gpu.of_shares)
}

fn index_of(table: &mut Vec<Device>, device: Device) -> usize {
    table.iter().position(|known| *known == device).unwrap_or_else(|| {
        table.push(device);
        table.len() - 1
    })
}
