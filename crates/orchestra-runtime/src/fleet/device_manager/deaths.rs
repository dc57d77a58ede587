//! What the death of a worker means for its place: another one, a pause before it, or none.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use orchestra_core::restart::Death;
use orchestra_core::worker_places::PlaceOrder;
use orchestra_core::{StageId, WorkerExit, WorkerId};
use ractor::ActorRef;

use super::{DeviceState, ManagedWorker, ServedStage};
use crate::messages::{BatcherMsg, DeviceMsg, WorkerEnd};
use crate::trace::WorkerStep;

impl DeviceState {
    pub(super) fn worker_ended(&mut self, me: &ActorRef<DeviceMsg>, end: &WorkerEnd) {
        let worker = end.worker;
        let Some(gone) = self.workers.remove(&worker) else { return };
        let at = gone.at;
        let ServedStage { stage, serve, .. } = &self.served[at];
        if let Some(order) = &mut self.load_order {
            order.moved(serve.is_some().then_some(*stage));
        }
        if self.shutting_down || serve.is_none() {
            return;
        }
        let exit = if self.refuses_replacement(&gone, end) { &WorkerExit::Clean } else { &end.exit };
        let jitter = jitter(&self.args.context.run_id, worker);
        let death = Death { exit, progressed: end.progressed, bisecting: end.bisecting, jitter };
        let now = self.args.context.clock.now();
        let healthy_time = self.healthy_time(self.served[at].stage, &gone, &end.exit, now);
        let worker_places = &mut self.served[at].worker_places;
        worker_places.add_healthy_time(healthy_time);
        let orders = worker_places.ended(worker, &death);
        orders.iter().for_each(|order| self.given_up(at, *order, end));
        self.carry_out(me, at, orders);
        // A place that is given up is none that has to be served.
        let ServedStage { stage, worker_places, serve, .. } = &self.served[at];
        let is_served = serve.is_some() && worker_places.is_served();
        if let Some(order) = self.load_order.as_mut().filter(|_| is_served) {
            order.loaded(*stage, false);
        }
    }

    /// How long a dead worker was loaded and unharmed: it may have spent one deadline on the batch that it died of.
    fn healthy_time(
        &self,
        stage: StageId,
        gone: &ManagedWorker,
        exit: &WorkerExit,
        now: Duration,
    ) -> Duration {
        match gone.ready_since {
            Some(since) if *exit != WorkerExit::Hung => {
                now.saturating_sub(since + self.args.context.plan.limits_of(stage).batch_timeout)
            }
            _ => Duration::ZERO,
        }
    }

    /// A place is given up; with the last place, the device is for this stage.
    fn given_up(&mut self, at: usize, order: PlaceOrder, end: &WorkerEnd) {
        let does_not_fit = end.exit.found_no_memory();
        let (left, what) = match order {
            PlaceOrder::Parked { left } => (left, "worker place parked"),
            PlaceOrder::Withdrawn { left } if does_not_fit => {
                (left, "a worker more does not fit after all; the others go on")
            }
            PlaceOrder::Withdrawn { left } => (left, "a worker more could not be started; the others go on"),
            _ => return,
        };
        let (context, id) = (&self.args.context, self.args.device);
        let Some(serve) = &self.served[at].serve else { return };
        let (device, why) = (&context.plan.devices[id.index()].spec, end.to_string());
        tracing::warn!(pipeline = %serve.pipeline, stage = %serve.name, %device, left, %why, "{what}");
        self.trace(at, end.worker, || WorkerStep::PlaceParked { left, why: why.clone() });
        match order {
            PlaceOrder::Withdrawn { .. } => {
                self.stats().added.sub(1);
                context.stats.stage(self.served[at].stage).added.sub(1);
            }
            PlaceOrder::Parked { left: 0 } => {
                context.lacks_memory.fetch_or(does_not_fit, Ordering::Relaxed);
                drop(serve.batcher.cast(BatcherMsg::DeviceGone { device: id, why }));
                self.served[at].serve = None;
            }
            _ => {}
        }
        self.served[at].is_refused = true;
        self.is_complete(self.served[at].stage);
    }
}

/// Uniform in 0.0..1.0. Other runs on the same machine have other ids; a run that is repeated in a test has the same.
fn jitter(run_id: &str, worker: WorkerId) -> f64 {
    let mut hasher = DefaultHasher::new();
    (run_id, worker.0).hash(&mut hasher);
    hasher.finish() as f64 / u64::MAX as f64
}
