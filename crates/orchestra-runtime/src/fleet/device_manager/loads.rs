//! The part of a device manager that loads one worker of a GPU after the other, and starts more where they fit
//! (`orchestra_core::load_order`). It looks at no GPU itself.

use orchestra_core::load_order::{LoadOrder, LoadStep, StageCandidate};
use orchestra_core::worker_places::Handover;
use orchestra_core::{DeviceId, StageId};
use orchestra_machine::Gpu;
use orchestra_plan::{BatchPlan, Plan, WorkerGrowth, WorkerPlan};
use ractor::ActorRef;

use super::DeviceState;
use crate::context::RunContext;
use crate::messages::DeviceMsg;
use crate::trace::{DeviceStep, DeviceTrace};

fn served_on(plan: &Plan, device: DeviceId) -> impl Iterator<Item = (StageId, &BatchPlan, &WorkerPlan)> {
    plan.batch_stages().filter_map(move |(stage, batch)| {
        let workers = batch.workers.iter().find(|w| w.device == device && w.count > 0)?;
        Some((stage, batch, workers))
    })
}

/// The workers of a stage on a device, and how many batches each runs at once.
pub(super) fn worker_plan(plan: &Plan, device: DeviceId, stage: StageId) -> Option<(usize, &WorkerPlan)> {
    served_on(plan, device).find(|(s, ..)| *s == stage).map(|(_, batch, workers)| (batch.streams, workers))
}

/// In which order the workers of a device load; `None` where the file declares what all of them take, or there is no probe.
pub(super) fn load_order(context: &RunContext, device: DeviceId) -> Option<LoadOrder> {
    let plan = &context.plan;
    let memory = plan.devices.get(device.index())?.memory?;
    context.options.devices.probe.as_ref()?;
    let candidates: Vec<StageCandidate> = served_on(plan, device)
        .map(|(stage, batch, workers)| StageCandidate {
            stage,
            at_first: workers.count,
            most: workers.most(),
            is_asked: workers.growth.is_some_and(|growth| growth.is_asked),
            declared: workers.memory,
            priority: batch.priority,
        })
        .collect();
    let reserve = memory.headroom.saturating_add(memory.of_shares);
    if candidates.iter().all(|candidate| candidate.declared.is_some()) {
        return None;
    }
    let is_later = |stage: &StageId| !plan.pipeline_of(*stage).after.is_empty();
    let later: Vec<StageId> = candidates.iter().map(|c| c.stage).filter(is_later).collect();
    let mut order = LoadOrder::new(candidates, reserve);
    // No worker waits for those of pipelines that start when others are complete.
    later.into_iter().for_each(|stage| order.complete(stage));
    Some(order)
}

/// Workers that a stage is to have beside the first ones, because the file asks for them and nothing can be measured.
pub(super) fn asked_for_later(context: &RunContext, device: DeviceId, stage: StageId) -> usize {
    match worker_plan(&context.plan, device, stage).map(|(_, w)| (w.count, w.growth)) {
        Some((count, Some(WorkerGrowth { most, is_asked: true }))) => most.saturating_sub(count),
        _ => 0,
    }
}

impl DeviceState {
    /// The device was looked at because we asked for it.
    pub(super) fn looked(&mut self, number: u64, free: Option<u64>) {
        if let Some(order) = &mut self.load_order {
            order.looked(number, free);
        }
    }

    /// The stage gets no more workers here: it is over, has no place left, or one more did not start.
    pub(super) fn is_complete(&mut self, stage: StageId) {
        if let Some(order) = &mut self.load_order {
            order.complete(stage);
        }
    }

    /// Starts what may be started now.
    pub(super) fn go_on_with_loads(&mut self, me: &ActorRef<DeviceMsg>) {
        loop {
            let now = self.args.context.clock.now();
            let is_settled =
                self.served.iter().filter(|p| p.serve.is_some()).all(|p| p.worker_places.is_served());
            let Some(order) = self.load_order.as_mut().filter(|_| !self.shutting_down) else { return };
            let steps = order.next(now, is_settled);
            if steps.is_empty() {
                return;
            }
            for step in steps {
                self.take(me, step);
            }
        }
    }

