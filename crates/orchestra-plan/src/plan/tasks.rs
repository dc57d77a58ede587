//! The tasks of a plan: what will run with what, fully resolved. Data only.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

pub use orchestra_core::tasks::TaskMetric;
use orchestra_core::tasks::{Demand, Leases, Objective, Retries, TaskMetrics, best, with_earlier};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::digest::hex;
use crate::shell;

pub const TASKS_FOLDER: &str = "tasks";
/// The folder in the output folder with a link to the output of the best task, for each [`BestOf`] by [`BestOf::link`]. It lies apart from the folders of
/// tables, which may be inputs of tasks and sources of items.
pub const BEST_FOLDER: &str = ".orchestra/best";

/// A longer name is cut, and told from others by its checksum.
const MAX_NAME: usize = 120;

/// All tasks, and what they share.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TasksPlan {
    /// In the order of the file.
    pub tasks: Vec<TaskPlan>,
    /// Which of them are compared with one another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best: Vec<BestOf>,
    pub gpus: Vec<TaskGpu>,
    /// How many commands share the CPU.
    pub cpu_slots: usize,
    pub cores: usize,
    /// The folder of the workflow file. What tasks depend on is told apart relative to it, so that a moved folder goes on.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A GPU that tasks get leases of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskGpu {
    /// Its name in the file: `cuda:0`.
    pub name: String,
    /// What `CUDA_VISIBLE_DEVICES` calls it.
    pub uuid: String,
    /// Bytes that leases may take together: what was free when the plan was made, less `headroom`. `None` where that is not known.
    pub memory: Option<u64>,
    /// `devices.headroom`
    pub headroom: u64,
    /// Bytes of `memory` that models of the file may take, as long as they are there.
    pub of_models: u64,
    /// Bytes of it that more than one worker of each model leaves to commands with a share.
    pub of_shares: u64,
}

/// A command with all its values. Its place in [`TasksPlan::tasks`] is its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskPlan {
    /// `train[lr=0.1,seed=2]`; the same in every run.
    pub id: String,
    pub name: String,
    /// What fills its placeholders.
    pub values: Vec<(String, String)>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Absolute.
    pub cwd: PathBuf,
    /// In addition to the environment of the run without its credentials; last are values that the text of a shell names.
    pub env: Vec<(String, String)>,
    /// Credentials of the run that it gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pass_env: Vec<String>,
    /// What it needs to run.
    pub demand: Demand,
    /// Tasks that must have ended before, in order, without doubles; well, unless it comes after them for `best_of` alone.
    pub after: Vec<usize>,
    /// Of which it takes the best task: places in [`TasksPlan::best`].
    pub best_of: Vec<usize>,
    /// Values of other tasks that it takes, in the order of the texts that they stand in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub late_values: Vec<LateValue>,
    /// Those of `after` that may also have failed, in order.
    pub may_fail: Vec<usize>,
    /// Sinks whose pipelines must have ended before, with all their items; items may have failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after_sinks: Vec<String>,
    /// How long an attempt may take.
    pub timeout: Option<Duration>,
    /// How long it may write nothing.
    pub quiet: Option<Duration>,
    /// How often it is tried again.
    pub retries: Retries,
    /// The number of the signal that asks it to end.
    pub stop_signal: i32,
    /// How long it has to do so before it is killed.
    pub grace: Duration,
    /// Bytes of data that each of its processes may have.
    pub memory: Option<u64>,
    /// Files and folders that it reads; absolute.
    pub inputs: Vec<PathBuf>,
    /// Files and folders that it must leave; absolute.
    pub outputs: Vec<PathBuf>,
    /// Its folder, relative to the output folder: the logs of its attempts, and `output/`, which is its own.
    pub folder: PathBuf,
    /// What is read from the lines of its command.
    pub metrics: Vec<TaskMetric>,
}

/// Tasks of which one is the best.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BestOf {
    /// As placeholders call it: `tasks.train.best`, or `best.winner` where several tables are compared.
    pub name: String,
    /// The tasks, in order.
    pub tasks: Vec<usize>,
    pub objective: Objective,
}

