//! Which task comes after which: what follows from inputs that are outputs of others, and what can never start.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::{Path, PathBuf};

use orchestra_core::tasks::in_order;

use super::MAX_LINKS;
use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::plan::TaskPlan;

/// Which tasks write which files and folders.
#[derive(Default)]
struct Makers(BTreeMap<PathBuf, usize>);

impl Makers {
    /// Those of the path, of a folder that it lies in, and of what lies in it.
    fn of(&self, path: &Path) -> impl Iterator<Item = (&Path, usize)> {
        let around = path.ancestors().filter_map(|path| self.0.get_key_value(path));
        // Paths are in the order of their components: what lies in a folder follows it.
        let within = self.0.range::<Path, _>((Excluded(path), Unbounded));
        let within = within.take_while(move |(output, _)| output.starts_with(path));
        around.chain(within).map(|(output, task)| (output.as_path(), *task))
    }
}

/// Lets a task that reads what another one declares to write come after it; reports what two tasks write, what a task reads and writes, circles, and
/// more than [`MAX_LINKS`].
pub(super) fn complete(
    tasks: &mut [TaskPlan],
    span_of: impl Fn(usize) -> Span,
    cx: &mut Cx<'_>,
) -> Result<(), Reported> {
    let makers = makers(tasks, &span_of, cx)?;
    let mut links: usize = tasks.iter().map(|task| task.after.len()).sum();
    for (at, task) in tasks.iter_mut().enumerate() {
        let mut implied = BTreeSet::new();
        for input in &task.inputs {
            for (output, maker) in makers.of(input) {
                if maker == at {
                    let (output, input) = (output.display(), input.display());
                    return cx.error(span_of(at), format!("task `{}` reads `{input}` and writes `{output}`", task.id))
                        .label("what it writes would be a change of what it reads, and no start would find it done")
                        .help("name what it reads without what it writes: inputs = [\"data/raw\"]")
                        .fail();
                }
                let is_new = implied.insert(maker) && task.after.binary_search(&maker).is_err();
                links += usize::from(is_new);
                if links > MAX_LINKS {
                    return cx
                        .error(
                            span_of(at),
                            format!("tasks come after one another more than {MAX_LINKS} times"),
                        )
                        .label(format!("in `{}` are outputs of many tasks", input.display()))
                        .help("let a task between come after the many, and these after that one")
                        .fail();
                }
            }
        }
        task.may_fail.retain(|earlier| !implied.contains(earlier));
        implied.extend(&task.after);
        task.after = implied.into_iter().collect();
    }
    let Some(circle) = circle(tasks) else { return Ok(()) };
    let names: Vec<String> = circle.iter().map(|task| format!("`{}`", tasks[*task].id)).collect();
    cx.error(span_of(circle[0]), format!("task {} would come after itself", names[0]))
        .label(format!("it comes after {}", names[1..].join(", which comes after ")))
        .help("`after`, values of other tasks and inputs that are outputs of others make an order; it must not be a circle")
        .fail()
}

/// What is written by whom. Reports two tasks that write the same, or one into what the other one makes.
fn makers(tasks: &[TaskPlan], span_of: impl Fn(usize) -> Span, cx: &mut Cx<'_>) -> Result<Makers, Reported> {
    let mut makers = Makers::default();
    for (at, task) in tasks.iter().enumerate() {
        for output in &task.outputs {
            if let Some((path, other)) = makers.of(output).find(|(_, other)| *other != at) {
                let (id, other, own) = (&task.id, &tasks[other].id, output.display());
                let what = match path == output {
                    true => format!("tasks `{other}` and `{id}` both write `{own}`"),
                    false => {
                        format!("task `{other}` writes `{}` and task `{id}` writes `{own}`", path.display())
                    }
                };
                return cx.error(span_of(at), what)
                    .label("what one makes would be a change of what the other one has made")
                    .help("put a value into its path, or write it into the task's own folder: outputs = [\"{output}/model.onnx\"]").fail();
            }
            makers.0.insert(output.clone(), at);
        }
    }
    Ok(makers)
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
