//! The engine of a batch stage, as far as the runtime knows it: it starts worker processes and makes the bytes that they load. Which engine it
//! is, and what it needs of the machine, is known to the program that starts the run.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use orchestra_core::{DeviceKind, StageId};
use orchestra_plan::BatchPlan;
use orchestra_worker::frames::Load;

use crate::fleet::launcher::Launched;

/// Runs the batches of one stage in worker processes.
pub trait EngineSpec: Send + Sync {
    /// Starts one worker for a device over the arena `arena`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// There is no process. The device manager tries again, as its restart policy says.
    fn launch(&self, device: &DeviceKind, arena: BorrowedFd<'_>) -> io::Result<Launched>;

    /// What a worker on `device` has to load: [`Load::spec`], which its engine alone reads.
    ///
    /// # Errors
    /// It cannot be encoded; the text is for the user. The stage counts as one without a device.
    fn spec(&self, device: &DeviceKind) -> Result<Vec<u8>, String>;
}

/// The engines of a plan: one for each of its batch stages.
pub type Engines = BTreeMap<StageId, Arc<dyn EngineSpec>>;

/// What a worker of a batch stage on `device` is told.
///
/// # Errors
/// As [`EngineSpec::spec`].
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
        max_batch: batch.max_batch,
        batch_sizes: batch.batch_sizes.clone(),
        pad: *device != DeviceKind::Cpu,
        layout: batch.layout.clone(),
    })
}
