//! What a stage has done so far, as a status says it: by its counters alone.

use std::collections::BTreeMap;

use orchestra_core::batching::LeaveReason;
use orchestra_plan::StagePlan;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::account::histogram::Histogram;
use crate::account::pace::workers;
use crate::account::stats::StageStats;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageStatus {
    #[serde(skip)]
    pub name: String,
    #[serde(rename = "in")]
    pub entered: u64,
    /// Items that left it with a result.
    pub out: u64,
    pub failed: u64,
    /// Seconds that threads or workers spent on it.
    pub seconds_busy: f64,
    /// Workers that the plan gave it, and those that were added in the run; 0 for a stage that runs in none.
    pub workers: u64,
    /// Of a stage that runs in workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batches: Option<BatchStatus>,
}

/// The batches of a stage. Counts are by bucket: up to each of [`crate::BATCH_SIZES`] or [`crate::TIMES`], then all above; buckets of 0 at the end are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchStatus {
    /// Batches by the items in them.
    pub sizes: Vec<u64>,
    /// Why they left; reasons without a batch are left out.
    pub reasons: BTreeMap<String, u64>,
    /// How long the oldest item of each waited for it to leave.
    pub queue_times: Vec<u64>,
    /// How long a worker had each.
    pub run_times: Vec<u64>,
    /// Batch slots that are taken now: batches that are filled, wait or run.
    pub slots_in_use: u64,
}

impl StageStatus {
    pub(super) fn of((plan, stats): (&StagePlan, &StageStats)) -> Self {
        Self {
            name: plan.name.clone(),
            entered: stats.entered.get(),
            out: stats.left.get(),
            failed: stats.failed.get(),
            seconds_busy: stats.busy.time().as_secs_f64(),
            workers: workers(plan, stats),
            batches: plan.batch().map(|_| BatchStatus::of(stats)),
        }
    }
}

impl BatchStatus {
    fn of(stats: &StageStats) -> Self {
        let reasons = LeaveReason::ALL.map(|reason| (reason.as_str().to_owned(), stats.reason(reason).get()));
        Self {
            sizes: counts(stats.batch_size.iter()),
            reasons: reasons.into_iter().filter(|(_, n)| *n > 0).collect(),
            queue_times: counts(stats.queue_time.iter()),
            run_times: counts(stats.on.iter().map(|on| &on.run_time)),
            slots_in_use: stats.slots_in_use.get(),
        }
    }
}

/// The sum of histograms with the same bounds.
fn counts<'a>(of: impl Iterator<Item = &'a Histogram>) -> Vec<u64> {
    let mut sum = Vec::new();
    for histogram in of {
        let counts = histogram.read().counts;
        sum.resize(counts.len().max(sum.len()), 0);
        sum.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    sum.truncate(sum.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1));
    sum
}

pub(super) fn by_name<S: Serializer>(stages: &[StageStatus], to: S) -> Result<S::Ok, S::Error> {
    stages.iter().map(|stage| (&stage.name, stage)).collect::<BTreeMap<_, _>>().serialize(to)
}

/// They come in the order of their names: that of the plan is not written.
pub(super) fn from_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<StageStatus>, D::Error> {
    let named = BTreeMap::<String, StageStatus>::deserialize(from)?;
    Ok(named.into_iter().map(|(name, stage)| StageStatus { name, ..stage }).collect())
}
