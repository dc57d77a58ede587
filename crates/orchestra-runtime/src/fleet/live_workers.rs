//! Which worker processes live, for programs that measure them from outside. It looks at no process and steers none.

use std::collections::BTreeMap;
use std::sync::Mutex;

use orchestra_core::{DeviceId, StageId, WorkerId, locked};

/// The worker processes of a run that live. Changed at the start and the end of a worker only.
#[derive(Debug, Default)]
pub struct LiveWorkers(Mutex<BTreeMap<WorkerId, LiveWorker>>);

/// A worker process that was started and is not known to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveWorker {
    pub worker: WorkerId,
    pub stage: StageId,
    pub device: DeviceId,
    pub pid: u32,
}

impl LiveWorkers {
    /// It was started. A worker that is no process has no number and is left out.
    pub fn started(&self, worker: WorkerId, stage: StageId, device: DeviceId, pid: Option<u32>) {
        if let Some(pid) = pid {
            locked(&self.0).insert(worker, LiveWorker { worker, stage, device, pid });
        }
    }

    /// Its process is gone. A second time changes nothing.
    pub fn gone(&self, worker: WorkerId) {
        locked(&self.0).remove(&worker);
    }

    /// Those that live now, by worker.
    pub fn all(&self) -> Vec<LiveWorker> {
        locked(&self.0).values().copied().collect()
    }
}