/// A value of another task, in a text of a command: known when that has ended. Until then its placeholder stands there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LateValue {
    pub of: ValueOwner,
    /// The name of the value: `lr`, that of a metric, or `task`.
    pub name: String,
    /// The text: a word of the command, or behind those a variable.
    pub text: usize,
    /// Where the placeholder stands in it, in bytes.
    pub at: Range<usize>,
    /// It is a word of a shell.
    pub is_word: bool,
}

/// Whose value is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueOwner {
    /// A task, by its place.
    Task(usize),
    /// The best of several, by their place in [`TasksPlan::best`].
    Best(usize),
}

impl BestOf {
    /// The name of its link in [`BEST_FOLDER`].
    pub fn link(&self) -> &str {
        link_name(&self.name)
    }

    /// The best by the metrics of those that are done: its place in the plan.
    pub fn winner<'a>(&self, done: impl Fn(usize) -> Option<&'a TaskMetrics>) -> Option<usize> {
        let value = |task: &usize| Some((*task, self.objective.value_of(done(*task)?)?));
        best(self.objective.goal, self.tasks.iter().filter_map(value))
    }
}

impl TaskPlan {
    /// The command for people: a text of the shell has values that it names by variables.
    pub fn in_full(&self) -> Vec<String> {
        self.command.iter().map(|word| shell::in_full(word, &self.env)).collect()
    }

    /// The command and the variables with the values of other tasks, which are given in their order.
    pub fn with_late_values(&self, values: &[String]) -> (Vec<String>, Vec<(String, String)>) {
        let (mut command, mut env) = (self.command.clone(), self.env.clone());
        // From the last to the first, so that no place moves.
        for (of, value) in self.late_values.iter().zip(values).rev() {
            let n_words = command.len();
            let value = match of.is_word && !shell::is_plain(value) {
                true => {
                    // The planner has numbered at most as many.
                    env.push((shell::variable(env.len() + 1), value.clone()));
                    shell::word(&env[env.len() - 1].0)
                }
                false => value.clone(),
            };
            match command.get_mut(of.text) {
                Some(word) => word.replace_range(of.at.clone(), &value),
                None => env[of.text - n_words].1.replace_range(of.at.clone(), &value),
            }
        }
        (command, env)
    }
}

/// The name of a link to the best: that of the table, or where several are compared `best.NAME`. No table has a dot in its name.
pub(crate) fn link_name(best: &str) -> &str {
    best.strip_prefix("tasks.").and_then(|name| name.strip_suffix(".best")).unwrap_or(best)
}

/// The values of a task that others may take, by their names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedValues<'a> {
    pub id: &'a str,
    pub values: &'a [(String, String)],
    pub metrics: &'a [TaskMetric],
}

impl<'a> NamedValues<'a> {
    /// What is known before it has ended: a value of its table, or its id. `None`: the name is that of a metric.
    pub fn text(self, name: &str) -> Option<&'a str> {
        let own = self.values.iter().find(|(own, _)| own == name).map(|(_, value)| &value[..]);
        let is_metric = self.metrics.iter().any(|metric| metric.name == name);
        own.or((!is_metric).then_some(self.id))
    }

    /// The same when it has ended: of the metric that it is compared by the value that counts, of others the last one. `None`: that is no finite number.
    pub fn get(self, name: &str, objective: Option<&Objective>, metrics: &TaskMetrics) -> Option<String> {
        if let Some(text) = self.text(name) {
            return Some(text.to_owned());
        }
        let value = match objective.filter(|objective| objective.metric == name) {
            Some(objective) => objective.value_of(metrics),
            None => metrics.get(name).map(|values| values.last).filter(|last| last.is_finite()),
        };
        value.map(number_text)
    }
}

/// A number as texts have it: as short as it can be read back.
fn number_text(value: f64) -> String {
    const LONGEST: usize = 20;
    let plain = value.to_string();
    if plain.len() <= LONGEST { plain } else { format!("{value:e}") }
}

impl TasksPlan {
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The place in [`TasksPlan::best`] of what placeholders call so.
    pub fn best_named(&self, name: &str) -> Option<&BestOf> {
        self.best.iter().find(|best| best.name == name)
    }

