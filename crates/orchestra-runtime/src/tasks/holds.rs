//! What tasks wait for beside other tasks: pipelines, GPUs of models, and the first part of a run. It makes the schedule of a part, and starts nothing.
//!
//! Behind the tasks of the plan the schedule has a task that is held for each pipeline, and one for pipelines that this plan has not got.

use orchestra_core::tasks::{Demand, Gpus, Retries, Schedule, TaskSpec, with_earlier};
use orchestra_core::{DeviceId, PipelineId};
use orchestra_plan::{Plan, SinkPlan, TaskPlan};

use crate::context::RunContext;
use crate::tasks::known::KnownTask;

pub fn schedule(context: &RunContext, known: &[KnownTask]) -> Schedule {
    let plan = &context.plan;
    let tasks = &plan.tasks.tasks;
    let of_part = context.is_first_part().then(|| {
        let is_used = |task: &TaskPlan| {
            let late = plan.late.as_ref();
            late.is_some_and(|late| late.tasks.contains(&task.id) || late.best.contains(&task.name))
        };
        let used = (0..tasks.len()).filter(|task| is_used(&tasks[*task]));
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
        demand: Demand { gpus: Gpus::None, gpu_memory: 0, cpu: 0, cores: 0 },
        retries: Retries::default(),
        attempts_before: 0,
        is_done: false,
        is_held: true,
    };
    let pipelines = std::iter::repeat_n(pipeline, plan.pipelines.len() + 1);
    let specs = tasks.iter().zip(known).enumerate().map(spec).chain(pipelines).collect();
    let mut schedule = Schedule::new(specs, plan.tasks.leases());
    let of_models = (0..).map(DeviceId).take(plan.devices.len());
    of_models.filter_map(|device| gpu_of(context, device)).for_each(|gpu| schedule.leases().share(gpu));
    schedule
}

/// The GPU that is this device of models, by its place among those of commands; `None` where no pipeline runs on it.
pub fn gpu_of(context: &RunContext, device: DeviceId) -> Option<usize> {
    let plan = &context.plan;
    if context.options.tasks_only || plan.pipelines.is_empty() {
        return None;
    }
    let name = &plan.devices[device.index()].spec.name;
    plan.tasks.gpus.iter().position(|gpu| gpu.name == *name)
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
