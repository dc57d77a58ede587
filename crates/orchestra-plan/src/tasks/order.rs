//! Which task comes after which: what follows from inputs that are outputs of others, and what can never start.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use orchestra_core::tasks::in_order;

use super::TaskPlan;
use crate::diagnostics::{Diagnostics, Span};

/// A task that reads what another one declares to write comes after it.
pub(super) fn add_implied(tasks: &mut [TaskPlan]) {
    let mut makers: HashMap<PathBuf, usize> = HashMap::new();
    for (at, task) in tasks.iter().enumerate() {
        makers.extend(task.outputs.iter().map(|output| (output.clone(), at)));
    }
    for task in tasks {
        let implied: BTreeSet<usize> =
            task.inputs.iter().filter_map(|input| makers.get(input)).copied().collect();
        let after: BTreeSet<usize> = implied.union(&task.after.iter().copied().collect()).copied().collect();
        task.after = after.into_iter().collect();
        task.may_fail.retain(|earlier| !implied.contains(earlier));
    }
}

/// Reports outputs that two tasks write, and circles; whether there are none.
pub(super) fn check(tasks: &[TaskPlan], span_of: impl Fn(usize) -> Span, diags: &mut Diagnostics) -> bool {
    let mut makers: HashMap<&PathBuf, usize> = HashMap::new();
    for (at, task) in tasks.iter().enumerate() {
        for output in &task.outputs {
            if let Some(other) = makers.insert(output, at).filter(|other| *other != at) {
                let other = &tasks[other].id;
                diags
                    .error(span_of(at), format!("tasks `{other}` and `{}` both write `{}`", task.id, output.display()))
                    .help("put a value into its path, or write it into the task's own folder: outputs = [\"{output}/model.onnx\"]");
                return false;
            }
        }
    }
    let Some(circle) = circle(tasks) else { return true };
    let names: Vec<String> = circle.iter().map(|task| format!("`{}`", tasks[*task].id)).collect();
    diags
        .error(span_of(circle[0]), format!("task {} would come after itself", names[0]))
        .label(format!("it comes after {}", names[1..].join(", which comes after ")))
        .help("`after`, values of other tasks and inputs that are outputs of others make an order; it must not be a circle");
    false
}

/// Tasks of which each comes after the next, the first of them again at the end.
fn circle(tasks: &[TaskPlan]) -> Option<Vec<usize>> {
    let mut waits = vec![true; tasks.len()];
    in_order(tasks.len(), |task| &tasks[task].after).into_iter().for_each(|task| waits[task] = false);
    let mut path = vec![waits.iter().position(|waits| *waits)?];
    loop {
        // Each of these waits for another one of these.
        let next = *tasks[*path.last()?].after.iter().find(|earlier| waits[**earlier])?;
        if let Some(begin) = path.iter().position(|task| *task == next) {
            path.push(next);
            return Some(path.split_off(begin));
        }
        path.push(next);
    }
}
