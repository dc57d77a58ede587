//! Metrics of tasks on their way from keepers to reports: they become records and reports. It reads no line and decides nothing.

use std::collections::BTreeMap;

use orchestra_keeper::{MetricOrder, MetricValues};
use orchestra_plan::{TaskMetric, TaskPlan};
use orchestra_store::TaskMetricRecord;
use serde::{Deserialize, Deserializer, Serialize};

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
pub fn order(task: &TaskPlan) -> Vec<MetricOrder> {
    let metric = |metric: &TaskMetric| MetricOrder { name: metric.name.clone(), regex: metric.regex.clone() };
    task.metrics.iter().map(metric).collect()
}

/// What a keeper has read of the metrics of its task. Their names count: the file may have been edited since the command was started.
pub fn named(task: &TaskPlan, read: &[MetricValues]) -> Vec<TaskMetricRecord> {
    let of_metric = |metric: &TaskMetric| {
        let MetricValues { name, count, last, min, max } =
            read.iter().find(|read| read.name == metric.name)?.clone();
        Some(TaskMetricRecord { name, count, last, min, max })
    };
    task.metrics.iter().filter_map(of_metric).collect()
}
