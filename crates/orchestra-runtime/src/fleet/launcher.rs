//! What starts the workers of a batch stage, and what they are told. Of its engine the runtime knows no more than this.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use orchestra_core::{DeviceKind, StageId};
use orchestra_plan::BatchPlan;
use orchestra_worker::arena::SharedMemory;
use orchestra_worker::frames::Load;

use crate::child::spawn::{DropAction, Launched, ProcessLauncher};

/// Starts workers. Real ones are processes; tests have others.
pub trait Launcher: Send + Sync {
    /// Starts one worker for a device over `memory`, with the variables `env` that its engine needs. Must be called within a tokio runtime.
    fn launch(
        &self,
        device: &DeviceKind,
        env: &[(&str, &str)],
        memory: WorkerMemory<'_>,
    ) -> io::Result<Launched>;

    /// What starts loader processes; `None`: items are loaded in this process.
    fn loaders(&self) -> Option<ProcessLauncher> {
        None
    }
}

/// What a worker inherits: the inputs of its stage, which it can only read, and the outputs that are its own.
pub type WorkerMemory<'a> = SharedMemory<BorrowedFd<'a>>;

/// Runs the batches of one stage in worker processes.
pub trait EngineSpec: Send + Sync {
    /// Starts one worker for a device over `memory`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// There is no process. The device manager tries again, as its restart policy says.
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched>;

    /// What a worker on `device` has to load: [`Load::spec`], which its engine alone reads.
    ///
    /// # Errors
    /// It cannot be encoded; the text is for the user. The stage counts as one without a device.
    fn spec(&self, device: &DeviceKind) -> Result<Vec<u8>, String>;

    /// Whether its workers send heartbeats whatever they do. Where loading or running may keep a lock that the heartbeat needs, silence
    /// proves nothing meanwhile, and the deadline of the load or of the batch alone ends it.
    fn beats_while_busy(&self) -> bool {
        true
    }
}

/// The engines of a plan: one for each of its batch stages.
pub type Engines = BTreeMap<StageId, Arc<dyn EngineSpec>>;

/// What a worker of a batch stage on `device` is told.
pub fn load_frame(
    engine: &dyn EngineSpec,
    batch: &BatchPlan,
    device: &DeviceKind,
    threads: usize,
) -> Result<Load, String> {
    Ok(Load {
        spec: engine.spec(device)?,
        device: device.clone(),
        threads,
        streams: batch.streams,
        padded_to: batch.padded_to.filter(|_| *device != DeviceKind::Cpu),
        layout: batch.layout.clone(),
        answer_bytes: batch.answer_bytes,
    })
}

impl Launcher for ProcessLauncher {
    fn launch(
        &self,
        device: &DeviceKind,
        env: &[(&str, &str)],
        memory: WorkerMemory<'_>,
    ) -> io::Result<Launched> {
        let asked = env.iter().map(|(name, value)| (name.into(), value.into()));
        // Whatever else is asked for, a worker sees its own device.
        let device = orchestra_machine::worker_environment(device);
        let env = asked.chain(device.into_iter().map(|(name, value)| (name.into(), value.into())));
        let (ours, child) = self.spawn(env, [memory.inputs, memory.outputs], |_| ())?;
        Launched::of(ours, child, DropAction::Kill)
    }

    fn loaders(&self) -> Option<ProcessLauncher> {
        Some(self.clone())
    }
}
