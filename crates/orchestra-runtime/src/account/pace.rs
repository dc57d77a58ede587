//! What set the pace of a run, from its counters. What follows from them, `orchestra_core::bottleneck` decides.

use std::time::Duration;

use orchestra_core::bottleneck::{Bottleneck, PaceSetter, StageTime, TimeSpent};
use orchestra_plan::{StagePlan, WorkerPlan};
use serde::{Deserialize, Serialize};

use crate::account::stats::StageStats;
use crate::context::RunContext;

/// How the busiest stage set the pace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StagePace {
    pub stage: String,
    pub workers: u64,
    /// How busy they were, 0 to 1.
    pub busy: f64,
    /// The part of the cores that was idle, 0 to 1.
    pub cores_idle: f64,
    /// Settings that make the run faster, as `--set` takes them, where they are known.
    pub set: Vec<String>,
}

/// Workers that the plan gave a stage, and those that were added in the run.
pub(super) fn workers(plan: &StagePlan, stats: &StageStats) -> u64 {
    let planned = plan.batch().map_or(0, |batch| batch.workers.iter().map(|w| w.count as u64).sum());
    planned + stats.added.get()
}

/// What sets the pace: the part, and the stage that does, or is the busiest.
pub(super) fn pace(context: &RunContext, elapsed: Duration) -> (Bottleneck, Option<StagePace>) {
    let (plan, stats) = (&context.plan, &context.stats);
    let stages: Vec<(usize, StageTime)> = plan
        .batch_stages()
        .map(|(id, batch)| {
            let stats = stats.stage(id);
            let on_cpu = batch.workers.iter().find(|w| plan.devices[w.device.index()].cores > 0);
            let time = StageTime {
                running: stats.busy.time(),
                workers: workers(&plan.stages[id.index()], stats) as usize,
                most: batch.workers.iter().map(WorkerPlan::most).sum(),
                cores_each: on_cpu.map_or(0, |w| w.threads + batch.streams - 1),
            };
            (id.index(), time)
        })
        .collect();
    let times: Vec<StageTime> = stages.iter().map(|(_, time)| *time).collect();
    let spent = TimeSpent {
        time: elapsed.saturating_sub(stats.first_batch.time()),
        cores: context.cores,
        loading: stats.loading.time(),
        waiting_for_row: stats.waiting_for_row.time(),
        waiting_for_sinks: stats.waiting_for_sinks.time(),
        stages: &times,
    };
    let PaceSetter { bottleneck, stage, busy, cores_idle, workers } = spent.pace();
    let table = |at: usize| {
        let stage = &plan.stages[stages[at].0];
        let model = stage.batch().map(|batch| &plan.models[batch.model.index()]);
        match model.filter(|model| model.code.is_none()) {
            Some(model) => format!("models.{}", model.name),
            None => format!("stages.{}", stage.name),
        }
    };
    let of_stage = stage.map(|at| StagePace {
        stage: plan.stages[stages[at].0].name.clone(),
        workers: stages[at].1.workers as u64,
        busy,
        cores_idle,
        set: workers.into_iter().map(|(at, n)| format!("{}.workers={n}", table(at))).collect(),
    });
    (bottleneck, of_stage)
}
