//! What is said when a run has ended, in plain words, and the exit code that goes with it. Prints nothing itself.

mod tasks;

use std::path::PathBuf;

use orchestra_launch::{FailureCause, RunStatus, TaskReport, TaskStanding};
use orchestra_report::{pace_in_words, shell_word};

use crate::exit_code::ExitCode;
use crate::human::{count, counted, elapsed, per_second};

/// It has failed, or was not started for that.
fn is_failed(task: &TaskReport) -> bool {
    matches!(task.state, TaskStanding::Failed | TaskStanding::Skipped)
}

#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    pub report: RunStatus,
    pub end: RunEnd,
    pub has_items: bool,
    /// Where the records of each sink are.
    pub outputs: Vec<String>,
    pub output: PathBuf,
    /// Items that earlier starts had finished, if this one continued them.
    pub resumed_from: Option<u64>,
    /// The command that goes on with it, fit for a shell.
    pub resume_command: String,
}

/// A shorter run is mostly the start of its workers, and says nothing about what sets the pace.
const TELLING_SECONDS: f64 = 2.0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// Every item has its record or its failure.
    Finished,
    /// An earlier start had finished it; nothing was left to do.
    FinishedBefore,
    Interrupted,
    /// More items failed than `limits.max_failed` allows, or than that of a pipeline.
    FailureLimit {
        /// Which limit, in words.
        reason: String,
        /// The settings with which the command goes on regardless; none: it takes no settings.
        lifted: Vec<String>,
    },
    /// Its records may be wrong, since items have changed each other, or come to no result.
    Useless {
        /// Why, and what to do.
        reason: String,
    },
    /// It could not go on: no device is left, the disk is full. The text says what, and what to do.
    Stopped {
        /// Why, as a fragment.
        reason: String,
        /// What the exit code says of it.
        code: ExitCode,
    },
}

impl Summary {
    pub fn exit_code(&self) -> ExitCode {
        match &self.end {
            RunEnd::Finished | RunEnd::FinishedBefore
                if self.report.items.failed == 0 && self.n_tasks(is_failed) == 0 =>
            {
                ExitCode::Done
            }
            RunEnd::Finished | RunEnd::FinishedBefore | RunEnd::FailureLimit { .. } => ExitCode::ItemsFailed,
            RunEnd::Interrupted => ExitCode::Interrupted,
            RunEnd::Useless { .. } => ExitCode::BadFile,
            RunEnd::Stopped { code, .. } => *code,
        }
    }

    /// The text, with a line end after each line.
    pub fn text(&self) -> String {
        let report = &self.report;
        let mut out = format!("{}\n", self.headline());
        let mut fact = |name: &str, text: String| out.push_str(&format!("  {name:<9} {text}\n"));
        if let Some(reason) = self.reason() {
            fact("reason", reason.to_owned());
        }
        for (source, by_reason) in &report.passed_over {
            let reasons: Vec<String> =
                by_reason.iter().map(|(reason, n)| format!("{reason} {}", count(*n))).collect();
            fact("source", format!("{source}: passed over, no items: {}", reasons.join(", ")));
        }
        if self.has_items && !report.tasks.is_empty() {
            fact("tasks", self.tasks_in_words());
        }
        for (name, text) in self.of_tasks() {
            fact(name, text);
        }
        if self.end != RunEnd::FinishedBefore {
            let rate = per_second(report.items_per_second);
            let rate = match (self.has_items, report.tasks.is_empty()) {
                (true, true) => format!(", {rate} items/s"),
                (true, false) if report.items_per_second > 0.0 => {
                    format!("; items took {} of it, {rate} items/s", elapsed(report.seconds_items))
                }
                _ => String::new(),
            };
            fact("time", format!("{}{rate}", elapsed(report.seconds)));
            if let Some(before) = self.resumed_from {
                fact(
                    "resumed",
                    format!("{} finished before this start", counted(before, "item was", "items were")),
                );
            }
            if report.restarts() > 0 {
                let workers = counted(report.restarts(), "worker died and was", "workers died and were");
                fact("restarts", format!("{workers} replaced; no item was lost by that"));
            }
            if let Some(words) = pace_in_words(report).filter(|_| report.seconds_items >= TELLING_SECONDS) {
                fact("pace", words);
            }
        }
        for output in &self.outputs {
            fact("results", output.clone());
        }
        if report.items.failed > 0 {
            fact("failures", self.output.join(orchestra_launch::FAILURE_RECORDS).display().to_string());
            for text in self.causes_in_words() {
                fact("", text);
            }
        }
        fact("run", report.run_id.clone());
        if let Some(hint) = self.hint() {
            out.push_str(&format!("\n{hint}\n"));
        }
        out
    }

