//! The verdict in a sentence, and where every item is.

use maud::{Markup, html};
use orchestra_launch::TaskStanding;

use super::table::{self, table};
use crate::gather::RunReport;
use crate::human::{count, counted, elapsed, per_second};

/// In a word.
pub fn state(report: &RunReport) -> &'static str {
    let items = &report.status.items;
    let failed = items.failed > 0 || n_tasks_failed(report) > 0;
    match (report.is_ended, report.status.complete, failed) {
        (true, true, false) => "finished",
        (true, true, true) => "finished with failures",
        (true, false, _) => "stopped before its end",
        (false, ..) if report.is_running => "running",
        (false, ..) => "has no end",
    }
}

fn n_tasks_failed(report: &RunReport) -> usize {
    let is_failed = |state| matches!(state, TaskStanding::Failed | TaskStanding::Skipped);
    report.status.tasks.iter().filter(|task| is_failed(task.state)).count()
}

/// What became of the run, in sentences.
pub fn verdict(report: &RunReport) -> Markup {
    let status = &report.status;
    let items = &status.items;
    let class = match state(report) {
        "finished" => "good",
        "finished with failures" => "warn",
        "has no end" | "running" => "open",
        _ => "bad",
    };
    let of_items = match (items.total.unwrap_or(items.listed), items.done, items.failed) {
        (_, done, failed) if report.is_service => {
            format!("Of its items, {} are done, {} failed.", count(done), count(failed))
        }
        (0, 0, 0) => String::new(),
        (all, done, 0) if done == all => format!("All {} are done.", counted(all, "item", "items")),
        (all, done, failed) => {
            let open = all.saturating_sub(done + failed);
            let open = if open > 0 { format!(", {} are left to do", count(open)) } else { String::new() };
            format!(
                "Of {}, {} are done, {} failed{open}.",
                counted(all, "item", "items"),
                count(done),
                count(failed)
            )
        }
    };
    let (n_tasks, n_failed) = (status.tasks.len(), n_tasks_failed(report));
    let of_tasks = match (n_tasks, n_failed) {
        (0, _) => String::new(),
        (all, 0) => format!(
            "{} ended well.",
            counted(status.tasks_done().len() as u64, "task", "tasks") + &format!(" of {all}")
        ),
        (all, 1) => {
            format!("Of {}, 1 failed or was not started for that.", counted(all as u64, "task", "tasks"))
        }
        (all, failed) => format!(
            "Of {}, {failed} failed or were not started for that.",
            counted(all as u64, "task", "tasks")
        ),
    };
    html! {
        p.verdict.(class) {
            strong { (if report.is_service { "The service" } else { "The run" }) " " (said(report)) "." } " " (of_items) " " (of_tasks)
            @if !report.failures.is_empty() { " " a href="#failures" { "Why " (if items.failed == 1 { "it" } else { "they" }) " failed" } }
        }
        p.facts {
            "Started " (began(report)) " UTC"
            @if report.is_ended { ", took " (elapsed(status.seconds)) @if status.items_per_second > 0.0 { ", " (per_second(status.items_per_second)) " items/s" } }
            @if report.history.n_starts() > 1 { ", in " (report.history.n_starts()) " starts" }
            ". " (restarts(report))
        }
        @for (name, pipeline) in &status.pipelines {
            @if let Some(end) = pipeline.end.as_ref().filter(|end| *end != "complete") {
                p { "Pipeline " code { (name) } ": " (end) "." }
            }
        }
    }
}

/// When the first start began, in UTC.
fn began(report: &RunReport) -> String {
    match report.history.starts.first() {
        Some(start) => super::settings::at_utc(start.at),
        None => report.status.started.get(..19).unwrap_or_default().replace('T', " "),
    }
}

fn said(report: &RunReport) -> String {
    match (report.is_ended, report.status.complete, report.status.exit_code) {
        (false, ..) if report.is_running => "goes on".to_owned(),
        (false, ..) => "has no end: it is still running, or it was killed".to_owned(),
        (true, true, _) => state(report).to_owned(),
        (true, false, 130) => "was interrupted before its end".to_owned(),
        (true, false, code) => format!("was stopped before its end (exit code {code})"),
    }
}

fn restarts(report: &RunReport) -> String {
    match report.status.restarts() {
        0 => String::new(),
        n => format!(
            "{} and replaced; no item was lost by that.",
            counted(n, "worker died and was", "workers died and were")
        )
        .replace(" and was and", " and was")
        .replace(" and were and", " and were"),
    }
}

/// Where every item is, and what was counted again.
pub fn account(report: &RunReport) -> Markup {
    let items = &report.status.items;
    let listed = items.listed.max(items.total.unwrap_or(0));
    let open = listed.saturating_sub(items.done + items.failed);
    let passed_over = report.passed_over();
    let rows = report.status.sources.iter().map(|(source, n)| {
        let passed = report.status.passed_over.get(source).into_iter().flatten();
        let passed: Vec<String> = passed.map(|(reason, n)| format!("{reason} {}", count(*n))).collect();
        vec![
            table::text(source),
            n.map_or_else(|| table::text("not known"), table::count),
            table::text(if passed.is_empty() { "none".to_owned() } else { passed.join(", ") }),
        ]
    });
    html! {
        @if listed > 0 || !report.status.sources.is_empty() {
            p.equation {
                span { b { (count(listed)) } " listed" } " = "
                span.good { b { (count(items.done)) } " done" } " + "
                span.(if items.failed > 0 { "bad" } else { "none" }) { b { (count(items.failed)) } " failed" }
                @if open > 0 { " + " span.open { b { (count(open)) } " not done yet" } }
                @if items.resumed > 0 { " (" (count(items.resumed)) " of them by earlier starts)" }
            }
            @if !passed_over.is_empty() {
                p { (count(passed_over.values().sum())) " further files, members or lines were passed over, because they are no items." }
            }
            (table("Sources", &["source", "items", "passed over"], rows.collect()))
            @for left in &report.status.left_out {
                p { "Left out by " code { (left.by) } ": " (count(left.count)) " " (left.what.to_string().replace('_', " ")) ", in " (counted(left.items, "item", "items")) "." }
            }
        }
        (checked(report))
    }
}

fn checked(report: &RunReport) -> Markup {
    html! {
        @match &report.check {
            Some(Ok(found)) => {
                @let faults: u64 = found.counts.values().sum();
                @if faults == 0 {
                    p.good { "Counted again from the files: " (counted(found.records, "record", "records")) " and " (counted(found.failed, "failure", "failures"))
                        " account for " (counted(found.items, "item", "items")) ", each once, and no file is damaged." }
                } @else {
                    p.bad { "Counted again from the files, " (counted(faults, "fault was found", "faults were found")) ":" }
                    ul { @for fault in &found.faults { li { (fault) } } }
                }
                @for sink in &found.not_counted { p { "The records of sink " code { (sink) } " were not counted: they are not of items, or cannot be read back." } }
            }
            Some(Err(why)) => p { "The files were not counted again: " (why) "." },
            None => p { "The files were not counted again: the run has no end yet." },
        }
        @for (source, digest) in &report.digests {
            p.digest { "List of items of " code { (source) } ", SHA-256: " code { (digest) } }
        }
    }
}
