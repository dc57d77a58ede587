//! What later tasks take of earlier ones: the best of several, and values. What is better is decided in `orchestra_core::tasks`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use orchestra_core::tasks::{EndClass, TaskEnd, TaskMetrics};
use orchestra_plan::{BEST_FOLDER, BestOf, TaskPlan, TasksPlan, ValueOwner};
use orchestra_store::TaskEnded;

use crate::tasks::earlier::KnownTask;

/// The last end of a task, as far as later ones depend on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LastEnd {
    /// Microseconds since 1970; 0 for a task that has not ended.
    pub at: u64,
    /// What it has reported, if it is done.
    pub metrics: Option<TaskMetrics>,
}

impl LastEnd {
    pub fn of(ended: &TaskEnded) -> Self {
        let is_done = ended.class == EndClass::Done.as_str();
        Self { at: ended.at, metrics: is_done.then(|| ended.metrics.clone()) }
    }

    /// Of a task of an earlier start.
    pub fn of_known(known: &KnownTask) -> Self {
        let end = known.ended.as_ref().map_or_else(Self::default, Self::of);
        Self { metrics: end.metrics.filter(|_| known.is_done), ..end }
    }
}

/// The best of several, by how all tasks of the plan have ended last: its place in the plan.
pub fn best_task(of: &BestOf, ends: &[LastEnd]) -> Option<usize> {
    of.winner(|task| ends[task].metrics.as_ref())
}

/// The task that a link leads to.
pub fn linked(plan: &TasksPlan, output: &Path, of: &BestOf) -> Option<usize> {
    let to = fs::read_link(output.join(BEST_FOLDER).join(of.link())).ok()?;
    (0..plan.tasks.len()).find(|task| target(&plan.tasks[*task].folder) == to)
}

/// The folders of the tasks that all links lead to, by the names of the links.
pub fn all_linked(output: &Path) -> BTreeMap<String, PathBuf> {
    let link = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let to = fs::read_link(entry.path()).ok()?;
        let folder = to.strip_prefix("../..").ok()?.parent()?.to_owned();
        Some((entry.file_name().into_string().ok()?, folder))
    };
    fs::read_dir(output.join(BEST_FOLDER)).into_iter().flatten().filter_map(link).collect()
}

/// Links the best of these, by their names, for what is planned when all of their tasks have ended. Where none is the best there is no link then.
pub fn link_all(plan: &TasksPlan, output: &Path, names: &[String], ends: &[LastEnd]) -> io::Result<()> {
    for (at, of) in plan.best.iter().enumerate().filter(|(_, of)| names.contains(&of.name)) {
        match best_task(of, ends) {
            Some(best) => link(plan, output, (of, best), plan.tasks.len() + at)?,
            None => match fs::remove_file(output.join(BEST_FOLDER).join(of.link())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
    }
    Ok(())
}

/// What a task takes of those before it.
pub struct EarlierTasks<'a> {
    /// When those ended that it depends on: of those whose best it takes, that one alone.
    pub ends: Vec<u64>,
    /// The best of each of [`TaskPlan::best_of`].
    pub best: Vec<(&'a BestOf, usize)>,
    /// The command and its variables, with the values of others.
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// What a task takes of those before it, or why it cannot be started: none of several is the best, or a metric has no value.
pub fn earlier<'a>(
    plan: &'a TasksPlan,
    task: &TaskPlan,
    ends: &[LastEnd],
) -> Result<EarlierTasks<'a>, TaskEnd> {
    let best = |of: &usize| {
        let of = &plan.best[*of];
        best_task(of, ends).map(|best| (of, best)).ok_or_else(|| TaskEnd::NoBest(of.name.clone()))
    };
    let best = task.best_of.iter().map(best).collect::<Result<Vec<_>, _>>()?;
    let must = task.after.iter().filter(|earlier| task.may_fail.binary_search(earlier).is_err());
    let of = must.chain(best.iter().map(|(_, task)| task)).map(|earlier| ends[*earlier].at);
    let mut values = Vec::new();
    for late in &task.late_values {
        let owner = match late.of {
            ValueOwner::Task(task) => Some(task),
            ValueOwner::Best(of) => task.best_of.iter().position(|own| *own == of).map(|at| best[at].1),
        };
        let owner = owner.unwrap_or_default();
        let value = ends[owner].metrics.as_ref().and_then(|metrics| plan.late_value(late, (owner, metrics)));
        let none = || TaskEnd::NoValue { task: plan.tasks[owner].id.clone(), metric: late.name.clone() };
        values.push(value.ok_or_else(none)?);
    }
    let (command, env) = task.with_late_values(&values);
    Ok(EarlierTasks { ends: of.collect(), best, command, env })
}

/// Makes a link lead to the output of the best task. `by`: the place of the task that needs it; others may do the same now.
pub fn link(plan: &TasksPlan, output: &Path, (of, best): (&BestOf, usize), by: usize) -> io::Result<()> {
    let (folder, to) = (output.join(BEST_FOLDER), target(&plan.tasks[best].folder));
    fs::create_dir_all(&folder)?;
    // A name that no link has.
    let next = folder.join(format!("{by}.next"));
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => symlink(to, &next)?,
    }
    fs::rename(next, folder.join(of.link()))
}

/// Where a link to the output of a task leads, which has this folder: relative, so that the output folder may be moved.
fn target(folder: &Path) -> PathBuf {
    // From `.orchestra/best`.
    Path::new("../..").join(folder).join("output")
}
