//! What models and commands of a file have of each GPU's memory: one sum, of what was free. Arithmetic only.

use std::collections::BTreeSet;

use orchestra_core::tasks::Gpus;

use crate::bytes::format_bytes;
use crate::cx::Cx;
use crate::devices::Device;
use crate::plan::{TaskGpu, TaskPlan, TasksPlan, WorkerPlan};
use crate::workflow::{StageNode, WorkflowTables};

/// What a command with a share of a GPU says that it needs of it; commands that have a GPU alone have it before or after the models.
fn declared(task: &TaskPlan) -> Option<u64> {
    let Gpus::Share(_) = task.demand.gpus else { return None };
    Some(task.demand.gpu_memory).filter(|bytes| *bytes > 0)
}

/// Has models leave as much of each GPU as the largest share needs of all that are still to run. `done`: by their places.
pub(crate) fn leave_to_shares(tasks: &mut TasksPlan, done: impl FnOnce(&TasksPlan) -> BTreeSet<usize>) {
    if tasks.gpus.is_empty() || tasks.tasks.iter().all(|task| declared(task).is_none()) {
        return;
    }
    let done = done(tasks);
    let open = tasks.tasks.iter().enumerate().filter(|(at, _)| !done.contains(at));
    let most = open.filter_map(|(_, task)| declared(task)).max().unwrap_or(0);
    tasks.gpus.iter_mut().for_each(|gpu| gpu.of_shares = most);
}

/// Notes what the models that are placed may take of each GPU. Says which commands have to wait for their end.
pub(crate) fn leave_to_models(
    tasks: &mut TasksPlan,
    devices: &[Device],
    workflow: &WorkflowTables,
    cx: &mut Cx<'_>,
) {
    for gpu in &mut tasks.gpus {
        let is_it = |worker: &&WorkerPlan| devices[worker.device.index()].name == gpu.name;
        let batches = workflow.stages.iter().filter_map(StageNode::batch_plan);
        let here: Vec<&WorkerPlan> = batches.flat_map(|batch| &batch.workers).filter(is_it).collect();
        gpu.of_models = of_workers(gpu, &here);
    }
    let left = |gpu: &TaskGpu| gpu.memory.unwrap_or(0).saturating_sub(gpu.of_models);
    let most = tasks.gpus.iter().map(left).max().unwrap_or(0);
    for raw in &workflow.tasks {
        let needs = tasks.tasks.iter().filter(|task| task.name == raw.name.value).find_map(declared);
        if let Some(bytes) = needs.filter(|bytes| *bytes > most) {
            let span = raw.gpu_memory.as_ref().map_or(raw.name.span, |bytes| bytes.span);
            cx.warning(span, format!("task `{}` has no room beside the models", raw.name.value))
                .label(format!("it asks for {}, and models leave {} of a GPU", format_bytes(bytes), format_bytes(most)))
                .help("it starts when the pipelines that use the GPU have ended; fewer `workers`, or `devices` of the models, leave more");
        }
    }
}

/// What these workers of a GPU may take. Where it is not known of each, as many are started in the run as leave what shares need.
fn of_workers(gpu: &TaskGpu, workers: &[&WorkerPlan]) -> u64 {
    let Some(room) = gpu.memory.filter(|_| !workers.is_empty()) else { return 0 };
    let of_each =
        |worker: &&WorkerPlan| worker.memory.unwrap_or_default().saturating_mul(worker.count as u64);
    let known = workers.iter().map(of_each).fold(0, u64::saturating_add);
    let is_known = workers.iter().all(|worker| worker.memory.is_some() && worker.growth.is_none());
    let all = if is_known { known } else { known.max(room.saturating_sub(gpu.of_shares)) };
    all.min(room)
}
