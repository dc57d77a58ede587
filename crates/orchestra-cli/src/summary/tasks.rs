//! What the summary of a run says of its tasks: how many have ended how, which have failed, what they have measured and which are the best.

use orchestra_launch::{TaskReport, TaskStanding};

use super::{RunEnd, Summary};
use crate::human::{count, counted};
use crate::tasks::metrics;

impl Summary {
    /// The lines about failed, measured and best tasks, each with a name for its first one.
    pub(super) fn of_tasks(&self) -> Vec<(&'static str, String)> {
        let best = self.tasks().flat_map(|task| task.best.iter().map(move |best| (task, best)));
        let best = best.map(|(task, best)| {
            let several = best.strip_prefix("best.").map(|name| format!("{name}: ")).unwrap_or_default();
            ("best", format!("{several}{}: {}", task.task, metrics(task)))
        });
        self.failed_tasks().into_iter().chain(self.measured_tasks()).chain(best).collect()
    }

    pub(super) fn tasks_in_words(&self) -> String {
        let all = counted(self.report.tasks.len() as u64, "task", "tasks");
        let mut words =
            format!("{all}, {} done", count(self.n_tasks(|task| task.state == TaskStanding::Done)));
        let before = self.n_tasks(|task| task.before);
        if before > 0 && self.end != RunEnd::FinishedBefore {
            words.push_str(&format!(" ({} before this start)", count(before)));
        }
        words.push_str(&format!(
            ", {} failed",
            count(self.n_tasks(|task| task.state == TaskStanding::Failed))
        ));
        let others = [
            (TaskStanding::Skipped, "skipped"),
            (TaskStanding::Stopped, "stopped"),
            (TaskStanding::Waiting, "not started"),
        ];
        for (state, word) in others {
            let n = self.n_tasks(|task| task.state == state);
            if n > 0 {
                words.push_str(&format!(", {} {word}", count(n)));
            }
        }
        words
    }

    /// A few lines about the first tasks that have failed.
    fn failed_tasks(&self) -> Vec<(&'static str, String)> {
        const NAMED: usize = 5;
        let mut lines = Vec::new();
        let failed = || self.tasks().filter(|task| task.state == TaskStanding::Failed);
        for task in failed().take(NAMED) {
            let why = task.why.as_deref().unwrap_or_default();
            let (end, words) = why.split_once("; its last words:").unwrap_or((why, ""));
            let last = words.lines().rev().find(|line| !line.trim().is_empty());
            let last = last.map(|last| format!(": {}", last.trim())).unwrap_or_default();
            lines.push(("failed", format!("{}: the command {end}{last}", task.task)));
            if let Some(log) = &task.log {
                lines.push(("", format!("  {}", self.output.join(log).display())));
            }
        }
        let more = failed().count().saturating_sub(NAMED);
        if more > 0 {
            lines.push((
                "",
                format!("and {more} more: see {}", self.output.join(orchestra_launch::RUN_SUMMARY).display()),
            ));
        }
        lines
    }

    /// A line about each of the first tasks of each table that have metrics.
    fn measured_tasks(&self) -> Vec<(&'static str, String)> {
        const NAMED: usize = 10;
        const MOST: usize = 40;
        fn table(task: &TaskReport) -> &str {
            task.task.split('[').next().unwrap_or_default()
        }
        let measured: Vec<&TaskReport> = self.tasks().filter(|task| !task.metrics.is_empty()).collect();
        if measured.iter().all(|task| !task.best.is_empty()) {
            return Vec::new(); // Each is named as the best.
        }
        let state = |task: &TaskReport| match task.state {
            TaskStanding::Done => String::new(),
            state => format!(" ({})", state.as_str().replace('_', " ")),
        };
        let of_table =
            measured.chunk_by(|a, b| table(a) == table(b)).flat_map(|tasks| tasks.iter().take(NAMED));
        let shown: Vec<String> = of_table
            .take(MOST)
            .map(|task| format!("{}: {}{}", task.task, metrics(task), state(task)))
            .collect();
        let more = measured.len() - shown.len();
        let names = std::iter::once("metrics").chain(std::iter::repeat(""));
        let mut lines: Vec<_> = names.zip(shown).collect();
        if more > 0 {
            let report = self.output.join(orchestra_launch::RUN_SUMMARY);
            lines.push(("", format!("and {more} more: see {}", report.display())));
        }
        lines
    }
}
