//! Values of tasks in the tables of items: fills them in, and notes which tables wait for which tasks. Where a task will have its output is known
//! before it runs; what will lie there is not.

use std::collections::BTreeMap;
use std::path::Path;

use orchestra_core::tasks::with_earlier;

use super::{Expander, TaskContext, TaskTables, fill};
use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::digest::digest;
use crate::plan::{DeferredPlan, TaskHistory, TaskResults, TasksPlan};
use crate::template::{TemplatePart, parts};
use crate::tree::{Table, Toml, TomlNode};
use crate::workflow::RawTask;

/// The tables that use values of tasks, by their section and name.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    tables: BTreeMap<(String, String), Used>,
    /// Placeholders of values that no task has noted, and where they stand.
    unknown: Vec<(String, Span)>,
}

/// What a table uses, each with a text that does.
#[derive(Debug, Default)]
struct Used {
    /// The tasks, by their places.
    tasks: BTreeMap<usize, Span>,
    /// Of which tasks it uses the best, by names such as `best.winner`.
    best: BTreeMap<String, Span>,
    unknown: Vec<(String, Span)>,
}

/// What texts of a key are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextRole {
    /// Patterns of paths, as `Paths`.
    Patterns,
    /// Paths relative to the folder of the workflow file. The fingerprint has them as written, and a moved folder goes on.
    Paths,
    Text,
}

/// The parts of a plan's fingerprint that say when tasks made what is read: they count once an item is finished.
const OUTPUT_OF: &str = "the output of `";

/// Whether a part of a plan's fingerprint says which output of a task was read.
pub fn is_output_of_task(part: &str) -> bool {
    part.starts_with(OUTPUT_OF)
}

/// Tables that may use values of tasks.
const SECTIONS: [(&str, &str); 4] =
    [("sources", "source"), ("models", "model"), ("stages", "stage"), ("sinks", "sink")];

const VALUES: [&str; 2] = ["{tasks.", "{best."];

impl Deferred {
    /// Puts values of tasks into the tables of items. What is wrong with the tasks themselves is left to [`super::expand`] to say.
    pub fn fill(tree: &mut Table, raws: &[RawTask], tables: &TaskTables, cx: &mut Cx<'_>) -> Self {
        let mut deferred = Self::default();
        let around = TaskContext::default();
        let expander = Expander::new(raws, tables, &around, cx);
        let results = cx.host.task_results(&cx.output);
        for entry in tree.entries.iter_mut().filter(|entry| entry.key != "tasks") {
            let of_items = SECTIONS.iter().any(|(section, _)| *section == entry.key);
            let Toml::Table(tables) = &mut entry.node.value else { continue };
            if !of_items {
                for key in tables.entries.extract_if(.., |key| uses_tasks(&key.node)) {
                    cx.error(key.node.span, format!("`{}` cannot use values of tasks", key.key))
                        .help("tasks, sources, models, stages and sinks can");
                }
                continue;
            }
            for table in tables.entries.iter_mut().filter(|table| uses_tasks(&table.node)) {
                let mut used = Used::default();
                let Toml::Table(keys) = &mut table.node.value else { continue };
                for key in &mut keys.entries {
                    let role = match (&entry.key[..], &key.key[..]) {
                        ("sources", "paths") => TextRole::Patterns,
                        ("sources", _) => TextRole::Paths,
                        _ => TextRole::Text,
                    };
                    used.node(&mut key.node, (&expander, &results), role, cx);
                }
                deferred.unknown.append(&mut used.unknown);
                deferred.tables.insert((entry.key.clone(), table.key.clone()), used);
            }
        }
        deferred
    }

    /// Whether no table uses values of tasks.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether the table uses values of tasks: `models`, `digits`.
    pub fn has(&self, section: &str, name: &str) -> bool {
        self.tables.contains_key(&(section.to_owned(), name.to_owned()))
    }

    /// The tasks that are used, each with a text that uses a value of it.
    fn tasks(&self) -> BTreeMap<usize, Span> {
        self.tables
            .values()
            .rev()
            .flat_map(|used| used.tasks.iter().map(|(task, span)| (*task, *span)))
            .collect()
    }

    /// The tables of tasks of which the best is used, each with a text that does.
    fn best(&self) -> BTreeMap<&String, Span> {
        self.tables
            .values()
            .rev()
            .flat_map(|used| used.best.iter().map(|(table, span)| (table, *span)))
            .collect()
    }

    /// Whether all that is used is there, by what is `done` of the tasks; `is_best` says whether it is known which task of a table is the best.
    pub fn is_done(&self, done: impl Fn(usize) -> bool, is_best: impl Fn(&str) -> bool) -> bool {
        self.tasks().into_keys().all(done) && self.best().into_keys().all(|table| is_best(table))
    }

    /// Reports metrics that have no value, although their tasks are done.
    pub fn must_be_known(&self, cx: &mut Cx<'_>) {
        for (placeholder, span) in &self.unknown {
            cx.error(*span, format!("`{{{placeholder}}}` has no value: its task has reported no finite one"))
                .help("`orchestra tasks` shows what was read from its lines by `metrics`");
        }
    }

