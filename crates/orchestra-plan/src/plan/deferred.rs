//! What is planned when tasks have ended, and what earlier runs have left of them. Data only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use orchestra_core::tasks::TaskMetrics;
use serde::Serialize;

use crate::nearest::list;

/// What is planned and run when some tasks have ended well: all sources, models, stages and sinks of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DeferredPlan {
    /// The ids of the tasks that must have ended well.
    pub tasks: Vec<String>,
    /// Those compared tasks that must have ended, and of which the best is used, by their names in [`TasksPlan::best`](super::TasksPlan::best).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best: Vec<String>,
    /// The tables that use their values: ``model `digits` ``.
    pub tables: Vec<String>,
    pub pipelines: Vec<String>,
}

/// What earlier runs have left of the tasks of a plan, which are named by their places in it.
#[derive(Debug, Clone, Default)]
pub struct TaskHistory {
    /// Tasks that are done, and of which nothing that they depend on or have left has changed since.
    pub done: BTreeSet<usize>,
    /// When tasks have ended, in microseconds since 1970.
    pub ended_at: BTreeMap<usize, u64>,
    /// The task that the link of compared tasks leads to.
    pub linked: BTreeMap<String, usize>,
    /// Compared tasks that are all done, and whose link leads to the best of them.
    pub have_best: BTreeSet<String>,
}

/// What tasks have noted, whether or not it is true of the tasks that a file has now: [`TaskHistory`] says that.
#[derive(Debug, Clone, Default)]
pub struct TaskResults {
    /// Of the last attempts, by ids.
    pub metrics: BTreeMap<String, TaskMetrics>,
    /// The folders of best tasks, relative to the output folder, by the names of their links.
    pub best: BTreeMap<String, PathBuf>,
}

impl DeferredPlan {
    /// What waits for what, as a sentence without its end.
    pub fn in_words(&self) -> String {
        const NAMED: usize = 4;
        let all: Vec<&str> = self.tasks.iter().chain(&self.best).map(String::as_str).collect();
        let mut tasks = list(all.iter().take(NAMED).copied());
        if all.len() > NAMED {
            tasks.push_str(&format!(" and {} more", all.len() - NAMED));
        }
        let verb = if self.tables.len() == 1 { "uses" } else { "use" };
        format!(
            "{} {verb} values of {tasks}: sources, models, stages and sinks are planned when these tasks have ended well",
            self.tables.join(", "),
        )
    }
}
