//! The curves of metrics that commands have printed: all settings of a table in one plot, each thinned to a bounded number of points.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;

use orchestra_core::compare_numbers;
use orchestra_launch::TaskReport;
use serde_json::Value;

/// Curves in one plot, and points of one.
const MOST_CURVES: usize = 40;
const MOST_POINTS: usize = 150;
const MOST_PLOTS: usize = 12;

/// A metric of the tasks of one table.
#[derive(Debug, Clone, Default)]
pub struct CurvePlot {
    pub table: String,
    pub metric: String,
    pub curves: Vec<TaskCurve>,
}

#[derive(Debug, Clone, Default)]
pub struct TaskCurve {
    pub task: String,
    pub is_best: bool,
    /// Step and value.
    pub points: Vec<(f64, f64)>,
}

/// The curves of the last attempt of each task. A file that cannot be read has none.
pub fn read(folder: &Path, tasks: &[Arc<TaskReport>], left_out: &mut Vec<String>) -> Vec<CurvePlot> {
    let mut plots: BTreeMap<(String, String), Vec<&TaskReport>> = BTreeMap::new();
    for task in tasks {
        let table = task.task.split('[').next().unwrap_or_default();
        for metric in task.metrics.keys().filter(|metric| *metric != "step") {
            plots.entry((table.to_owned(), metric.clone())).or_default().push(task);
        }
    }
    let mut read = Vec::new();
    for ((table, metric), mut tasks) in plots {
        if read.len() == MOST_PLOTS {
            left_out.push(format!("More than {MOST_PLOTS} metrics have curves; the others are left out."));
            break;
        }
        let n_all = tasks.len();
        if n_all > MOST_CURVES {
            tasks = chosen(tasks, &metric);
            left_out.push(format!(
                "Of {n_all} curves of `{metric}` of `{table}`, the best and every {}th of the others are drawn.",
                n_all.div_ceil(MOST_CURVES)
            ));
        }
        let curve = |task: &&TaskReport| TaskCurve {
            task: task.task.clone(),
            is_best: !task.best.is_empty(),
            points: points(folder, task, &metric),
        };
        let curves: Vec<TaskCurve> =
            tasks.iter().map(curve).filter(|curve| !curve.points.is_empty()).collect();
        if curves.iter().any(|curve| curve.points.len() > 1) {
            read.push(CurvePlot { table, metric, curves });
        }
    }
    read
}

/// The best ones, and of the others as many as there is room for, spread over their last values.
fn chosen<'a>(mut tasks: Vec<&'a TaskReport>, metric: &str) -> Vec<&'a TaskReport> {
    let last = |task: &TaskReport| task.metrics.get(metric).map_or(f64::NAN, |values| values.last);
    tasks.sort_by(|a, b| compare_numbers(last(a), last(b)));
    let step = tasks.len().div_ceil(MOST_CURVES);
    let mut at = 0;
    tasks.retain(|task| {
        at += 1;
        !task.best.is_empty() || (at - 1) % step == 0
    });
    tasks
}

fn points(folder: &Path, task: &TaskReport, metric: &str) -> Vec<(f64, f64)> {
    let Some(log) = &task.log else { return Vec::new() };
    let path = folder.join(log).with_extension("metrics.jsonl");
    let is_file = path.symlink_metadata().is_ok_and(|meta| meta.is_file());
    let Some(file) = is_file.then(|| File::open(path).ok()).flatten() else { return Vec::new() };
    let point = |line: String| {
        let line: Value = serde_json::from_str(&line).ok()?;
        Some((line.get("step")?.as_f64()?, line.get(metric)?.as_f64()?))
    };
    let points: Vec<(f64, f64)> =
        BufReader::new(file).lines().map_while(Result::ok).filter_map(point).collect();
    let step = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let is_kept = |at: &usize| at.is_multiple_of(step) || *at == last;
    points.iter().enumerate().filter(|(at, _)| is_kept(at)).map(|(_, point)| *point).collect()
}