    /// Reports tasks that come after a sink and before the tables of items: those start together.
    pub fn check(&self, plan: &TasksPlan, cx: &mut Cx<'_>) {
        let best = self.best();
        let used = plan.best.iter().filter_map(|of| Some((of, *best.get(&of.name)?)));
        let of_best = used.flat_map(|(of, span)| of.tasks.iter().map(move |task| (*task, span)));
        for (task, span) in self.tasks().into_iter().chain(of_best) {
            let earlier = with_earlier([task], |task| &plan.tasks[task].after);
            let Some(held) = earlier.into_iter().map(|t| &plan.tasks[t]).find(|t| !t.after_sinks.is_empty())
            else {
                continue;
            };
            let (id, sink) = (&plan.tasks[task].id, &held.after_sinks[0]);
            let through = match held.id == *id {
                true => String::new(),
                false => format!(" comes after task `{}`, which", held.id),
            };
            cx.error(span, format!("task `{id}`{through} comes after sink `{sink}`, so no source, model, stage or sink can use its values"))
                .label("all of these start together, when the tasks whose values they use have ended")
                .help("put what comes later into a workflow file of its own, and run that by a task: command = [\"orchestra\", \"run\", \"next.toml\"]");
            return;
        }
    }

    /// Which outputs of tasks the sources and stages read, as parts of the fingerprint: a name and a digest of when these tasks have ended. Of
    /// models the contents count, which are a part by themselves.
    pub fn outputs(&self, tasks: &TasksPlan, history: &TaskHistory) -> Vec<(String, String)> {
        let mut outputs = Vec::new();
        for ((section, name), used) in &self.tables {
            if !["sources", "stages"].contains(&&section[..]) {
                continue;
            }
            let mut ends: BTreeMap<String, Vec<(&str, Option<u64>)>> = BTreeMap::new();
            let end = |task: usize| (&tasks.tasks[task].id[..], history.ended_at.get(&task).copied());
            for task in used.tasks.keys() {
                ends.entry(tasks.tasks[*task].name.clone()).or_default().push(end(*task));
            }
            for best in used.best.keys() {
                let of_best = history.linked.get(best).map(|task| end(*task));
                ends.entry(best.clone()).or_default().extend(of_best);
            }
            let reader = in_words(section, name);
            outputs.extend(
                ends.iter().map(|(of, ends)| (format!("{OUTPUT_OF}{of}` for {reader}"), digest(ends))),
            );
        }
        outputs
    }

    pub fn plan(&self, tasks: &TasksPlan, pipelines: Vec<String>) -> DeferredPlan {
        DeferredPlan {
            tasks: self.tasks().into_keys().map(|task| tasks.tasks[task].id.clone()).collect(),
            best: self.best().into_keys().cloned().collect(),
            tables: self.tables.keys().map(|(section, name)| in_words(section, name)).collect(),
            pipelines,
        }
    }
}

impl Used {
    fn node(
        &mut self,
        node: &mut TomlNode,
        of: (&Expander<'_>, &TaskResults),
        role: TextRole,
        cx: &mut Cx<'_>,
    ) {
        match &mut node.value {
            Toml::Array(nodes) => nodes.iter_mut().for_each(|node| self.node(node, of, role, cx)),
            Toml::Table(table) => {
                table.entries.iter_mut().for_each(|entry| self.node(&mut entry.node, of, role, cx));
            }
            Toml::String(text) if has_value(text) => {
                if let Ok(filled) = self.text(text, node.span, of, role, cx) {
                    node.value = filled;
                }
            }
            _ => {}
        }
    }

    /// The text with its values; other braces are text: those of `*.{png,jpg}`. A metric that is all of it is a number.
    fn text(
        &mut self,
        text: &str,
        span: Span,
        (of, results): (&Expander<'_>, &TaskResults),
        role: TextRole,
        cx: &mut Cx<'_>,
    ) -> Result<Toml, Reported> {
        let mut fill = fill::Fill::new(of, &[], Path::new(""));
        fill.results = Some(results);
        let mut filled = String::new();
        let parts = parts(text);
        for part in &parts {
            match part {
                TemplatePart::Text(text) => filled.push_str(text),
                TemplatePart::Name(name) if ["tasks.", "best."].iter().any(|of| name.starts_with(of)) => {
                    let mut value = fill.value(name, span, cx)?;
                    if role != TextRole::Text
                        && filled.is_empty()
                        && let Ok(inside) = Path::new(&value).strip_prefix(&cx.folder)
                    {
                        value = inside.display().to_string();
                    }
                    // The value is no pattern, whatever its folders are called.
                    let is_special = |c: char| role == TextRole::Patterns && "*?[]{}\\!".contains(c);
                    for c in value.chars() {
                        filled.extend(is_special(c).then_some('\\'));
                        filled.push(c);
                    }
                }
                TemplatePart::Name(name) => filled.push_str(&format!("{{{name}}}")),
            }
        }
        let is_number = parts.len() == 1 && fill.late_values.iter().any(|late| fill.is_metric(late));
        for task in &fill.after {
            self.tasks.entry(*task).or_insert(span);
        }
        for best in &fill.best_of {
            self.best.entry(of.comparisons[*best].name.clone()).or_insert(span);
        }
        self.unknown.extend(fill.unknown.into_iter().map(|placeholder| (placeholder, span)));
        let whole = filled.parse().ok().filter(|_| is_number).map(Toml::Integer);
        let number = || filled.parse().ok().filter(|_| is_number).map(Toml::Float);
        Ok(whole.or_else(number).unwrap_or(Toml::String(filled.clone())))
    }
}

/// A table of a section: ``source `pages` ``.
fn in_words(section: &str, name: &str) -> String {
    let what = SECTIONS.iter().find(|(key, _)| *key == section).map_or(section, |(_, what)| what);
    format!("{what} `{name}`")
}

fn has_value(text: &str) -> bool {
    VALUES.iter().any(|value| text.contains(value))
}

fn uses_tasks(node: &TomlNode) -> bool {
    match &node.value {
        Toml::String(text) => has_value(text),
        Toml::Array(nodes) => nodes.iter().any(uses_tasks),
        Toml::Table(table) => table.entries.iter().any(|entry| uses_tasks(&entry.node)),
        _ => false,
    }
}
