//! Which tasks are compared with one another: those of a table that says `best`, and those of several by `[best.NAME]`.

use orchestra_core::tasks::Objective;

use crate::cx::Cx;
use crate::diagnostics::Reported;
use crate::nearest::suggestion;
use crate::workflow::{RawBest, RawTask, must_have};

/// Tables of tasks of which one task is the best.
pub(crate) struct TaskComparison {
    /// As placeholders call the best one: `tasks.train.best` or `best.winner`.
    pub name: String,
    /// The places of the tables.
    pub tables: Vec<usize>,
    pub objective: Objective,
}

pub(super) fn best_of_table(table: &str) -> String {
    format!("tasks.{table}.best")
}

fn best_of_several(raw: &RawBest) -> String {
    format!("best.{}", raw.name.value)
}

/// The comparisons, and the names of those of which something wrong was reported.
pub(super) fn comparisons(
    raws: &[RawTask],
    several: &[RawBest],
    cx: &mut Cx<'_>,
) -> (Vec<TaskComparison>, Vec<String>) {
    let own = raws.iter().enumerate().filter_map(|(table, raw)| {
        let objective = raw.measured.best.clone()?;
        Some(TaskComparison { name: best_of_table(&raw.name.value), tables: vec![table], objective })
    });
    let mut all: Vec<TaskComparison> = own.collect();
    let mut wrong = Vec::new();
    for raw in several {
        match comparison(raw, raws, cx) {
            Ok(comparison) => all.push(comparison),
            Err(Reported) => wrong.push(best_of_several(raw)),
        }
    }
    (all, wrong)
}

fn comparison(raw: &RawBest, raws: &[RawTask], cx: &mut Cx<'_>) -> Result<TaskComparison, Reported> {
    let mut tables = Vec::new();
    for of in &raw.of {
        let Some(table) = raws.iter().position(|task| task.name.value == of.value) else {
            let names = raws.iter().map(|task| &task.name.value[..]);
            return cx
                .error(of.span, format!("there is no table `{}` of tasks", of.value))
                .help(suggestion("tables", &of.value, names))
                .fail();
        };
        if tables.contains(&table) {
            return cx.error(of.span, format!("`of` names `{}` twice", of.value)).fail();
        }
        tables.push(table);
    }
    let (metric, objective) = raw.objective.clone().filter(|_| !tables.is_empty()).ok_or(Reported)?;
    for table in &tables {
        let RawTask { name, measured, .. } = &raws[*table];
        if !must_have(&metric, &format!("task `{}`", name.value), &measured.metrics, &mut cx.diags) {
            return Err(Reported);
        }
    }
    // In the order of the file, as of equals the first task is the best.
    tables.sort_unstable();
    Ok(TaskComparison { name: best_of_several(raw), tables, objective })
}
