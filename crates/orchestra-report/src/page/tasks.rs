//! Tasks: a row for each attempt, and the curves of what they have printed.

use std::collections::BTreeMap;

use maud::{Markup, html};
use orchestra_core::compare_numbers;
use orchestra_launch::TaskStanding;

use super::chart::{Chart, Series, short};
use super::table::{self, Cell, table};
use crate::gather::{Attempt, CurvePlot, RunReport};
use crate::human::{count, counted, elapsed, metric};

pub fn tasks(report: &RunReport) -> Option<Markup> {
    let tasks = &report.status.tasks;
    if tasks.is_empty() && report.attempts.rows.is_empty() {
        return None;
    }
    let mut names: Vec<&str> =
        report.attempts.rows.iter().flat_map(|row| &row.metrics).map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(8);
    let heads = ["task", "attempt", "end", "time", "of limit", "memory", "of limit", "place"];
    let heads: Vec<&str> = heads.into_iter().chain(names.iter().copied()).chain(["why"]).collect();
    let rows = report.attempts.rows.iter().map(|attempt| row(attempt, &names));
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for task in tasks {
        *states.entry(task.state.as_str()).or_default() += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, n)| format!("{} {state}", count(*n))).collect();
    let ends = report.attempts.by_end.iter().map(|(end, n)| format!("{n} {}", in_words(end)));
    let skipped = tasks.iter().filter(|task| task.state == TaskStanding::Skipped);
    let skipped: Vec<_> = skipped.take(20).collect();
    Some(html! {
        p.lead {
            @if !tasks.is_empty() { (counted(tasks.len() as u64, "task", "tasks")) ": " (states.join(", ")) ". " }
            (counted(report.attempts.n_all as u64, "attempt", "attempts")) ": " (ends.collect::<Vec<_>>().join(", ")) "."
        }
        @for task in tasks.iter().filter(|task| !task.best.is_empty()).take(20) {
            p { "Best: " b { (task.task) } " ★ " @for (name, values) in &task.metrics { code { (name) " " (metric(values.last)) } " " } }
        }
        div.charts { @for plot in &report.curves { @if let Some(figure) = curves(plot).figure() { (figure) } } }
        (table("Attempts", &heads, rows.collect()))
        @if !skipped.is_empty() {
            ul { @for task in skipped { li { code { (task.task) } " " (task.why.as_deref().unwrap_or("was not started")) } } }
        }
    })
}

/// How an attempt ended, by its class.
fn in_words(end: &str) -> &str {
    match end {
        "done" => "ended well",
        "code" => "ended with an error code",
        "signal" => "killed by a signal",
        "timeout" => "took too long",
        "out_of_memory" => "ran out of memory",
        "device_lost" => "lost its device",
        "not_started" => "not started",
        "missing" => "made no output",
        other => other,
    }
}

fn row(attempt: &Attempt, metrics: &[&str]) -> Vec<Cell> {
    const MIB: f64 = (1_u64 << 20) as f64;
    let none = || table::number(-1.0, "–");
    let of_limit = |value: f64, limit: Option<f64>| match limit {
        Some(limit) if limit > 0.0 => table::number(value / limit, format!("{:.0} %", value / limit * 100.0)),
        _ => none(),
    };
    let memory = attempt.peak_memory as f64;
    let star = if attempt.is_best { " ★" } else { "" };
    let class = if attempt.end == "done" { "good" } else { "bad" };
    let mut row = vec![
        table::text(format!("{}{star}", attempt.task)),
        table::count(attempt.number.into()),
        table::markup(html! { span.(class) { (in_words(&attempt.end)) } }),
        table::number(attempt.seconds, elapsed(attempt.seconds)),
        of_limit(attempt.seconds, attempt.limits.seconds),
        table::number(memory, format!("{:.0} MiB", memory / MIB)),
        of_limit(memory, attempt.limits.memory.map(|bytes| bytes as f64)),
        table::text(&attempt.place),
    ];
    row.extend(metrics.iter().map(|name| {
        let value = attempt.metrics.iter().find(|(metric, _)| metric == name).map(|(_, value)| *value);
        value.map_or_else(none, |value| table::number(value, metric(value)))
    }));
    let first: String = attempt.why.lines().next().unwrap_or_default().chars().take(60).collect();
    row.push(match attempt.why.as_str() {
        why if *why == first => table::text(why),
        why => table::markup(html! { details { summary { (first) } pre { (why) } } }),
    });
    row
}

/// All settings in one plot, over the steps that any of them has.
fn curves(plot: &CurvePlot) -> Chart {
    let mut steps: Vec<f64> =
        plot.curves.iter().flat_map(|curve| &curve.points).map(|(step, _)| *step).collect();
    steps.sort_by(|a, b| compare_numbers(*a, *b));
    steps.dedup();
    let series = plot.curves.iter().map(|curve| {
        let values: BTreeMap<u64, f64> =
            curve.points.iter().map(|(step, value)| (step.to_bits(), *value)).collect();
        Series {
            name: if curve.is_best { format!("{} ★", curve.task) } else { curve.task.clone() },
            values: steps.iter().map(|step| values.get(&step.to_bits()).map(|value| short(*value))).collect(),
            strong: curve.is_best,
        }
    });
    Chart {
        title: format!("{} of {}", plot.metric, plot.table),
        x_label: "step".to_owned(),
        unit: plot.metric.clone(),
        series: series.collect(),
        x: steps,
        marks: Vec::new(),
    }
}
