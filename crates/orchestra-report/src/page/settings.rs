//! What the run was started with, and what can be done next.

use maud::{Markup, html};

use super::table::{self, table};
use crate::gather::RunReport;
use crate::human::{count, elapsed};
use crate::words::shell_word;

pub fn settings(report: &RunReport) -> Markup {
    let (plan, history) = (&report.plan, &report.history);
    let starts = history.starts.iter().enumerate().map(|(at, start)| {
        vec![
            table::count(at as u64 + 1),
            table::text(at_utc(start.at)),
            table::number(start.until - start.at, elapsed(start.until - start.at)),
            match start.exit_code {
                Some(code) => table::text(format!("ended with code {code}")),
                None if at + 1 == history.starts.len() => table::text("no end: it runs, or was killed"),
                None => table::text("was killed"),
            },
        ]
    });
    let starts: Vec<_> = starts.collect();
    html! {
        dl.facts {
            dt { "run" } dd { code { (report.status.run_id) } }
            dt { "output folder" } dd { code { (report.folder.display()) } }
            @if !plan.file.as_os_str().is_empty() { dt { "workflow file" } dd { code { (plan.file.display()) } } }
            @if let Some(command) = report.command_line() { dt { "command" } dd { code { (command) } } }
            @if !history.orchestra.is_empty() { dt { "orchestra" } dd { (history.orchestra) } }
            @if let Some(engine) = &plan.engine { dt { "engine" } dd { (engine) } }
            @if plan.cores > 0 { dt { "cores" } dd { (count(plan.cores as u64)) } }
            @for output in &report.status.outputs { dt { "sink " (output.sink) } dd { code { (output.url.clone().unwrap_or_else(|| output.path.display().to_string())) } } }
        }
        @if !starts.is_empty() { (table("Starts", &["start", "began (UTC)", "ran for", "end"], starts)) }
        @if !plan.reasons.is_empty() {
            details { summary { "What the planner has decided" } ul { @for reason in &plan.reasons { li { (reason) } } } }
        }
    }
}

pub fn at_utc(seconds: f64) -> String {
    let time = std::time::UNIX_EPOCH
        .checked_add(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let text = time.map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default();
    text.replace('T', " ").trim_end_matches('Z').to_owned()
}

pub fn next(report: &RunReport) -> Markup {
    let folder = shell_word(&report.folder.display().to_string());
    let resume = report.command_line().unwrap_or_else(|| "orchestra run FILE".to_owned());
    let from = report.command.as_ref().map(|command| shell_word(&command.folder.display().to_string()));
    let status = &report.status;
    html! {
        dl.next {
            @if !report.is_ended || !status.complete {
                dt { "go on where it stopped" }
                dd { pre { @if let Some(from) = &from { "cd " (from) "\n" } (resume) } }
            }
            @if status.items.failed > 0 {
                dt { "try again what has failed, when the cause is mended" }
                dd { pre { "orchestra retry " (folder) } }
            }
            @if report.is_ended {
                dt { "count every item again" }
                dd { pre { "orchestra verify " (folder) } }
                dt { "start over" }
                dd { pre { @if let Some(from) = &from { "cd " (from) "\n" } (resume) " --fresh" } }
            }
            dt { "write this page anew" }
            dd { pre { "orchestra report " (folder) } }
        }
    }
}
