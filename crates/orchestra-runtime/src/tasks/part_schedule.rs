//! What tasks wait for beside other tasks: pipelines, devices of models, and the first part of a run. It makes the schedule of a part, and starts nothing.
//!
//! Behind the tasks of the plan the schedule has a task that is held for each pipeline, and one for pipelines that this plan has not got.

use std::collections::BTreeMap;

use orchestra_core::tasks::{Demand, Gpus, Retries, Schedule, TaskSpec, with_earlier};
use orchestra_core::{DeviceId, DeviceKind, PipelineId};
use orchestra_plan::{Plan, SinkPlan, TaskPlan};

use crate::context::RunContext;
use crate::tasks::earlier::KnownTask;

pub fn schedule(context: &RunContext, known: &[KnownTask]) -> Schedule {
    let plan = &context.plan;
    let tasks = &plan.tasks.tasks;
    let of_part = context.planned_next().map(|next| {
        let of_best = plan.tasks.best.iter().filter(|best| next.best.contains(&best.name));
        let alone = (0..tasks.len()).filter(|task| next.tasks.contains(&tasks[*task].id));
        let used = alone.chain(of_best.flat_map(|best| best.tasks.iter().copied()));
        with_earlier(used, |task| &tasks[task].after)
    });
    let spec = |(at, (task, known)): (usize, (&TaskPlan, &KnownTask))| TaskSpec {
        after: task.after.iter().copied().chain(pipelines_before(plan, task)).collect(),
        may_fail: task.may_fail.clone(),
        demand: task.demand,
        retries: task.retries,
        attempts_before: known.attempts,
        is_done: known.is_done,
        is_held: of_part.as_ref().is_some_and(|of_part| !of_part.contains(&at)),
    };
    let pipeline = TaskSpec {
        after: Vec::new(),
        may_fail: Vec::new(),
        demand: Demand { gpus: Gpus::None, gpu_memory: 0, cpu: 0, cores: 0, priority: 0, after_loss: false },
        retries: Retries::default(),
        attempts_before: 0,
        is_done: false,
        is_held: true,
    };
    let pipelines = std::iter::repeat_n(pipeline, plan.pipelines.len() + 1);
    let specs = tasks.iter().zip(known).enumerate().map(spec).chain(pipelines).collect();
    let mut schedule = Schedule::new(specs, plan.tasks.leases());
    let priority = plan.batch_stages().map(|(_, batch)| batch.priority).max().unwrap_or_default();
    schedule.leases().await_models(priority, of_models(context).into_values());
    schedule
}

/// The devices of models that commands use, too, each with what it is for commands: a place among their GPUs, or 0, the CPU, where they have none.
pub fn of_models(context: &RunContext) -> BTreeMap<DeviceId, usize> {
    let plan = &context.plan;
    if context.options.tasks_only || context.options.keepers.is_none() || plan.tasks.is_empty() {
        return BTreeMap::new();
    }
    let place = |device: DeviceId| {
        let spec = &plan.devices[device.index()].spec;
        match plan.tasks.gpus.is_empty() {
            true => (spec.kind == DeviceKind::Cpu).then_some(0),
            false => plan.tasks.gpus.iter().position(|gpu| gpu.name == spec.name),
        }
    };
    let used = plan.batch_stages().flat_map(|(_, batch)| &batch.workers).map(|workers| workers.device);
    used.filter_map(|device| Some((device, place(device)?))).collect()
}

/// The place of a pipeline in the schedule; `None`: those that the plan has not got.
pub fn place_of(plan: &Plan, pipeline: Option<PipelineId>) -> usize {
    plan.tasks.tasks.len() + pipeline.map_or(plan.pipelines.len(), PipelineId::index)
}

/// The pipelines that end before the task begins, by their places in the schedule.
fn pipelines_before(plan: &Plan, task: &TaskPlan) -> Vec<usize> {
    let mut places: Vec<usize> = Vec::new();
    for sink in &task.after_sinks {
        match plan.sinks.iter().find(|known| known.name == *sink) {
            Some(sink) => places.extend(pipelines_of(plan, sink).map(|id| place_of(plan, Some(id)))),
            None => places.push(place_of(plan, None)),
        }
    }
    places.sort_unstable();
    places.dedup();
    places
}

/// The pipelines that write to a sink: all of them where it is of failures.
pub fn pipelines_of<'a>(plan: &'a Plan, sink: &'a SinkPlan) -> impl Iterator<Item = PipelineId> + 'a {
    let all = (0..).map(PipelineId).take(plan.pipelines.len());
    all.filter(|id| sink.is_of_failures || sink.pipeline == *id)
}
