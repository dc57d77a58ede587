//! Metrics of tasks on their way from keepers to reports: names are given to values, and tables their curves. It reads no line and decides nothing.

use std::collections::{BTreeMap, HashMap};

use orchestra_core::tasks::Trials;
use orchestra_keeper::{CurveOrder, MetricOrder, Metrics, MetricsOrder};
use orchestra_plan::{TaskMetric, TaskPlan, TasksPlan};
use orchestra_store::TaskMetricRecord;
use serde::Serialize;

use crate::tasks::known::KnownTask;

/// A metric of a task in `run.json`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MetricReport {
    /// The last value; `null` where it was no number.
    pub last: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many values.
    pub count: u64,
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
    let metric = |metric: &TaskMetric| match &metric.regex {
        Some(regex) => MetricOrder::Regex(regex.clone()),
        None => MetricOrder::Key(metric.name.clone()),
    };
    let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let rule = task.stop_early.zip(task.best);
    let curve =
        rule.map(|(rule, best)| CurveOrder { metric: place(best.metric), step: rule.step.map(place) });
    MetricsOrder { metrics: task.metrics.iter().map(metric).collect(), curve }
}

/// What a keeper has read, by the names that its task gives; what has no name is left out.
pub fn named(task: &TaskPlan, metrics: &Metrics) -> Vec<TaskMetricRecord> {
    let named = task.metrics.iter().zip(&metrics.values);
    let record = |(metric, values): (&TaskMetric, &Option<orchestra_keeper::MetricValues>)| {
        let orchestra_keeper::MetricValues { count, last, min, max } = (*values)?;
        Some(TaskMetricRecord { name: metric.name.clone(), count, last, min, max })
    };
    named.filter_map(record).collect()
}

/// The curves of each table with `stop_early`.
pub fn trials(plan: &TasksPlan, known: &[KnownTask]) -> HashMap<String, Trials> {
    let mut tables: HashMap<String, Trials> = HashMap::new();
    for (at, (task, known)) in plan.tasks.iter().zip(known).enumerate() {
        let Some((rule, best)) = task.stop_early.zip(task.best) else { continue };
        let trials = tables.entry(task.name.clone()).or_insert_with(|| Trials::new(rule, best.goal));
        if let Some(ended) = &known.ended {
            trials.know(at, ended.curve.clone());
        }
    }
    tables
}
