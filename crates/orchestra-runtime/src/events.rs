//! What happens to workers, told to the hook of the run: the start, readiness, work and end of every worker process, and the loss of a device. Nothing is decided
//! here, and nothing in a run depends on who listens.

use std::sync::Arc;
use std::time::Duration;

use orchestra_core::{DeviceId, StageId, WorkerExit, WorkerId};

/// Something that happened to a worker, or to the device of several. Those of one worker come in the order `Started`, `Ready`, `BatchDone` (any number), `Ended`,
/// from whatever point its life was cut short; only the last one always comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// The process runs; it is not loaded yet.
    Started {
        worker: WorkerId,
        device: DeviceId,
        stage: StageId,
        /// Its process id; `None` if the launcher started no process.
        pid: Option<u32>,
    },
    /// It is loaded and warm, and serves at once.
    Ready {
        worker: WorkerId,
        /// Since the process was started.
        after: Duration,
    },
    BatchDone {
        worker: WorkerId,
        rows: usize,
    },
    /// Its process is gone and reaped; nothing of it can touch shared memory any more. Also told, alone, of a worker whose process could
    /// not be started.
    Ended {
        worker: WorkerId,
        exit: WorkerExit,
    },
    /// A device is not there any more. Each of its workers ends, and its work goes to other devices.
    DeviceLost {
        device: DeviceId,
        /// Why: what its driver said.
        why: String,
    },
}

/// Is told of every [`WorkerEvent`] of a run, right when it happens, by the actors. It must not block or take long: starts, deaths and
/// deadlines of workers wait for it. Several threads may call it at once. Its panics are logged, and the run goes on.
pub type EventHook = Arc<dyn Fn(&WorkerEvent) + Send + Sync>;
