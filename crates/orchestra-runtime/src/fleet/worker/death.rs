//! How the death of a worker is told: to the batcher first, which deals with what the worker held, and then to the manager, whatever becomes of the
//! batcher. It decides nothing about what the worker held.

use std::time::Duration;

use orchestra_core::worker_exit::ExitKind;
use orchestra_core::{BatchId, DeviceKind, WorkerExit};
use ractor::ActorRef;

use super::WorkerArgs;
use crate::events::WorkerEvent;
use crate::fleet::unanswered_runs::UnansweredRuns;
use crate::messages::{BatcherMsg, DeviceMsg, WorkerEnd};
use crate::trace::WorkerStep;

/// The death of a worker. Wherever this is dropped, by a panic as well, it goes on: to the batcher, and from there to the manager.
pub struct DeathNotice {
    pub end: WorkerEnd,
    pub(super) batches: u64,
    /// What it had begun of what it held, and since when each was among the next for it.
    pub begun: Vec<(BatchId, Duration)>,
    /// `None`: it has come there.
    batcher: Option<ActorRef<BatcherMsg>>,
    manager: ActorRef<DeviceMsg>,
}

impl DeathNotice {
    /// Of a worker that has begun its life.
    pub(super) fn of(args: &WorkerArgs) -> Self {
        let exit = WorkerExit::SpawnFailed("internal error; this is a bug".to_owned());
        let (worker, last_words) = (args.worker, String::new());
        let end = WorkerEnd { worker, exit, last_words, progressed: false, bisecting: false };
        let (batcher, manager) = (Some(args.serve.batcher.clone()), args.manager.clone());
        Self { end, batches: 0, begun: Vec::new(), batcher, manager }
    }
}

impl Drop for DeathNotice {
    fn drop(&mut self) {
        if let Some(batcher) = self.batcher.take() {
            let Self { end, batches, manager, .. } = self;
            let (end, batches, manager) = (end.clone(), *batches, manager.clone());
            let begun = std::mem::take(&mut self.begun);
            let notice = Self { end, batches, begun, batcher: None, manager };
            // Without a batcher this tells the manager.
            return drop(batcher.cast(BatcherMsg::WorkerLost(notice)));
        }
        // No manager, no restart: the run is ending.
        drop(self.manager.cast(DeviceMsg::WorkerEnded(self.end.clone())));
    }
}

impl WorkerArgs {
    /// The process is gone, or there never was one.
    pub(super) fn ended(
        &self,
        mut notice: DeathNotice,
        exit: WorkerExit,
        last_words: String,
        pid: Option<u32>,
        unanswered: &UnansweredRuns,
    ) {
        let Self { worker, serve, .. } = self;
        let (worker, device, batches) = (*worker, self.device_name(), notice.batches);
        if exit == WorkerExit::Clean {
            tracing::info!(
                pipeline = %serve.pipeline, stage = %serve.name, device, %worker, pid, batches, "worker ended"
            );
        } else {
            let last_words = Some(&last_words).filter(|words| !words.is_empty());
            tracing::warn!(
                pipeline = %serve.pipeline, stage = %serve.name, device, %worker, pid, %exit, batches,
                in_flight = unanswered.runs.len(), last_words, "worker lost"
            );
        }
        self.context.stats.device(self.device).exits(ExitKind::of(&exit)).add(1);
        self.context.stats.workers.gone(worker);
        self.context.tell(|| WorkerEvent::Ended { worker, exit: exit.clone() });
        self.trace(|| WorkerStep::Ended { exit: exit.clone(), last_words: last_words.clone() });
        notice.end = WorkerEnd { worker, exit, last_words, progressed: batches > 0, bisecting: false };
        notice.begun = unanswered.begun().collect();
        drop(notice);
    }

    /// The process outlives its SIGKILL: its stage ends, and neither batcher nor manager waits for it any more. Should it ever end, that is told.
    pub(super) fn undying(&self, pid: Option<u32>, state: char) {
        let device = &self.context.plan.devices[self.device.index()].spec;
        let worker = self.worker;
        let pid = pid.map_or("without an id".to_owned(), |pid| pid.to_string());
        let patience = self.context.options.timeouts.kill.as_secs();
        let (place, remedy) = match device.kind {
            DeviceKind::Cuda { .. } => (
                "most likely in the driver of its device",
                "reset the device (`nvidia-smi --gpu-reset`) or reboot",
            ),
            DeviceKind::Cpu => {
                ("most likely in a file system that does not answer", "see what it waits for, or reboot")
            }
        };
        let why = format!(
            "process {pid} of a worker on {device} did not end within {patience} s of SIGKILL (its state: {state}, as `ps` shows it), so it hangs in the \
             kernel, {place}; what it held is given to no other worker; {remedy}, and run the same \
             command again to go on"
        );
        tracing::error!(%worker, pid, %state, "a worker outlives its SIGKILL: {why}");
        // Without a batcher its stage is over, and the rows that it held have ended.
        drop(self.serve.batcher.cast(BatcherMsg::WorkerUndying(why)));
        drop(self.manager.cast(DeviceMsg::WorkerUndying(worker)));
    }
}