    /// What another task has noted of a value: `done` is a task that has ended, with its metrics. `None`: the metric has no finite value.
    pub fn late_value(&self, of: &LateValue, (task, metrics): (usize, &TaskMetrics)) -> Option<String> {
        let task = &self.tasks[task];
        let best = match of.of {
            ValueOwner::Best(best) => Some(&self.best[best]),
            ValueOwner::Task(_) => self.best.iter().find(|best| best.link() == task.name),
        };
        let values = NamedValues { id: &task.id, values: &task.values, metrics: &task.metrics };
        values.get(&of.name, best.map(|best| &best.objective), metrics)
    }

    /// Everything, free.
    pub fn leases(&self) -> Leases {
        let memory: Vec<u64> = self.gpus.iter().map(|gpu| gpu.memory.unwrap_or(0)).collect();
        let mut leases = Leases::new(&memory, self.cpu_slots, self.cores);
        for (at, gpu) in self.gpus.iter().enumerate() {
            leases.saw_free(at, gpu.memory);
            leases.models_take(at, gpu.of_models);
        }
        leases
    }

    /// These tasks alone, by the names of their tables, by their ids or by all of their values, or as those that are compared, and all that they come
    /// after; the first name that is none, as an error.
    pub fn only(&self, names: &[String]) -> Result<Self, String> {
        let mut kept = vec![false; self.tasks.len()];
        let mut open = Vec::new();
        for name in names {
            let of = |is_it: &dyn Fn(&TaskPlan) -> bool| -> Vec<usize> {
                (0..self.tasks.len()).filter(|task| is_it(&self.tasks[*task])).collect()
            };
            let mut named = of(&|task| task.name == *name || task.id == *name);
            if let Some(best) = self.best_named(name) {
                named.extend(&best.tasks);
            }
            if named.is_empty() {
                let id = id_of(name).ok_or_else(|| name.clone())?;
                named = of(&|task| task.id == id);
            }
            if named.is_empty() {
                return Err(name.clone());
            }
            open.extend(named);
        }
        for task in with_earlier(open, |task| &self.tasks[task].after) {
            kept[task] = true;
        }
        // How many are kept before each is its place among them.
        let count =
            |before: &mut usize, kept: &bool| Some(std::mem::replace(before, *before + usize::from(*kept)));
        let places: Vec<usize> = kept.iter().scan(0, count).collect();
        let moved = |tasks: &[usize]| tasks.iter().map(|task| places[*task]).collect();
        let tasks = self.tasks.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(task, _)| {
            let mut late_values = task.late_values.clone();
            for late in &mut late_values {
                if let ValueOwner::Task(task) = &mut late.of {
                    *task = places[*task];
                }
            }
            TaskPlan {
                after: moved(&task.after),
                may_fail: moved(&task.may_fail),
                late_values,
                ..task.clone()
            }
        });
        let best = self.best.iter().map(|best| {
            let of_kept: Vec<usize> = best.tasks.iter().copied().filter(|task| kept[*task]).collect();
            BestOf { tasks: moved(&of_kept), ..best.clone() }
        });
        Ok(Self { tasks: tasks.collect(), best: best.collect(), ..self.clone() })
    }
}

/// The id of a task, and its folder below that of all tasks. Both are the same in every run.
pub(crate) fn task_names(table: &str, values: &[(String, String)]) -> (String, PathBuf) {
    if values.is_empty() {
        return (table.to_owned(), table.into());
    }
    let pairs: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let written = pairs.join(",");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-=,@".contains(c);
    (id(table, &written), PathBuf::from(table).join(short(&written, is_plain)))
}

/// The id of the task that `train[lr=0.1,seed=2]` names with its values in full, of which a long id has a part.
pub(crate) fn id_of(written: &str) -> Option<String> {
    let (table, values) = written.strip_suffix(']')?.split_once('[')?;
    Some(id(table, values))
}

fn id(table: &str, written: &str) -> String {
    format!("{table}[{}]", short(written, |c| !c.is_control()))
}

/// The text with `_` for characters that must not be in it. Where anything was lost a checksum of all of it follows.
fn short(text: &str, may_be: impl Fn(char) -> bool) -> String {
    if text.len() <= MAX_NAME && text.chars().all(&may_be) {
        return text.to_owned();
    }
    let kept = text.chars().map(|c| if may_be(c) { c } else { '_' });
    let mut kept: String = kept.collect();
    kept.truncate(kept.floor_char_boundary(MAX_NAME - 9));
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    format!("{kept}-{}", &hex(&digest)[..8])
}