    fn headline(&self) -> String {
        let how = match &self.end {
            RunEnd::Finished => "finished",
            RunEnd::FinishedBefore => "was finished before, nothing is left to do",
            RunEnd::Interrupted => "interrupted",
            RunEnd::FailureLimit { .. } | RunEnd::Useless { .. } | RunEnd::Stopped { .. } => "stopped",
        };
        if !self.has_items && !self.report.tasks.is_empty() {
            return format!("{} {how}: {}", self.report.workflow, self.tasks_in_words());
        }
        let items = counted(self.report.items.read, "item", "items");
        format!(
            "{} {how}: {items} read, {} done, {} failed",
            self.report.workflow,
            count(self.report.items.done),
            count(self.report.items.failed)
        )
    }

    fn tasks(&self) -> impl Iterator<Item = &TaskReport> {
        self.report.tasks.iter().map(|task| &**task)
    }

    fn n_tasks(&self, is_meant: impl Fn(&TaskReport) -> bool) -> u64 {
        self.tasks().filter(|task| is_meant(task)).count() as u64
    }

    /// A line about each of the commonest causes.
    fn causes_in_words(&self) -> Vec<String> {
        const NAMED: usize = 5;
        const MOST_CHARS: usize = 200;
        let in_words = |cause: &FailureCause| {
            let line = cause.error.lines().next().unwrap_or_default();
            let cut: String = line.chars().take(MOST_CHARS).collect();
            let dots = if cut.len() < cause.error.len() { " .." } else { "" };
            let FailureCause { items, stage, kind, item, .. } = cause;
            format!("{} at `{stage}` ({kind}), for example `{item}`: {cut}{dots}", count(*items))
        };
        let mut lines: Vec<String> = self.report.failures.iter().take(NAMED).map(in_words).collect();
        let others: u64 = self
            .report
            .items
            .failed
            .saturating_sub(self.report.failures.iter().take(NAMED).map(|cause| cause.items).sum());
        if others > 0 && !lines.is_empty() {
            lines.push(format!("{} for other causes", count(others)));
        }
        lines
    }

    fn reason(&self) -> Option<&str> {
        match &self.end {
            RunEnd::FailureLimit { reason, .. }
            | RunEnd::Useless { reason }
            | RunEnd::Stopped { reason, .. } => Some(reason),
            RunEnd::Finished | RunEnd::FinishedBefore | RunEnd::Interrupted => None,
        }
    }

