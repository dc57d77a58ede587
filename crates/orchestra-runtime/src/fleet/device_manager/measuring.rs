//! The part of a device manager that has the memory of its GPU measured, and starts more workers where they fit
//! (`orchestra_core::memory_survey`). It looks at no GPU itself.

use orchestra_core::memory_survey::{Candidate, Reading, Step, Survey};
use orchestra_core::worker_places::Handover;
use orchestra_core::{DeviceId, StageId};
use orchestra_machine::Gpu;
use orchestra_plan::{BatchPlan, Growth, Plan, WorkerMemory, WorkerPlan};
use ractor::ActorRef;

use super::DeviceState;
use crate::context::RunContext;
use crate::fleet::worker_memory;
use crate::messages::DeviceMsg;
use crate::trace::{DeviceStep, DeviceTrace};

fn served_on(plan: &Plan, device: DeviceId) -> impl Iterator<Item = (StageId, &BatchPlan, &WorkerPlan)> {
    plan.batch_stages().filter_map(move |(stage, batch)| {
        let workers = batch.workers.iter().find(|w| w.device == device && w.count > 0)?;
        Some((stage, batch, workers))
    })
}

/// What is to be found out about a device; `None` where everything is known, or there is no probe.
pub(super) fn survey_of(context: &RunContext, device: DeviceId) -> Option<Survey> {
    let plan = &context.plan;
    let memory = plan.devices.get(device.index())?.memory?;
    context.options.devices.probe.as_ref()?;
    let candidates: Vec<Candidate> = served_on(plan, device)
        .map(|(stage, batch, workers)| Candidate {
            stage,
            at_first: workers.count,
            most: workers.most(),
            is_asked: workers.growth.is_some_and(|growth| growth.is_asked),
            each: workers.memory.map(WorkerMemory::bytes),
            priority: batch.priority,
        })
        .collect();
    let most = match memory.of_shares {
        0 => u64::MAX,
        bytes => memory.free.saturating_sub(memory.headroom).saturating_sub(bytes),
    };
    candidates.iter().any(|c| c.each.is_none()).then(|| Survey::new(candidates, memory.headroom, most))
}

/// Workers that a stage is to have beside the first ones, because the file asks for them and nothing can be measured.
pub(super) fn asked_for_later(context: &RunContext, device: DeviceId, stage: StageId) -> usize {
    let workers = served_on(&context.plan, device).find(|(s, ..)| *s == stage).map(|(_, _, workers)| workers);
    match workers.map(|w| (w.count, w.growth)) {
        Some((count, Some(Growth { most, is_asked: true }))) => most.saturating_sub(count),
        _ => 0,
    }
}

fn reading(gpu: &Gpu) -> Reading {
    Reading {
        used: gpu.memory_used(),
        free: gpu.memory_free,
        processes: gpu.processes.iter().map(|p| (p.pid, p.memory)).collect(),
    }
}

impl DeviceState {
    /// The device was looked at because we asked for it.
    pub(super) fn looked(&mut self, number: u64, seen: Option<&Gpu>) {
        let now = self.args.context.clock.now();
        if let Some(survey) = &mut self.survey {
            survey.looked(number, seen.map(reading), now);
        }
    }

    /// The stage is over, or has no place left here: no batcher waits for it.
    pub(super) fn leave_survey(&mut self, stage: StageId) {
        if let Some(survey) = &mut self.survey {
            survey.gone(stage);
        }
    }

    /// Does what is to be done next to find out what workers take.
    pub(super) async fn go_on_with_survey(&mut self, me: &ActorRef<DeviceMsg>) {
        loop {
            let now = self.args.context.clock.now();
            let Some(survey) = self.survey.as_mut().filter(|_| !self.shutting_down) else { return };
            let steps = survey.next(now);
            if steps.is_empty() {
                return;
            }
            for step in steps {
                self.take(me, step).await;
            }
        }
    }

    async fn take(&mut self, me: &ActorRef<DeviceMsg>, step: Step) {
        match step {
            Step::Look(number) => {
                let me = me.clone();
                let tell = move |seen: Option<Gpu>| {
                    // A manager that is gone has no use for it.
                    drop(me.cast(DeviceMsg::Looked { number, seen: seen.map(Box::new) }));
                };
                self.args.context.watch.ask(self.args.device, tell);
            }
            Step::LookAfter(pause) => drop(me.send_after(pause, || DeviceMsg::GoOn)),
            Step::Begin(stage) => self.begin(me, stage).await,
            Step::Measured { stage, each } => {
                worker_memory::measured(&self.args.context, self.args.device, stage, each);
                self.trace_device(|| DeviceStep::Measured { stage, bytes: each });
            }
            Step::NotMeasured { stage, why } => {
                let (context, device) = (&self.args.context, self.args.device);
                tracing::warn!(
                    stage = %context.plan.stages[stage.index()].name, device = %context.plan.devices[device.index()].spec, %why,
                    "what a worker takes of the GPU cannot be measured; `memory` of the model says it"
                );
                self.trace_device(|| DeviceStep::NotMeasured { stage, why: why.to_string() });
            }
            Step::Grow { stage, more } => self.grow(me, stage, more).await,
        }
    }

    pub(super) async fn grow(&mut self, me: &ActorRef<DeviceMsg>, stage: StageId, more: usize) {
        let Some(post) = self.open_post(stage).filter(|_| more > 0) else { return };
        let device = &self.args.context.plan.devices[self.args.device.index()].spec;
        if let Some(serve) = &self.posts[post].serve {
            tracing::info!(pipeline = %serve.pipeline, stage = %serve.name, %device, more, "more workers are started");
        }
        self.stats().added.add(more as u64);
        self.trace_device(|| DeviceStep::WorkersAdded { stage, more });
        let orders = self.posts[post].worker_places.grow(more);
        self.carry_out(me, post, orders).await;
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
        let of_survey = |stage| self.survey.as_ref().and_then(|survey| survey.each(stage));
        let each = |stage, workers: &WorkerPlan| workers.memory.map(WorkerMemory::bytes).or(of_survey(stage));
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