    fn take(&mut self, me: &ActorRef<DeviceMsg>, step: LoadStep) {
        match step {
            LoadStep::Look(number) => {
                let me = me.clone();
                let tell = move |seen: Option<Gpu>| {
                    let free = seen.map(|gpu| gpu.memory_free);
                    // A manager that is gone has no use for it.
                    drop(me.cast(DeviceMsg::Looked { number, free }));
                };
                self.args.context.watch.ask(self.args.device, tell);
            }
            LoadStep::WakeAfter(pause) => drop(me.send_after(pause, || DeviceMsg::GoOn)),
            LoadStep::Begin(stage) => self.begin(me, stage),
            LoadStep::Measured { stage, bytes } => self.measured(stage, bytes),
            LoadStep::Add(stage) => self.grow(me, stage, 1),
        }
    }

    fn measured(&self, stage: StageId, bytes: Option<u64>) {
        let (context, device) = (&self.args.context, self.args.device);
        let (name, spec) =
            (&context.plan.stages[stage.index()].name, &context.plan.devices[device.index()].spec);
        match bytes {
            Some(bytes) => {
                tracing::info!(stage = %name, device = %spec, bytes, "memory of a worker measured");
                if let Some(on) = context.stats.stage(stage).on(device) {
                    on.worker_bytes.set(bytes);
                }
                self.trace_device(|| DeviceStep::Measured { stage, bytes });
            }
            None => tracing::warn!(
                stage = %name, device = %spec,
                "the load of a worker does not show what it takes of the GPU; set `memory` of the model to start more"
            ),
        }
    }

    pub(super) fn grow(&mut self, me: &ActorRef<DeviceMsg>, stage: StageId, more: usize) {
        let Some(at) = self.open_stage(stage).filter(|_| more > 0) else { return };
        let device = &self.args.context.plan.devices[self.args.device.index()].spec;
        if let Some(serve) = &self.served[at].serve {
            tracing::info!(pipeline = %serve.pipeline, stage = %serve.name, %device, more, "more workers are started");
        }
        self.stats().added.add(more as u64);
        self.args.context.stats.stage(stage).added.add(more as u64);
        self.trace_device(|| DeviceStep::WorkersAdded { stage, more });
        let orders = self.served[at].worker_places.grow(more);
        self.carry_out(me, at, orders);
    }

    /// Tells the tracer what happened to the device, or was found out about it.
    pub(super) fn trace_device(&self, step: impl FnOnce() -> DeviceStep) {
        let (context, device) = (&self.args.context, self.args.device);
        if let Some(tracer) = context.tracer.get() {
            tracer.device(DeviceTrace { at: context.clock.now(), device, step: step() });
        }
    }

    /// Whether there is memory for a successor beside the worker whose place it is to take.
    pub(super) fn handover(&self, stage: StageId) -> Handover {
        let (context, device) = (&self.args.context, self.args.device);
        let Some(memory) = context.plan.devices[device.index()].memory else {
            return Handover::SuccessorFirst;
        };
        let measured = |stage| self.load_order.as_ref().and_then(|order| order.each(stage));
        let each = |stage, workers: &WorkerPlan| workers.memory.or(measured(stage));
        let taken = served_on(&context.plan, device).map(|(stage, _, workers)| {
            let processes = workers.count as u64;
            each(stage, workers).unwrap_or_default().saturating_mul(processes)
        });
        let free = match context.watch.latest(device) {
            Some(gpu) => gpu.memory_free,
            None => memory.free.saturating_sub(taken.fold(0, u64::saturating_add)),
        };
        let needed = served_on(&context.plan, device)
            .find(|(s, ..)| *s == stage)
            .and_then(|(stage, _, workers)| each(stage, workers));
        match needed {
            Some(needed) if free.saturating_sub(memory.headroom) < needed => Handover::OldFirst,
            _ => Handover::SuccessorFirst,
        }
    }
}