    fn hint(&self) -> Option<String> {
        let command = &self.resume_command;
        match &self.end {
            RunEnd::Finished if self.n_tasks(is_failed) > 0 => Some(format!(
                "What has failed runs again with the next start, what is done does not:\n  {command}"
            )),
            RunEnd::Finished => None,
            RunEnd::FinishedBefore if self.report.items.failed > 0 => {
                Some("To try the failed items again, add --retry-failed; to start over, --fresh.".to_owned())
            }
            RunEnd::FinishedBefore => Some("To start over, add --fresh.".to_owned()),
            RunEnd::Interrupted => Some(format!("What is done is kept. To go on:\n  {command}")),
            RunEnd::FailureLimit { lifted, .. } if lifted.is_empty() => Some(format!(
                "See the failures, then mend the cause or raise the limit in the workflow file. To go on:\n  {command}"
            )),
            RunEnd::FailureLimit { lifted, .. } => {
                let set: String = lifted.iter().map(|set| format!(" --set {}", shell_word(set))).collect();
                let (words, flag) = match self.report.items.done {
                    0 => ("start over", "--fresh"),
                    _ => ("go on and try again what has failed", "--retry-failed"),
                };
                Some(format!(
                    "See the failures. When the cause is mended, {words}:\n  {command} {flag}\nTo go on regardless:\n  {command}{set}"
                ))
            }
            RunEnd::Useless { .. } => Some(
                "No start can go on with these records. When that is mended, start over: `orchestra run` with `--fresh`."
                    .to_owned(),
            ),
            RunEnd::Stopped { .. } => {
                Some(format!("What is done is kept. When the cause is gone, go on:\n  {command}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use orchestra_launch::{Bottleneck, DeviceStatus, ItemCounts, StagePace};

    use super::*;

    fn report() -> RunStatus {
        RunStatus {
            workflow: "digits".into(),
            run_id: "20260131-120000-4f2a".into(),
            items: ItemCounts { read: 10_000, done: 10_000, ..ItemCounts::default() },
            seconds: 8.1,
            items_per_second: 1_234.4,
            seconds_items: 8.1,
            ..RunStatus::default()
        }
    }

    fn summary(report: RunStatus) -> Summary {
        Summary {
            report,
            end: RunEnd::Finished,
            has_items: true,
            outputs: vec!["out/results.jsonl".into()],
            output: "out".into(),
            resumed_from: None,
            resume_command: "orchestra run digits.toml".into(),
        }
    }

    #[test]
    fn a_clean_run_says_little() {
        assert_eq!(
            summary(report()).text(),
            "\
digits finished: 10,000 items read, 10,000 done, 0 failed
  time      8.1 s, 1,234 items/s
  results   out/results.jsonl
  run       20260131-120000-4f2a
"
        );
        assert_eq!(summary(report()).exit_code(), ExitCode::Done);
    }

    #[test]
    fn a_run_that_was_too_short_to_tell_names_no_pace() {
        let of =
            |seconds_items| summary(RunStatus { seconds_items, bottleneck: Bottleneck::Cpu, ..report() });
        assert!(!of(1.9).text().contains("pace") && of(2.0).text().contains("pace"));
    }

    #[test]
    fn the_stage_that_set_the_pace_is_named_and_a_setting_only_where_it_helps() {
        let of = |bottleneck, set: &[&str]| {
            let set = set.iter().map(|set| (*set).to_owned()).collect();
            let pace = StagePace { stage: "run".into(), workers: 1, busy: 0.974, cores_idle: 0.5, set };
            pace_line(RunStatus { bottleneck, pace: Some(pace), ..report() })
        };
        let busy = "`run`: its 1 worker was busy 97 %, and the run used 50 % of the cores";
        let helps = format!("set by {busy}; --set models.digits.workers=2 helps");
        assert_eq!(of(Bottleneck::Inference, &["models.digits.workers=2"]), helps);
        assert_eq!(
            of(Bottleneck::Inference, &[]),
            format!("set by {busy}; a faster model or script helps, or more cores or devices")
        );
        let no_part = format!("set by no part alone; the busiest was {busy}");
        assert_eq!(of(Bottleneck::Handover, &[]), no_part);
    }

    fn pace_line(report: RunStatus) -> String {
        let text = summary(report).text();
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix("pace"));
        line.expect("a run that lasts names its pace").trim().to_owned()
    }

    #[test]
    fn an_eventful_run_names_everything_that_happened() {
        let report = RunStatus {
            items: ItemCounts { done: 9_998, failed: 2, ..report().items },
            devices: vec![DeviceStatus { restarts: 1, ..DeviceStatus::default() }],
            bottleneck: Bottleneck::Loading,
            passed_over: [(
                "photos".to_owned(),
                [("hidden".to_owned(), 1_200), ("folder".to_owned(), 3)].into(),
            )]
            .into(),
            failures: [(1, "KeyError: 'x' (st.py:6)"), (1, "row 7 is bad\nall of it")]
                .map(|(items, error)| FailureCause {
                    items,
                    stage: "f".into(),
                    kind: "model".into(),
                    error: error.into(),
                    item: "a.png".into(),
                    first: Vec::new(),
                })
                .into(),
            ..report()
        };
        let summary = Summary { resumed_from: Some(5_000), ..summary(report) };
        assert_eq!(
            summary.text(),
            "\
digits finished: 10,000 items read, 9,998 done, 2 failed
  source    photos: passed over, no items: folder 3, hidden 1,200
  time      8.1 s, 1,234 items/s
  resumed   5,000 items were finished before this start
  restarts  1 worker died and was replaced; no item was lost by that
  pace      set by reading and decoding: the models waited for items; smaller files help
  results   out/results.jsonl
  failures  out/failures.jsonl
            1 at `f` (model), for example `a.png`: KeyError: 'x' (st.py:6)
            1 at `f` (model), for example `a.png`: row 7 is bad ..
  run       20260131-120000-4f2a
"
        );
        assert_eq!(summary.exit_code(), ExitCode::ItemsFailed);
    }

    #[test]
    fn the_rate_is_that_of_items_without_the_time_of_commands() {
        let tasks = vec![Arc::new(TaskReport { task: "a".into(), ..TaskReport::default() })];
        let summary = summary(RunStatus { seconds: 19.2, seconds_items: 4.1, tasks, ..report() });
        assert!(
            summary.text().contains("time      19 s; items took 4.1 s of it, 1,234 items/s\n"),
            "{}",
            summary.text()
        );
    }

    #[test]
    fn an_interrupted_run_says_how_to_go_on() {
        let items = ItemCounts { read: 4_000, done: 4_000, ..ItemCounts::default() };
        let report = RunStatus { items, ..report() };
        let summary = Summary { end: RunEnd::Interrupted, ..summary(report) };
        let text = summary.text();
        assert!(text.starts_with("digits interrupted: 4,000 items read, 4,000 done, 0 failed\n"), "{text}");
        assert!(text.ends_with("\nWhat is done is kept. To go on:\n  orchestra run digits.toml\n"), "{text}");
        assert_eq!(summary.exit_code(), ExitCode::Interrupted);
    }

    #[test]
    fn a_stopped_run_says_why_and_ends_with_the_code_of_the_reason() {
        let end = RunEnd::Stopped { reason: "no device is left".into(), code: ExitCode::Unavailable };
        let summary = Summary { end, ..summary(report()) };
        assert!(summary.text().starts_with("digits stopped: 10,000 items read, 10,000 done, 0 failed\n"));
        assert!(summary.text().contains("\n  reason    no device is left\n"));
        assert!(summary.text().contains("orchestra run digits.toml"));
        assert_eq!(summary.exit_code(), ExitCode::Unavailable);
    }
}
