//! The end of a worker: how the death of its process reaches the batcher and the manager, whatever becomes of its link. It decides nothing
//! about what the worker held.

use std::panic::{AssertUnwindSafe, catch_unwind};

use orchestra_core::worker_exit::ExitKind;
use orchestra_core::{DeviceKind, WorkerExit};

use crate::events::WorkerEvent;
use crate::fleet::link_start::LinkArgs;
use crate::fleet::worker_port::WorkerPort;
use crate::fleet::worker_process::ProcessEvent;
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg, WorkerEnd};
use crate::trace::WorkerStep;

impl LinkArgs {
    /// Reports that the process is gone: to the batcher first, which deals with what it held and then tells the manager.
    pub fn ended(&self, port: &WorkerPort, exit: WorkerExit, last_words: String) {
        let worker = self.worker;
        self.context.stats.device(self.device).exits(ExitKind::of(&exit)).add(1);
        self.context.stats.workers.gone(worker);
        self.context.tell(|| WorkerEvent::Ended { worker, exit: exit.clone() });
        self.trace(|| WorkerStep::Ended { exit: exit.clone(), last_words: last_words.clone() });
        let (progressed, begun) = {
            let traffic = port.traffic();
            (traffic.batches > 0, traffic.unanswered.begun().collect())
        };
        let end = WorkerEnd { worker, exit, last_words, progressed, bisecting: false };
        let manager = self.manager.clone();
        if self.serve.batcher.cast(BatcherMsg::WorkerLost { end: end.clone(), manager, begun }).is_err() {
            // The stage is gone; the manager must still learn that the process is.
            drop(self.manager.cast(DeviceMsg::WorkerEnded(end)));
        }
    }

    /// The process outlives its SIGKILL: its stage ends, and neither batcher nor manager waits for it any more.
    fn undying(&self, pid: Option<u32>, state: char) {
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

/// Carries what happens to the process to its port and, past it, to its link; should that be gone, the death still reaches the batcher.
pub fn report(port: &WorkerPort, event: ProcessEvent) {
    let worker = port.args.worker;
    match event {
        // A link that is gone has killed its process, so its frames need no reader.
        ProcessEvent::Frame(frame) => match catch_unwind(AssertUnwindSafe(|| port.hear(frame))) {
            Ok(Some(frame)) => drop(port.link.cast(LinkMsg::Process(ProcessEvent::Frame(frame)))),
            Ok(None) => {}
            Err(_) => {
                // It ends the worker and not us: we have its death to report.
                tracing::error!(%worker, "a panic over a frame of a worker, which is replaced; this is a bug");
                port.traffic().is_believed = false;
                drop(port.link.cast(LinkMsg::Kill(WorkerExit::Clean)));
            }
        },
        ProcessEvent::Undying { pid, state } => {
            port.args.undying(pid, state);
            drop(port.link.cast(LinkMsg::Process(event)));
        }
        ProcessEvent::Garbled(_) => drop(port.link.cast(LinkMsg::Process(event))),
        ProcessEvent::Exited { exit, last_words } => {
            let (e, words) = (exit.clone(), last_words.clone());
            if port.link.cast(LinkMsg::Process(ProcessEvent::Exited { exit: e, last_words: words })).is_err()
            {
                port.args.ended(port, exit, last_words);
            }
        }
    }
}
