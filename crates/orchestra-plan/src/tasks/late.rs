//! Values of tasks in the tables of items: fills them in, and notes which tables wait for which tasks. Where a task will have its output is known
//! before it runs; what will lie there is not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use orchestra_core::tasks::with_earlier;
use serde::Serialize;

use super::raw::RawTask;
use super::template::{Part, parts};
use super::{Expander, Surroundings, TASKS_FOLDER, TasksPlan, fill, instances};
use crate::diagnostics::{Diagnostics, Span};
use crate::fingerprint::digest;
use crate::nearest::list;
use crate::tree::{Node, Table, Value};

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

/// The tables that use values of tasks.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// `models.digits`
    tables: BTreeMap<String, Used>,
    /// The tasks, by their places, each with a text that uses a value of it.
    uses: BTreeMap<usize, Span>,
    /// The tables of tasks of which they use the best, each with a text that does.
    best: BTreeMap<String, Span>,
}

#[derive(Debug, Default)]
struct Used {
    /// The tasks, by their places.
    tasks: BTreeSet<usize>,
    /// The tables of tasks of which it uses the best.
    best: BTreeSet<String>,
}

/// What texts of a key are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Patterns of paths, as `Paths`.
    Patterns,
    /// Paths relative to the folder of the workflow file. The fingerprint has them as written, and a moved folder goes on.
    Paths,
    Text,
}

/// When the tasks of a plan have ended.
#[derive(Debug, Clone, Default)]
pub struct TasksEnded {
    /// Microseconds since 1970, by the places of the tasks; tasks that are not in it have not.
    pub at: BTreeMap<usize, u64>,
    /// The task that the link of a table leads to.
    pub best: BTreeMap<String, usize>,
}

/// The parts of a plan's fingerprint that say when tasks made what is read: they count once an item is finished.
const OUTPUT_OF: &str = "the output of `";

/// Whether a part of a plan's fingerprint says which output of a task was read.
#[must_use]
pub fn is_output_of_task(part: &str) -> bool {
    part.starts_with(OUTPUT_OF)
}

/// Tables that may use values of tasks.
const SECTIONS: [(&str, &str); 4] =
    [("sources", "source"), ("models", "model"), ("stages", "stage"), ("sinks", "sink")];

const VALUE: &str = "{tasks.";

impl Late {
    /// Puts values of tasks into the tables of items. What is wrong with the tasks themselves is left to [`super::expand`] to say.
    pub fn fill(
        tree: &mut Table,
        raws: &[RawTask],
        around: &Surroundings<'_>,
        diags: &mut Diagnostics,
    ) -> Self {
        let mut late = Self::default();
        if !tree.entries.iter().any(|entry| entry.key != TASKS_FOLDER && uses_tasks(&entry.node)) {
            return late;
        }
        let instances = instances(raws, around, &mut Diagnostics::new("", "")).unwrap_or_default();
        let expander = Expander::new(raws, &instances, around);
        for entry in tree.entries.iter_mut().filter(|entry| entry.key != TASKS_FOLDER) {
            let of_items = SECTIONS.iter().any(|(section, _)| *section == entry.key);
            let Value::Table(tables) = &mut entry.node.value else { continue };
            if !of_items {
                for key in tables.entries.extract_if(.., |key| uses_tasks(&key.node)) {
                    diags
                        .error(key.node.span, format!("`{}` cannot use values of tasks", key.key))
                        .help("tasks, sources, models, stages and sinks can");
                }
                continue;
            }
            for table in tables.entries.iter_mut().filter(|table| uses_tasks(&table.node)) {
                let mut used = Used::default();
                let Value::Table(keys) = &mut table.node.value else { continue };
                for key in &mut keys.entries {
                    let role = match (&entry.key[..], &key.key[..]) {
                        ("sources", "paths") => Role::Patterns,
                        ("sources", _) => Role::Paths,
                        _ => Role::Text,
                    };
                    late.node(&mut key.node, &mut used, &expander, role, diags);
                }
                late.tables.insert(format!("{}.{}", entry.key, table.key), used);
            }
        }
        late
    }

    fn node(
        &mut self,
        node: &mut Node,
        used: &mut Used,
        of: &Expander<'_>,
        role: Role,
        diags: &mut Diagnostics,
    ) {
        match &mut node.value {
            Value::Array(nodes) => {
                nodes.iter_mut().for_each(|node| self.node(node, used, of, role, diags));
            }
            Value::Table(table) => {
                let nodes = table.entries.iter_mut().map(|entry| &mut entry.node);
                nodes.for_each(|node| self.node(node, used, of, role, diags));
            }
            Value::String(text) if text.contains(VALUE) => {
                if let Some(filled) = self.text(text, node.span, used, of, role, diags) {
                    *text = filled;
                }
            }
            _ => {}
        }
    }

