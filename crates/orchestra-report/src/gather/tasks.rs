//! Attempts at tasks, as their journal tells them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::compare_numbers;
use orchestra_launch::{PlannedRun, TaskJournal, TaskLimits, TaskReport};

/// Attempts in the page. Of more, those that did not end well come first, then those of the best tasks, then the others in their order.
const MOST_ATTEMPTS: usize = 1200;
/// Characters of the words of a failed one, and of those behind the first ones.
const MOST_WORDS: usize = 400;
const FEW_WORDS: usize = 60;
const FIRST: usize = 200;

#[derive(Debug, Clone, Default)]
pub struct Attempts {
    pub rows: Vec<Attempt>,
    pub n_all: usize,
    pub by_end: BTreeMap<String, usize>,
}

#[derive(Debug, Clone, Default)]
pub struct Attempt {
    pub task: String,
    pub number: u32,
    /// The class of its end, or `running`.
    pub end: String,
    pub place: String,
    /// Seconds since 1970.
    pub began: f64,
    pub seconds: f64,
    pub limits: TaskLimits,
    pub peak_memory: u64,
    pub gpu_memory: u64,
    /// The last value of each metric.
    pub metrics: Vec<(String, f64)>,
    pub why: String,
    pub is_best: bool,
}

impl Attempts {
    pub fn read(folder: &Path, tasks: &[Arc<TaskReport>], plan: &PlannedRun) -> io::Result<Self> {
        let best: BTreeMap<&str, u32> = tasks
            .iter()
            .filter(|task| !task.best.is_empty())
            .map(|task| (task.task.as_str(), task.attempts))
            .collect();
        let limits = |task: &str| {
            let table = task.split('[').next().unwrap_or(task);
            plan.task_limits.get(table).copied().unwrap_or_default()
        };
        let mut all = Self::default();
        TaskJournal::each_end(folder, |ended| {
            let seconds = ended.milliseconds as f64 / 1e3;
            let number = ended.started.attempt;
            all.rows.push(Attempt {
                limits: limits(&ended.started.task),
                is_best: best.get(ended.started.task.as_str()) == Some(&number),
                task: ended.started.task,
                number,
                end: ended.class,
                place: ended.started.place,
                began: ended.at as f64 / 1e6 - seconds,
                seconds,
                peak_memory: ended.peak_memory,
                gpu_memory: ended.gpu_memory,
                metrics: ended.metrics.iter().map(|(name, values)| (name.clone(), values.last)).collect(),
                why: ended.why,
            });
        })?;
        all.n_all = all.rows.len();
        for row in &all.rows {
            *all.by_end.entry(row.end.clone()).or_default() += 1;
        }
        if all.n_all > MOST_ATTEMPTS {
            all.rows.sort_by_key(|row| match (row.end.as_str(), row.is_best) {
                ("done", false) => 2,
                ("done", true) => 1,
                _ => 0,
            });
            all.rows.truncate(MOST_ATTEMPTS);
        }
        all.rows.sort_by(|a, b| compare_numbers(a.began, b.began));
        let failed = all.rows.iter_mut().filter(|row| !row.why.is_empty());
        for (at, row) in failed.enumerate() {
            row.why = row.why.chars().take(if at < FIRST { MOST_WORDS } else { FEW_WORDS }).collect();
        }
        Ok(all)
    }

    /// What is not in the page, as a sentence.
    pub fn left_out(&self) -> Option<String> {
        let left = self.n_all - self.rows.len();
        (left > 0).then(|| {
            format!(
                "Of {} attempts at tasks, {left} are left out of the table: those that ended well and are not the best come last.",
                self.n_all
            )
        })
    }
}
