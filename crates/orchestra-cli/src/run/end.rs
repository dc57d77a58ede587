//! The end of `orchestra run`: the summary, what traces and log files lack, and the exit code.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use orchestra_launch::telemetry::{SpanReport, TelemetryGuard};
use orchestra_launch::{ItemCounts, OutputReport, Plan, Prepared, RunOutcome, RunStatus};

use super::not_started;
use crate::args::{RunArgs, Verbosity, resume_command};
use crate::exit_code::ExitCode;
use crate::human::{count, counted};
use crate::retry::is_retry;
use crate::signals::AfterTheRun;
use crate::summary::{RunEnd, Summary};
use crate::{Failed, left_out, stderr, stdout};

pub(super) fn end(
    outcome: &RunOutcome,
    plan: &Plan,
    resumed_from: Option<u64>,
    output: Output,
    telemetry: TelemetryGuard,
    after: Option<AfterTheRun>,
) -> Result<ExitCode, Failed> {
    let report = &outcome.report;
    let n_part_files = |sink| report.outputs.get(sink).and_then(|output: &OutputReport| output.part_files);
    let outputs = outputs(plan, n_part_files);
    let summary = Summary { resumed_from, outputs, ..summary(plan, report.clone(), run_end(outcome, plan)) };
    print_summary(&summary, report, output)?;
    for left_out in &report.left_out {
        stderr::say_line(&left_out::warning(left_out));
    }
    if let Some(after) = after {
        after.cut_short(summary.exit_code(), outcome.exit_code == i32::from(ExitCode::Interrupted.number()));
    }
    let report = telemetry.shutdown();
    if let Some(warning) = report.spans.as_ref().and_then(lost_spans) {
        stderr::say_line(&warning);
    }
    if let Some(error) = report.logs.error {
        stderr::say_line(&format!("warning: the log files are incomplete: {error}"));
    }
    Ok(summary.exit_code())
}

/// What the collector did not get, and why; `None` if it got all.
pub fn lost_spans(spans: &SpanReport) -> Option<String> {
    let mut parts = Vec::new();
    if spans.lost() > 0 {
        let reasons: Vec<String> =
            spans.losses().iter().map(|(n, reason)| format!("{} {reason}", count(*n))).collect();
        let words = spans.words.as_ref().map(|words| format!(" ({words})")).unwrap_or_default();
        parts.push(format!("of {} spans {}{words}", count(spans.ended), reasons.join(", ")));
    }
    let left_out = [(spans.items_left_out, "item", "items"), (spans.batches_left_out, "batch", "batches")];
    let left_out: Vec<String> =
        left_out.into_iter().filter(|(n, ..)| *n > 0).map(|(n, one, many)| counted(n, one, many)).collect();
    if !left_out.is_empty() {
        parts.push(format!("{} have no spans, since too much happened at once", left_out.join(" and ")));
    }
    (!parts.is_empty()).then(|| format!("warning: traces are incomplete: {}", parts.join("; ")))
}

fn run_end(outcome: &RunOutcome, plan: &Plan) -> RunEnd {
    let reason = outcome.problems.join("; ");
    match outcome.exit_code {
        0 => RunEnd::Finished,
        65 if outcome.problems.is_empty() => RunEnd::Finished,
        65 if plan.deferred.is_some() => RunEnd::Stopped { reason, code: ExitCode::ItemsFailed },
        65 => {
            // `orchestra retry` takes no settings.
            let lifted = if is_retry() { Vec::new() } else { outcome.lifted_limits.clone() };
            RunEnd::FailureLimit { reason, lifted }
        }
        130 => RunEnd::Interrupted,
        _ if outcome.must_start_over => RunEnd::Useless { reason },
        code => RunEnd::Stopped { reason, code: ExitCode::of(code) },
    }
}

pub(super) fn finished_before(prepared: Prepared, code: i32, output: Output) -> Result<ExitCode, Failed> {
    let plan = Arc::clone(&prepared.plan);
    let counts = prepared.counts();
    let (read, done, failed) = (counts.total(), counts.done, counts.failed);
    let report = RunStatus {
        workflow: plan.name.clone(),
        run_id: prepared.run_id.clone(),
        tasks: prepared.tasks(),
        items: ItemCounts { read, done, failed, ..ItemCounts::default() },
        failures: if failed > 0 { orchestra_launch::failure_causes(&plan.output) } else { Vec::new() },
        ..RunStatus::default()
    };
    let outputs = outputs(&plan, |sink| Some(prepared.n_part_files(sink)));
    let summary = Summary { outputs, ..summary(&plan, report, RunEnd::FinishedBefore) };
    prepared.close().map_err(not_started)?;
    tracing::debug!(code, "the run was finished before");
    match output {
        Output::Json => print_json(&plan.output.join(orchestra_launch::RUN_SUMMARY))?,
        Output::Text => stderr::say_text(&summary.text()),
        Output::Quiet => {}
    }
    Ok(summary.exit_code())
}

/// Where the records of each sink are. Of no rows no part file is made.
fn outputs(plan: &Plan, n_part_files: impl Fn(usize) -> Option<u64>) -> Vec<String> {
    let sinks = plan.sinks.iter().enumerate();
    let outputs = sinks.map(|(at, sink)| match &sink.part_files {
        Some(_) if n_part_files(at) == Some(0) => format!("no rows for sink `{}`, so no file", sink.name),
        _ => sink.place_in_words(),
    });
    outputs.collect()
}

fn summary(plan: &Plan, report: RunStatus, end: RunEnd) -> Summary {
    Summary {
        report,
        end,
        has_items: !plan.pipelines.is_empty(),
        outputs: Vec::new(),
        output: plan.output.clone(),
        resumed_from: None,
        resume_command: resume_command(std::env::args_os()),
    }
}

/// How the end of a run is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Text,
    Json,
    Quiet,
}

impl Output {
    pub fn of(args: &RunArgs, verbosity: Verbosity) -> Self {
        match (args.json, verbosity.quiet) {
            (true, _) => Self::Json,
            (false, true) => Self::Quiet,
            (false, false) => Self::Text,
        }
    }
}

/// A quiet run that is not all done still says why.
fn print_summary(summary: &Summary, report: &RunStatus, output: Output) -> Result<(), Failed> {
    match output {
        Output::Json => {
            stdout::print_json(report)?;
        }
        Output::Quiet if summary.exit_code() == ExitCode::Done => {}
        Output::Text | Output::Quiet => stderr::say_text(&summary.text()),
    }
    Ok(())
}

fn print_json(path: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`", path.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))?;
    stdout::print(&text).map(|_| ())
}
