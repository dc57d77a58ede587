//! What a worker is started with, and the start of its process.

use std::sync::Arc;

use orchestra_core::{DeviceId, WorkerExit, WorkerId};
use ractor::ActorRef;
use rustix::thread::{Pid, sched_setaffinity};

use crate::batch::output_slots::OutputSlots;
use crate::child::spawn::{Launched, cpu_set};
use crate::context::RunContext;
use crate::fleet::launcher::WorkerMemory;
use crate::messages::{DeviceMsg, ServeStage};
use crate::trace::WorkerStep;

pub struct WorkerArgs {
    pub context: Arc<RunContext>,
    pub worker: WorkerId,
    pub device: DeviceId,
    /// Whose place it takes.
    pub instead_of: Option<WorkerId>,
    pub serve: Arc<ServeStage>,
    pub manager: ActorRef<DeviceMsg>,
}

impl WorkerArgs {
    pub(super) fn device_name(&self) -> &str {
        &self.context.plan.devices[self.device.index()].spec.name
    }

    pub(super) fn trace(&self, step: impl FnOnce() -> WorkerStep) {
        self.context.trace_worker(self.worker, self.serve.stage, self.device, step);
    }

    /// Makes the memory for its outputs and starts the process, on the cores that are near to its device.
    pub(super) fn launch(&self) -> Result<(Launched, Arc<OutputSlots>), WorkerExit> {
        let context = &self.context;
        if let Some(why) = context.watch.lost(self.device) {
            return Err(WorkerExit::DeviceLost(why));
        }
        let device = &context.plan.devices[self.device.index()];
        let arena = &self.serve.pool.arena;
        let outputs = OutputSlots::create(self.worker, arena.layout().clone()).map_err(|error| {
            WorkerExit::SpawnFailed(format!("there is no shared memory for its outputs: {error}"))
        })?;
        let memory = WorkerMemory { inputs: arena.fd(), outputs: outputs.fd() };
        let launched = self.serve.engine.launch(&device.spec.kind, memory);
        let launched = launched.map_err(|error| WorkerExit::SpawnFailed(error.to_string()))?;
        let pid = launched.process.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        // It has not been told to load anything yet: the threads that matter will be where it is.
        if let (Some(near), Some(_)) = (&device.cpu_affinity, pid)
            && let Err(error) = sched_setaffinity(pid, &cpu_set(&near.cores))
        {
            tracing::warn!(device = %device.spec, node = near.node, %error, "a worker cannot be kept near its device");
        }
        Ok((launched, outputs))
    }
}
