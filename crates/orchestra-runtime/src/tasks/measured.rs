//! Metrics of tasks on their way from keepers to reports: names are given to values, and tables their curves. It reads no line and decides nothing.

use std::collections::{BTreeMap, HashMap};

use orchestra_core::tasks::Trials;
use orchestra_keeper::{CurveOrder, MetricOrder, Metrics, MetricsOrder};
use orchestra_plan::{TaskMetric, TaskPlan, TasksPlan};
use orchestra_store::TaskMetricRecord;
use serde::{Deserialize, Deserializer, Serialize};

use crate::tasks::earlier::KnownTask;

/// A metric of a task in `run.json`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MetricReport {
    /// The last value; `null` where it was no number.
    #[serde(deserialize_with = "number")]
    pub last: f64,
    /// The least.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// How many values.
    pub count: u64,
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// By their names.
pub type MetricReports = BTreeMap<String, MetricReport>;

pub fn reports(metrics: &[TaskMetricRecord]) -> MetricReports {
    let report = |metric: &TaskMetricRecord| {
        let TaskMetricRecord { name, last, min, max, count } = metric.clone();
        (name, MetricReport { last, min, max, count })
    };
    metrics.iter().map(report).collect()
}

/// What the keeper of a task is to read.
pub fn order(task: &TaskPlan) -> MetricsOrder {
    let metric = |metric: &TaskMetric| MetricOrder { name: metric.name.clone(), regex: metric.regex.clone() };
    let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let rule = task.stop_early.zip(task.best);
    let curve =
        rule.map(|(rule, best)| CurveOrder { metric: place(best.metric), step: rule.step.map(place) });
    MetricsOrder { metrics: task.metrics.iter().map(metric).collect(), curve }
}

/// What a keeper has read of the metrics of its task. Their names count: the file may have been edited since the command was started.
pub fn named(task: &TaskPlan, metrics: &Metrics) -> Vec<TaskMetricRecord> {
    let read = |metric: &TaskMetric| {
        let at = metrics.order.metrics.iter().position(|read| read.name == metric.name)?;
        let orchestra_keeper::MetricValues { count, last, min, max } = (*metrics.values.get(at)?)?;
        Some(TaskMetricRecord { name: metric.name.clone(), count, last, min, max })
    };
    task.metrics.iter().filter_map(read).collect()
}

/// The curve of the metric by which the task is compared; none where the keeper was told of another one, or of other steps.
pub fn curve<'a>(task: &TaskPlan, metrics: &'a Metrics) -> &'a [(f64, f64)] {
    let name = |of: &MetricsOrder, at: u32| of.metrics.get(at as usize).map(|metric| metric.name.clone());
    let names = |of: &MetricsOrder| {
        let curve = of.curve.as_ref()?;
        Some((name(of, curve.metric), curve.step.map(|step| name(of, step))))
    };
    if names(&metrics.order) == names(&order(task)) { &metrics.curve } else { &[] }
}

/// The curves of each table with `stop_early`. A curve of another command, or of other inputs, says nothing of what runs now.
pub fn trials(plan: &TasksPlan, known: &[KnownTask]) -> HashMap<String, Trials> {
    let mut tables: HashMap<String, Trials> = HashMap::new();
    for (at, (task, known)) in plan.tasks.iter().zip(known).enumerate() {
        let Some((rule, best)) = task.stop_early.zip(task.best) else { continue };
        let trials = tables.entry(task.name.clone()).or_insert_with(|| Trials::new(rule, best.goal));
        if let Some(ended) = known.ended.as_ref().filter(|_| known.is_same) {
            trials.know(at, ended.curve.clone());
        }
    }
    tables
}
