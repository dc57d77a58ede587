//! At the end of a run: keeps what a worker of each model took of its GPU, for the plans of later runs. Measures nothing itself.

use orchestra_core::{DeviceId, StageId};
use orchestra_plan::{InferPlan, MeasureKey, WorkerMemory, WorkerPlan};

use crate::context::RunContext;
use crate::device_use::DeviceUse;

/// Keeps what was seen, where it can be told whose it is: a device that runs one model. Failing to is no reason for a run to fail.
pub(crate) fn keep(context: &RunContext) {
    let Some(measurements) = &context.options.devices.measurements else { return };
    let plan = &context.plan;
    for (id, device) in (0..).map(DeviceId).zip(&plan.devices) {
        let here = |(stage, infer): (StageId, &'_ InferPlan)| -> Option<(StageId, WorkerPlan)> {
            infer.workers.iter().find(|w| w.device == id && w.count > 0).map(|w| (stage, *w))
        };
        let mut users = plan.infer_stages().filter_map(here);
        let (Some((stage, worker)), None) = (users.next(), users.next()) else { continue };
        let stats = context.stats.device(id);
        // A worker that has done a batch was loaded and has run every rung of its ladder.
        let Some(bytes) =
            of_one(&context.watch.usage(id), stats.starts.get()).filter(|_| stats.batches.get() > 0)
        else {
            continue;
        };
        let Some((_, infer)) = plan.infer_stages().find(|(id, _)| *id == stage) else { continue };
        let model = &plan.models[infer.model.index()];
        if let Some(WorkerMemory::Declared(declared)) = worker.memory
            && bytes > declared
        {
            tracing::warn!(
                model = %model.name, device = %device.spec, declared, measured = bytes,
                "a worker took more of the GPU than the file declares as `memory`"
            );
        }
        let tuning = model.tuning.memory_words();
        let key = MeasureKey {
            model: &model.digest,
            device: &device.product,
            max_batch: infer.max_batch,
            tuning: &tuning,
        };
        match measurements.keep(&key, bytes) {
            Ok(()) => {
                tracing::info!(model = %model.name, device = %device.spec, bytes, "memory of a worker kept")
            }
            Err(error) => tracing::warn!(%error, "the memory of a worker cannot be kept for later plans"),
        }
    }
}

/// Bytes of one worker: as the driver counts them for a process, else what the GPU has lost while a single worker was on it.
fn of_one(usage: &DeviceUse, starts: u64) -> Option<u64> {
    usage.worker_gpu_memory_max.or(usage.memory_gained_max.filter(|_| starts == 1)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_own_count_is_believed_first_and_the_loss_only_of_a_single_worker() {
        let counted =
            DeviceUse { worker_gpu_memory_max: Some(5), memory_gained_max: Some(9), ..DeviceUse::default() };
        assert_eq!(of_one(&counted, 3), Some(5));
        let lost = DeviceUse { worker_gpu_memory_max: None, ..counted };
        assert_eq!(of_one(&lost, 1), Some(9));
        assert_eq!(of_one(&lost, 2), None);
        assert_eq!(of_one(&DeviceUse { memory_gained_max: Some(0), ..lost }, 1), None);
    }
}
