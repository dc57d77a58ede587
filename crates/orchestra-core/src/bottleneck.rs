//! Which part of a run sets its pace, and what would change that, from how busy each part was. Measures nothing itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::compare_numbers;

/// A stage whose workers were busy for this share of the time held the others up.
const SATURATED: f64 = 0.8;
/// The part of the cores that has to be idle for more workers to be worth it, and the part of those that one keeps busy.
const WORTH_MORE: f64 = 0.2;
const WORTH_A_WORKER: f64 = 0.4;
/// Where so much of the cores was idle, they did not set the pace.
const IDLE: f64 = 0.3;

/// Where the time of a run went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TimeSpent<'a> {
    /// Since the first batch was done.
    pub time: Duration,
    pub cores: usize,
    /// Over all loaders: reading and decoding.
    pub loading: Duration,
    /// Over all loaders: waiting for a free row, because the models are behind.
    pub waiting_for_row: Duration,
    /// Over all loaders: waiting for items, because too much is in flight: the sinks are behind.
    pub waiting_for_sinks: Duration,
    pub stages: &'a [StageTime],
}

/// Where the time of a batch stage went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StageTime {
    /// Running batches, summed over its workers.
    pub running: Duration,
    pub workers: usize,
    /// Workers that it might have come to have by itself.
    pub most: usize,
    /// Cores that each keeps busy; 0 on a GPU.
    pub cores_each: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PaceSetter {
    pub bottleneck: Bottleneck,
    /// The stage that did, or that was the busiest, by its place.
    pub stage: Option<usize>,
    /// How busy its workers were, 0 to 1.
    pub busy: f64,
    /// The part of the cores that was idle, 0 to 1.
    pub cores_idle: f64,
    /// The stages, by their places, that have to have more workers for the run to be faster, and how many.
    pub workers: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Too little ran to tell.
    #[default]
    Unknown,
    Loading,
    Inference,
    /// Loading and models together keep every core busy (they share the CPU).
    Cpu,
    /// No part was busy all the time, so the time goes into handing batches over.
    Handover,
    Sinks,
}

impl TimeSpent<'_> {
    /// Judges a run.
    pub fn pace(&self) -> PaceSetter {
        let loaders = self.loading + self.waiting_for_row + self.waiting_for_sinks;
        let running: Duration = self.stages.iter().map(|stage| stage.running).sum();
        if self.time.is_zero() || loaders.is_zero() || (self.loading.is_zero() && running.is_zero()) {
            return PaceSetter::default();
        }
        let busiest = (0..self.stages.len()).max_by(|a, b| compare_numbers(self.busy(*a), self.busy(*b)));
        let busy = busiest.map_or(0.0, |stage| self.busy(stage));
        let left = self.cores_left();
        let cores_idle = left / self.cores.max(1) as f64;
        let pace =
            |bottleneck, stage| PaceSetter { bottleneck, stage, busy, cores_idle, workers: Vec::new() };
        if share(self.waiting_for_sinks, loaders) > 0.5 && busy < 0.5 {
            return pace(Bottleneck::Sinks, None);
        }
        let Some(stage) = busiest else { return pace(Bottleneck::Loading, None) };
        let cores_each = self.stages[stage].cores_each;
        if busy >= SATURATED && cores_each == 0 {
            return pace(Bottleneck::Inference, busiest);
        }
        if busy >= SATURATED && cores_idle >= WORTH_MORE && left >= WORTH_A_WORKER * cores_each as f64 {
            return PaceSetter { workers: self.more_workers(left), ..pace(Bottleneck::Inference, busiest) };
        }
        if cores_idle >= IDLE {
            return match share(self.loading, loaders) >= SATURATED {
                true => pace(Bottleneck::Loading, None),
                false => pace(Bottleneck::Handover, busiest),
            };
        }
        let on_cores = |stage: &&StageTime| stage.cores_each > 0;
        let running: Duration = self.stages.iter().filter(on_cores).map(StageTime::on_cores).sum();
        let most = (0..self.stages.len()).max_by_key(|stage| self.stages[*stage].on_cores());
        match () {
            () if self.loading > running * 2 => pace(Bottleneck::Loading, None),
            () if running > self.loading * 2 => {
                let busy = most.map_or(0.0, |stage| self.busy(stage));
                PaceSetter { busy, ..pace(Bottleneck::Inference, most) }
            }
            () => pace(Bottleneck::Cpu, None),
        }
    }

    /// What to give each saturated stage of the cores that are left; nothing where one of them can have no more, since that one sets the pace.
    fn more_workers(&self, left: f64) -> Vec<(usize, usize)> {
        let is_saturated =
            |stage: &usize| self.busy(*stage) >= SATURATED && self.stages[*stage].cores_each > 0;
        let saturated: Vec<usize> = (0..self.stages.len()).filter(is_saturated).collect();
        let more = |stage: &usize| {
            let StageTime { workers, most, cores_each, .. } = self.stages[*stage];
            let more = (left / saturated.len() as f64 / cores_each as f64).round().max(1.0) as usize;
            let more = more.min((self.cores / cores_each).saturating_sub(workers));
            // One that might have had more by itself was refused them, for want of memory most likely.
            (more > 0 && workers >= most).then_some((*stage, workers + more))
        };
        saturated.iter().map(more).collect::<Option<_>>().unwrap_or_default()
    }

    /// How busy the workers of a stage were, 0 to 1.
    fn busy(&self, stage: usize) -> f64 {
        let StageTime { running, workers, .. } = self.stages[stage];
        (share(running, self.time) / workers.max(1) as f64).min(1.0)
    }

    /// Cores that nothing ran on, on average.
    fn cores_left(&self) -> f64 {
        let all = self.loading + self.stages.iter().map(StageTime::on_cores).sum::<Duration>();
        (self.cores as f64 - share(all, self.time)).max(0.0)
    }
}

impl StageTime {
    fn on_cores(&self) -> Duration {
        self.running * u32::try_from(self.cores_each).unwrap_or(u32::MAX)
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

#[cfg(test)]
#[path = "bottleneck_tests.rs"]
mod tests;
