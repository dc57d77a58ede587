//! The part of a device manager that gives a stage other workers where there is no memory for both: one place after the other, so that the rest serve.
//! Where a new one cannot be loaded, the stage keeps what it had. It starts no worker itself.

use std::sync::Arc;

use orchestra_core::WorkerId;
use orchestra_core::worker_places::Handover;
use ractor::ActorRef;

use super::{DeviceState, ManagedWorker, ServedStage};
use crate::fleet::worker::WorkerOrder;
use crate::messages::{DeviceMsg, Replacement, ReplacementEnds, ServeStage, WorkerEnd};

pub(super) struct ReplacementUnderWay {
    /// What its workers were before.
    before: Arc<ServeStage>,
    ended: ReplacementEnds,
}

impl DeviceState {
    pub(super) fn replace(&mut self, replacement: Replacement) {
        let Replacement { stage, engine, load, ended } = replacement;
        let tell = |end| drop(ended.send(end)); // Nobody waits any more.
        let at = self.open_stage(stage).filter(|_| self.held.is_none() && !self.shutting_down);
        let Some((at, before)) = at.and_then(|at| Some((at, self.served[at].serve.clone()?))) else {
            return tell(Err("it has no workers that could be replaced".to_owned()));
        };
        if Arc::ptr_eq(&before.engine, &engine) {
            return tell(Ok(()));
        }
        let served = &mut self.served[at];
        served.serve = Some(Arc::new(before.with_engine(engine, load)));
        served.replacement = Some(ReplacementUnderWay { before, ended });
    }

    /// Workers that were started with something else than their stage has now make way.
    pub(super) fn go_on_with_replacements(&mut self, me: &ActorRef<DeviceMsg>) {
        for at in 0..self.served.len() {
            let Some(serve) = self.served[at].serve.clone() else { continue };
            let is_old = |worker: &ManagedWorker| worker.at == at && !Arc::ptr_eq(&worker.serve, &serve);
            let old = self.workers.iter().filter(|(_, worker)| is_old(worker));
            let mut old: Vec<(WorkerId, bool)> =
                old.map(|(id, worker)| (*id, worker.ready_since.is_some())).collect();
            old.sort_unstable();
            for (worker, is_ready) in &old {
                if *is_ready {
                    let orders = self.served[at].worker_places.recycle(*worker, Handover::OldFirst);
                    self.carry_out(me, at, orders);
                } else if let Some(loads) = self.workers.get(worker) {
                    loads.orders.give(WorkerOrder::Retire);
                }
            }
            let ServedStage { worker_places, replacement, .. } = &mut self.served[at];
            if old.is_empty()
                && worker_places.is_served()
                && let Some(ReplacementUnderWay { ended, .. }) = replacement.take()
            {
                drop(ended.send(Ok(())));
            }
        }
    }

    /// Whether the worker was one of a replacement, and has ended because it cannot be loaded. Then its place, and all others, get what they had.
    pub(super) fn refuses_replacement(&mut self, gone: &ManagedWorker, end: &WorkerEnd) -> bool {
        let ServedStage { serve, worker_places, replacement, .. } = &mut self.served[gone.at];
        let is_new = serve.as_ref().is_some_and(|serve| Arc::ptr_eq(serve, &gone.serve));
        let cannot_load = is_new && gone.ready_since.is_none() && end.exit.is_of_load();
        let Some(ReplacementUnderWay { before, ended }) = replacement.take_if(|_| cannot_load) else {
            return false;
        };
        tracing::warn!(
            stage = %before.name, why = %end, "a worker of the replacement cannot be loaded: the stage keeps what it had"
        );
        *serve = Some(before);
        worker_places.keep_all();
        drop(ended.send(Err(end.to_string())));
        true
    }
}
