//! Two runs side by side: the facts of both, and which of them differ. It judges neither.

use std::collections::BTreeMap;
use std::path::PathBuf;

use orchestra_launch::TIMES;
use serde::Serialize;

use crate::gather::RunReport;
use crate::human::{count, elapsed, metric, per_second};
use crate::page::measures::{mean_batch, milliseconds, quantile};

/// Raised where a field gets another meaning.
const VERSION: u32 = 1;

/// What two runs have in common, and where they differ. Field names are part of the contract with users.
#[derive(Debug, Serialize)]
pub struct RunComparison {
    pub version: u32,
    pub folders: [PathBuf; 2],
    pub facts: Vec<ComparedFact>,
}

#[derive(Debug, Serialize)]
pub struct ComparedFact {
    /// `account`, `time`, `stages`, `failures`, `tasks`, `settings` or `plan`.
    pub section: &'static str,
    pub what: String,
    /// As text, in the order of the folders; `null`: that run has none.
    pub values: [Option<String>; 2],
    pub changed: bool,
}

/// By section and name, in order.
type Facts = Vec<(&'static str, String, String)>;

pub fn compare(a: &RunReport, b: &RunReport) -> RunComparison {
    let (of_a, of_b) = (facts(a), facts(b));
    let values: BTreeMap<(&str, &str), &str> =
        of_b.iter().map(|(section, what, value)| ((*section, &**what), &**value)).collect();
    let known: BTreeMap<(&str, &str), ()> =
        of_a.iter().map(|(section, what, _)| ((*section, &**what), ())).collect();
    let both = of_a.iter().map(|(section, what, value)| {
        let other = values.get(&(*section, &**what)).map(|value| (*value).to_owned());
        fact(section, what, [Some(value.clone()), other])
    });
    let only_b = of_b.iter().filter(|(section, what, _)| !known.contains_key(&(*section, &**what)));
    let only_b = only_b.map(|(section, what, value)| fact(section, what, [None, Some(value.clone())]));
    let mut facts: Vec<ComparedFact> = both.chain(only_b).collect();
    const SECTIONS: [&str; 7] = ["account", "time", "stages", "failures", "tasks", "settings", "plan"];
    facts.sort_by_key(|fact| SECTIONS.iter().position(|section| *section == fact.section));
    RunComparison { version: VERSION, folders: [a.folder.clone(), b.folder.clone()], facts }
}

fn fact(section: &'static str, what: &str, values: [Option<String>; 2]) -> ComparedFact {
    ComparedFact { section, what: what.to_owned(), changed: values[0] != values[1], values }
}

fn facts(report: &RunReport) -> Facts {
    let (status, plan) = (&report.status, &report.plan);
    let items = &status.items;
    let mut facts = Facts::new();
    let mut add = |section, what: &str, value: String| facts.push((section, what.to_owned(), value));
    add("account", "exit code", status.exit_code.to_string());
    add("account", "complete", status.complete.to_string());
    for (what, n) in [("listed", items.listed), ("done", items.done), ("failed", items.failed)] {
        add("account", what, count(n));
    }
    for (reason, n) in report.passed_over() {
        add("account", &format!("passed over: {reason}"), count(n));
    }
    add("time", "all of the last start", elapsed(status.seconds));
    add("time", "items per second", per_second(status.items_per_second));
    add("time", "until the first batch", elapsed(status.seconds_starting));
    add("time", "what set the pace", format!("{:?}", status.bottleneck).to_lowercase());
    add("time", "workers that were replaced", count(status.restarts()));
    for stage in &status.stages {
        let mut of = |what: &str, value: String| add("stages", &format!("{}: {what}", stage.name), value);
        of("rows out", count(stage.out));
        of("failed", count(stage.failed));
        let Some(batches) = &stage.batches else { continue };
        of("workers", count(stage.workers));
        of("busy", elapsed(stage.seconds_busy));
        of("mean batch", mean_batch(stage).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.1}")));
        for (what, q) in [("run p50", 0.5), ("run p99", 0.99)] {
            of(what, quantile(&batches.run_times, TIMES, q).map_or_else(|| "–".to_owned(), milliseconds));
        }
    }
    for group in &report.failures {
        let cause = &group.cause;
        let error: String = cause.error.lines().next().unwrap_or_default().chars().take(120).collect();
        add("failures", &format!("{} ({}): {error}", cause.stage, cause.kind), count(cause.items));
    }
    for task in status.tasks.iter().take(500) {
        add("tasks", &task.task, task.state.as_str().to_owned());
        for (name, values) in &task.metrics {
            add("tasks", &format!("{}: {name}", task.task), metric(values.last));
        }
    }
    add("settings", "workflow file", plan.file.display().to_string());
    add("settings", "command", report.command_line().unwrap_or_default());
    add("settings", "orchestra", report.history.orchestra.clone());
    add("settings", "engine", plan.engine.clone().unwrap_or_else(|| "–".to_owned()));
    add("settings", "cores", plan.cores.to_string());
    for (source, digest) in &report.digests {
        add("settings", &format!("list of items of {source}"), digest.clone());
    }
    for node in plan.pipelines.iter().flat_map(|pipeline| &pipeline.nodes) {
        add("plan", &format!("{} ({})", node.name, node.kind), node.details.join("; "));
    }
    for reason in &plan.reasons {
        add("plan", reason, "decided".to_owned());
    }
    facts
}
