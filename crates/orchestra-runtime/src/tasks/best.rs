//! The best task of a table, and what later tasks take of it. What is better is decided in `orchestra_core::tasks`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use orchestra_core::tasks::{EndClass, best};
use orchestra_plan::{BEST_FOLDER, BestOf, TaskPlan, TasksPlan};
use orchestra_store::TaskEnded;

use crate::tasks::earlier::KnownTask;

/// The last end of a task, as far as later ones depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LastEnd {
    /// Microseconds since 1970; 0 for a task that has not ended.
    pub at: u64,
    /// The last value of its objective, if it is done.
    pub value: Option<f64>,
}

impl LastEnd {
    pub fn of(task: &TaskPlan, ended: &TaskEnded) -> Self {
        let objective = task.best.filter(|_| ended.class == EndClass::Done.as_str());
        let values = objective.and_then(|of| ended.metrics.get(&task.metrics[of.metric].name));
        Self { at: ended.at, value: values.map(|values| values.last) }
    }

    /// Of a task of an earlier start.
    pub fn of_known(task: &TaskPlan, known: &KnownTask) -> Self {
        let of = |ended| Self::of(task, ended);
        let end = known.ended.as_ref().map_or_else(Self::default, of);
        Self { value: end.value.filter(|_| known.is_done), ..end }
    }
}

/// Which task of a table is the best of those that are done, by what is known of all tasks of the plan: its place in the plan. `None` where none
/// has a value of the metric, and of a table that does not say what is better.
pub fn best_task(plan: &TasksPlan, table: &str, known: &[KnownTask]) -> Option<usize> {
    let of_table = |(_, (task, _)): &(usize, (&TaskPlan, &KnownTask))| task.name == table;
    let ends = plan.tasks.iter().zip(known).enumerate().filter(of_table);
    let goal = plan.tasks.iter().find(|task| task.name == table)?.best?.goal;
    best(goal, ends.filter_map(|(at, (task, known))| Some((at, LastEnd::of_known(task, known).value?))))
}

/// The task that the link of a table leads to.
pub fn linked(plan: &TasksPlan, output: &Path, table: &str) -> Option<usize> {
    let to = fs::read_link(output.join(BEST_FOLDER).join(table)).ok()?;
    (0..plan.tasks.len()).find(|task| target(plan, *task) == to)
}

/// Links the best of each of these tables, for what is planned when all of their tasks have ended. A table of which none is the best has no link then.
pub fn link_all(plan: &TasksPlan, output: &Path, tables: &[String], ends: &[LastEnd]) -> io::Result<()> {
    for (at, table) in tables.iter().enumerate() {
        let tasks = (0..plan.tasks.len()).filter(|task| plan.tasks[*task].name == *table).collect();
        if let Some(best) = best_of(plan, &BestOf { table: table.clone(), tasks }, ends) {
            link(plan, output, (table, best), plan.tasks.len() + at)?;
        }
    }
    Ok(())
}

pub fn best_of(plan: &TasksPlan, of: &BestOf, ends: &[LastEnd]) -> Option<usize> {
    let goal = plan.tasks[*of.tasks.first()?].best?.goal;
    best(goal, of.tasks.iter().filter_map(|task| Some((*task, ends[*task].value?))))
}

/// What a task takes of those before it.
pub struct EarlierTasks<'a> {
    /// When those ended that it depends on: of a table whose best it takes, that one alone.
    pub ends: Vec<u64>,
    /// The best of each such table.
    pub best: Vec<(&'a str, usize)>,
}

/// What a task takes of those before it, or a table of which none is the best.
pub fn earlier<'a>(
    plan: &TasksPlan,
    task: &'a TaskPlan,
    ends: &[LastEnd],
) -> Result<EarlierTasks<'a>, &'a str> {
    let best = |of: &'a BestOf| {
        let table = &of.table[..];
        best_of(plan, of, ends).map(|best| (table, best)).ok_or(table)
    };
    let best = task.best_of.iter().map(best).collect::<Result<Vec<_>, _>>()?;
    let must = task.after.iter().filter(|earlier| task.may_fail.binary_search(earlier).is_err());
    let of = must.chain(best.iter().map(|(_, task)| task)).map(|earlier| ends[*earlier].at);
    Ok(EarlierTasks { ends: of.collect(), best })
}

/// Makes the link of a table lead to the output of its best task. `by`: the place of the task that needs it; others may do the same now.
pub fn link(plan: &TasksPlan, output: &Path, (table, best): (&str, usize), by: usize) -> io::Result<()> {
    let (folder, to) = (output.join(BEST_FOLDER), target(plan, best));
    fs::create_dir_all(&folder)?;
    // A name that no table has.
    let next = folder.join(format!("{by}.next"));
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => symlink(to, &next)?,
    }
    fs::rename(next, folder.join(table))
}

/// Where the link of a table leads: relative, so that the output folder may be moved.
fn target(plan: &TasksPlan, best: usize) -> PathBuf {
    // From `.orchestra/best`.
    Path::new("../..").join(&plan.tasks[best].folder).join("output")
}