    /// The text with its values; other braces are text: those of `*.{png,jpg}`. `None` was reported.
    fn text(
        &mut self,
        text: &str,
        span: Span,
        used: &mut Used,
        of: &Expander<'_>,
        role: Role,
        diags: &mut Diagnostics,
    ) -> Option<String> {
        let mut fill = fill::Fill::new(of, &[], Path::new(""));
        let mut filled = String::new();
        for part in parts(text) {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Name(name) if name.starts_with("tasks.") => {
                    let mut value = fill.value(name, span, diags)?;
                    let folder = of.around.folder;
                    if role != Role::Text
                        && filled.is_empty()
                        && let Ok(inside) = Path::new(&value).strip_prefix(folder)
                    {
                        value = inside.display().to_string();
                    }
                    // The value is no pattern, whatever its folders are called.
                    let is_special = |c: char| role == Role::Patterns && "*?[]{}\\!".contains(c);
                    for c in value.chars() {
                        filled.extend(is_special(c).then_some('\\'));
                        filled.push(c);
                    }
                }
                Part::Name(name) => filled.push_str(&format!("{{{name}}}")),
            }
        }
        used.best.extend(fill.best_of.iter().cloned());
        used.tasks.extend(&fill.after);
        for table in fill.best_of {
            self.best.entry(table).or_insert(span);
        }
        for task in fill.after {
            self.uses.entry(task).or_insert(span);
        }
        Some(filled)
    }

    /// Whether some table uses values of tasks.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether the table uses values of tasks: `models`, `digits`. A program is a model called as its stage: `stage/name`.
    pub fn has(&self, section: &str, name: &str) -> bool {
        let of_stage = || name.split_once('/').is_some_and(|(stage, _)| self.has("stages", stage));
        self.tables.contains_key(&format!("{section}.{name}")) || section == "models" && of_stage()
    }

    /// Whether all that is used is there, by what is `done` of the tasks; `is_best` says whether it is known which task of a table is the best.
    pub fn is_done(&self, done: impl Fn(usize) -> bool, is_best: impl Fn(&str) -> bool) -> bool {
        self.uses.keys().all(|task| done(*task)) && self.best.keys().all(|table| is_best(table))
    }

    /// Reports tasks that come after a sink and before the tables of items: those start together.
    pub fn check(&self, plan: &TasksPlan, diags: &mut Diagnostics) {
        let of_best = |(table, span): (&String, &Span)| {
            let of_table = (0..plan.tasks.len()).filter(|task| plan.tasks[*task].name == *table);
            of_table.map(|task| (task, *span)).collect::<Vec<_>>()
        };
        let uses = self.uses.iter().map(|(task, span)| (*task, *span));
        for (task, span) in uses.chain(self.best.iter().flat_map(of_best)) {
            let earlier = with_earlier([task], |task| &plan.tasks[task].after);
            let Some(held) = earlier.into_iter().map(|t| &plan.tasks[t]).find(|t| !t.after_sinks.is_empty())
            else {
                continue;
            };
            let (id, sink) = (&plan.tasks[task].id, &held.after_sinks[0]);
            let through = if held.id == *id {
                String::new()
            } else {
                format!(" comes after task `{}`, which", held.id)
            };
            diags
                .error(span, format!("task `{id}`{through} comes after sink `{sink}`, so no source, model, stage or sink can use its values"))
                .label("all of these start together, when the tasks whose values they use have ended")
                .help("put what comes later into a workflow file of its own, and run that by a task: command = [\"orchestra\", \"run\", \"next.toml\"]");
            return;
        }
    }

    /// Which outputs of tasks the sources and stages read, as parts of the fingerprint: a name and a digest of when these tasks have ended. Of
    /// models the contents count, which are a part by themselves.
    pub fn outputs(&self, tasks: &TasksPlan, ended: &TasksEnded) -> Vec<(String, String)> {
        let mut outputs = Vec::new();
        let of_items = |section: &str| ["sources", "stages"].contains(&section);
        for (table, used) in &self.tables {
            let Some((section, name)) = table.split_once('.').filter(|(section, _)| of_items(section)) else {
                continue;
            };
            let reader = format!("{} `{name}`", in_words(section));
            let mut ends: BTreeMap<String, Vec<(&str, Option<u64>)>> = BTreeMap::new();
            let end = |task: usize| (&tasks.tasks[task].id[..], ended.at.get(&task).copied());
            for task in &used.tasks {
                ends.entry(tasks.tasks[*task].name.clone()).or_default().push(end(*task));
            }
            for best in &used.best {
                ends.entry(format!("{best}.best"))
                    .or_default()
                    .extend(ended.best.get(best).map(|task| end(*task)));
            }
            outputs.extend(
                ends.iter().map(|(of, ends)| (format!("{OUTPUT_OF}{of}` for {reader}"), digest(ends))),
            );
        }
        outputs
    }

    pub fn plan(&self, tasks: &TasksPlan, pipelines: Vec<String>) -> LatePlan {
        let named = |table: &String| {
            let (section, name) = table.split_once('.').unwrap_or((table, ""));
            format!("{} `{name}`", in_words(section))
        };
        LatePlan {
            tasks: self.uses.keys().map(|task| tasks.tasks[*task].id.clone()).collect(),
            best: self.best.keys().cloned().collect(),
            tables: self.tables.keys().map(named).collect(),
            pipelines,
        }
    }
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

/// What a table of a section is: `source`.
fn in_words(section: &str) -> &str {
    SECTIONS.iter().find(|(key, _)| *key == section).map_or(section, |(_, what)| what)
}

fn uses_tasks(node: &Node) -> bool {
    match &node.value {
        Value::String(text) => text.contains(VALUE),
        Value::Array(nodes) => nodes.iter().any(uses_tasks),
        Value::Table(table) => table.entries.iter().any(|entry| uses_tasks(&entry.node)),
        _ => false,
    }
}
