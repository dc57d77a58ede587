//! What is planned when tasks have ended, and when they did. Data only.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::nearest::list;

/// What is planned and run when some tasks have ended well: all sources, models, stages and sinks of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LatePlan {
    /// The ids of the tasks that must have ended well.
    pub tasks: Vec<String>,
    /// The tables of tasks that must have ended, and of which the best is used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best: Vec<String>,
    /// The tables that use their values: ``model `digits` ``.
    pub tables: Vec<String>,
    pub pipelines: Vec<String>,
}

/// When the tasks of a plan have ended.
#[derive(Debug, Clone, Default)]
pub struct TasksEnded {
    /// Microseconds since 1970, by the places of the tasks; tasks that are not in it have not.
    pub at: BTreeMap<usize, u64>,
    /// The task that the link of a table leads to.
    pub best: BTreeMap<String, usize>,
}

impl LatePlan {
    /// What waits for what, as a sentence without its end.
    pub fn in_words(&self) -> String {
        const NAMED: usize = 4;
        let best: Vec<String> = self.best.iter().map(|table| format!("{table}.best")).collect();
        let all: Vec<&str> = self.tasks.iter().chain(&best).map(String::as_str).collect();
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
