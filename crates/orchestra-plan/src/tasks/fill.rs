//! Fills the placeholders of one task, and notes which tasks it comes after by that.

use std::collections::BTreeSet;
use std::path::Path;

use orchestra_core::tasks::TaskMetrics;

use super::Expander;
use super::combine::RESERVED;
use super::comparisons::best_of_table;
use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::nearest::{list, suggestion};
use crate::plan::{BEST_FOLDER, LateValue, NamedValues, TASKS_FOLDER, TaskResults, ValueOwner, link_name};
use crate::shell;
use crate::template::{TemplatePart, parts};
use crate::workflow::{RawCommand, RawTask};

/// Names of variables with their values.
type Variables = Vec<(String, String)>;

pub(super) struct Fill<'a> {
    of: &'a Expander<'a>,
    values: &'a [(String, String)],
    output: &'a Path,
    /// Tasks of which a text has used a value.
    pub after: BTreeSet<usize>,
    /// Comparisons, by their places, of whose best task a text has used a value.
    pub best_of: BTreeSet<usize>,
    /// Sinks of which a text has used the path.
    pub after_sinks: BTreeSet<String>,
    /// Values that are known only when other tasks have ended, in the order of the texts.
    pub late_values: Vec<LateValue>,
    /// Values that a shell command reads from variables of its environment, because they cannot stand in its text as they are.
    variables: Variables,
    /// The number of the text that is being filled, as in [`LateValue::text`]; `None` where late values are not allowed.
    late_text: Option<usize>,
    /// Metrics and best tasks of earlier tasks. There for the tables of items, whose late values are filled in from these.
    pub results: Option<&'a TaskResults>,
    /// Placeholders of late values that `results` do not have.
    pub unknown: Vec<String>,
}

impl<'a> Fill<'a> {
    pub fn new(of: &'a Expander<'a>, values: &'a [(String, String)], output: &'a Path) -> Self {
        let (after, best_of, after_sinks, late_values, variables) = Default::default();
        let (late_text, results, unknown) = Default::default();
        Self {
            of,
            values,
            output,
            after,
            best_of,
            after_sinks,
            late_values,
            variables,
            late_text,
            results,
            unknown,
        }
    }

    /// The command of a task and the variables of its environment. Both may have late values.
    pub fn command(&mut self, raw: &RawTask, cx: &mut Cx<'_>) -> Result<(Vec<String>, Variables), Reported> {
        let command = match raw.command.as_ref().ok_or(Reported)? {
            RawCommand::Words(words) => {
                let word = |(at, word)| self.late_text(at).text(word, cx);
                words.iter().enumerate().map(word).collect::<Result<_, _>>()?
            }
            RawCommand::Shell(text) => {
                vec!["/bin/sh".to_owned(), "-c".to_owned(), self.late_text(2).shell(text, cx)?]
            }
        };
        let variable = |(at, (name, value)): (usize, &(String, Spanned<String>))| {
            Ok((name.clone(), self.late_text(command.len() + at).text(value, cx)?))
        };
        let mut env = raw.env.iter().enumerate().map(variable).collect::<Result<Vec<_>, _>>()?;
        env.append(&mut self.variables);
        self.late_text = None;
        Ok((command, env))
    }

    /// Allows late values in what is filled next, the text of this number.
    fn late_text(&mut self, text: usize) -> &mut Self {
        self.late_text = Some(text);
        self
    }

    pub fn text(&mut self, text: &Spanned<String>, cx: &mut Cx<'_>) -> Result<String, Reported> {
        self.fill(&text.value, text.span, cx)
    }

    fn fill(&mut self, text: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let mut filled = String::new();
        for part in parts(text) {
            match part {
                TemplatePart::Text(text) => filled.push_str(text),
                TemplatePart::Name(name) => {
                    let value = self.value_at(name, filled.len(), span, cx)?;
                    filled.push_str(&value);
                }
            }
        }
        without_nul(filled, span, cx)
    }

    /// Fills a shell command, in which each value is one word. Values that a shell would interpret are given in variables: see [`shell`].
    pub fn shell(&mut self, text: &Spanned<String>, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let mut filled = String::new();
        for part in parts(&text.value) {
            let name = match part {
                TemplatePart::Text(text) => {
                    filled.push_str(text);
                    continue;
                }
                TemplatePart::Name(name) => name,
            };
            let known = self.late_values.len();
            let value = self.value_at(name, filled.len(), text.span, cx)?;
            let late = self.late_values.get_mut(known).map(|late| {
                late.is_word = true;
                (late.of, late.name.clone())
            });
            let is_late = late.is_some();
            let not_plain = match late {
                Some((of, name)) => {
                    self.texts(of, &name).find(|value| !shell::is_plain(value)).map(str::to_owned)
                }
                None => Some(value.clone()).filter(|value| !shell::is_plain(value)),
            };
            if let Some(value) = &not_plain
                && let Some(within) = shell::enclosing(&filled)
            {
                let error = cx.error(text.span, format!("`{{{name}}}` stands {within}, and its value `{value}` can only be a word by itself"))
                    .help(format!("write {{{name}}} as a word by itself, or `command` as a list"));
                // In arithmetic a shell may run what is in a variable, too.
                if within != shell::Within::Arithmetic {
                    error.help(format!(
                        "or give it a name: env = {{ VALUE = \"{{{name}}}\" }}, and \"$VALUE\" in the text"
                    ));
                }
                return error.fail();
            }
            let not_plain = not_plain.filter(|_| !is_late);
            let part_files = not_plain.as_deref().filter(|_| name.starts_with("sinks."));
            filled.push_str(&match (part_files.and_then(shell::part_files), &not_plain) {
                (Some((stem, glob)), _) if shell::is_plain(stem) => format!("{stem}{glob}"),
                (Some((stem, glob)), _) => self.variable(without_nul(stem.to_owned(), text.span, cx)?) + glob,
                (None, Some(value)) => self.variable(without_nul(value.clone(), text.span, cx)?),
                (None, None) => value,
            });
        }
        without_nul(filled, text.span, cx)
    }

    /// The word by which a shell command reads this value from a variable.
    fn variable(&mut self, value: String) -> String {
        let known = self.variables.iter().position(|(_, known)| *known == value);
        let at = known.unwrap_or(self.variables.len());
        if known.is_none() {
            self.variables.push((shell::variable(at + 1), value));
        }
        shell::word(&self.variables[at].0)
    }

    /// The value of a placeholder. Notes that a late value stands at the byte `at` of the filled text.
    fn value_at(&mut self, name: &str, at: usize, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let known = self.late_values.len();
        let value = self.value(name, span, cx)?;
        if let Some(late) = self.late_values.get_mut(known) {
            late.at = at..at + value.len();
        }
        Ok(value)
    }

    pub fn value(&mut self, name: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        if let Some((_, value)) = self.values.iter().find(|(own, _)| own == name) {
            return Ok(value.clone());
        }
        if name == "output" {
            return Ok(self.output.display().to_string());
        }
        if let Some(of_task) = name.strip_prefix("tasks.") {
            return self.of_task(of_task, span, cx);
        }
        if let Some(of_best) = name.strip_prefix("best.") {
            let (best, key) = of_best.split_once('.').unwrap_or((of_best, ""));
            return self.of_best(&format!("best.{best}"), key, span, cx);
        }
        if let Some(of_sink) = name.strip_prefix("sinks.") {
            return self.of_sink(of_sink, span, cx);
        }
        let known = self.values.iter().map(|(name, _)| &name[..]).chain(RESERVED.iter().copied().take(1));
        let error = cx
            .error(span, format!("nothing is called `{name}` here"))
            .label(format!("`{{{name}}}` has no value"));
        // orchestra sets these for the command when it starts it.
        let variable = match name {
            "attempt" => Some("ORCHESTRA_ATTEMPT"),
            "slot" => Some("ORCHESTRA_SLOT"),
            "task" | "id" => Some("ORCHESTRA_TASK"),
            "gpu" | "gpus" | "device" | "devices" => Some("CUDA_VISIBLE_DEVICES"),
            _ => None,
        };
        if let Some(variable) = variable {
            error.help(format!(
                "the command has it in a variable: write `${variable}` in a text for the shell"
            ));
        }
        error
            .help(suggestion("values", name, known))
            .help(format!("`{{{{{name}}}}}` stands for the text `{{{name}}}`"))
            .fail()
    }

    /// `NAME.path`
    fn of_sink(&mut self, name: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let (sink, key) = name.split_once('.').unwrap_or((name, ""));
        let (_, path) = self.of.sink(sink, span, cx)?;
        if key != "path" {
            return cx
                .error(span, format!("sinks have no value `{key}`"))
                .help(suggestion("values of sinks", key, ["path"]))
                .fail();
        }
        self.after_sinks.insert(sink.to_owned());
        Ok(path.clone())
    }

    /// `NAME.output`, `NAME[..].output`, `NAME.METRIC`, `NAME.best.output` or `NAME.folder`.
    fn of_task(&mut self, name: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        // No table has a dot in its name; values in brackets and metrics may.
        let end = name.rfind(']').map_or(0, |at| at + 1);
        let (task, key) = match name[end..].find('.') {
            Some(dot) => (&name[..end + dot], &name[end + dot + 1..]),
            None => (name, ""),
        };
        // Placeholders within the name of the task cannot be late: the plan has to know which task it is.
        let (late_text, results) = (self.late_text.take(), self.results.take());
        let task = self.fill(task, span, cx);
        (self.late_text, self.results) = (late_text, results);
        let task = task?;
        if let Some(key) = key.strip_prefix("best.") {
            return self.of_best(&best_of_table(&task), key, span, cx);
        }
        let named = self.of.named(&Spanned::new(task.clone(), span), cx)?;
        let table = task.split_once('[').map_or(&task[..], |(table, _)| table);
        let raw = self.of.raws.iter().find(|raw| raw.name.value == table);
        let is_metric = |key: &str| raw.is_some_and(|raw| raw.measured.metrics.iter().any(|m| m.name == key));
        let own =
            |key: &str| if key == "output" { Some("") } else { Some(&raw?.named_outputs.get(key)?[..]) };
        let value = match (own(key), &named[..]) {
            (Some(rest), [one]) => joined(&self.of.outputs[*one], rest),
            (None, [one]) if is_metric(key) => {
                let placeholder = format!("tasks.{task}.{key}");
                self.late(ValueOwner::Task(*one), &format!("`{task}` has"), (&placeholder, key), span, cx)?
            }
            (rest, several) if rest.is_some() || is_metric(key) => {
                let some = self.of.some_of(several);
                let what = if rest.is_some() { "an output" } else { "metrics" };
                return cx
                    .error(
                        span,
                        format!("`{task}` is {} tasks, and each has {what} of its own", several.len()),
                    )
                    .help(format!(
                        "name one of them: {some}; values may be used: {{tasks.{task}[lr={{lr}}].{key}}}"
                    ))
                    .help(format!(
                        "{{tasks.{task}.folder}} is the folder of them all, with NAME=VALUE/output in it"
                    ))
                    .fail();
            }
            (None, _) if key == "folder" => cx.output.join(TASKS_FOLDER).join(table).display().to_string(),
            _ => {
                let outputs = raw.iter().flat_map(|raw| raw.named_outputs.keys()).map(String::as_str);
                let metrics = raw.iter().flat_map(|raw| &raw.measured.metrics).map(|metric| &metric.name[..]);
                let known = outputs.chain(metrics).chain(["output", "best.output", "folder"]);
                return cx
                    .error(span, format!("tasks have no value `{key}`"))
                    .help(suggestion("values of tasks", key, known))
                    .fail();
            }
        };
        self.after.extend(named);
        Ok(value)
    }

    /// A value of the best of several tasks: a path through the link to its folder, or a late value, known when all of them have ended.
    fn of_best(&mut self, best: &str, key: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let Some(at) = self.of.comparisons.iter().position(|comparison| comparison.name == best) else {
            return self.no_best(best, span, cx);
        };
        let comparison = &self.of.comparisons[at];
        let raws: Vec<&RawTask> = comparison.tables.iter().map(|table| &self.of.raws[*table]).collect();
        let outputs = |raw: &'a RawTask| raw.named_outputs.get(key);
        self.best_of.insert(at);
        if key == "output" || raws.iter().all(|raw| outputs(raw).is_some()) {
            let rest = outputs(raws[0]).map_or("", String::as_str);
            if let Some(other) = raws.iter().find(|raw| outputs(raw).is_some_and(|other| other != rest)) {
                let (first, other) = (&raws[0].name.value, &other.name.value);
                return cx
                    .error(span, format!("`{best}` has no one path for `{key}`: `outputs` of `{first}` and `{other}` give it different ones"))
                    .label("the path is known before it is known which task is the best")
                    .help("call the file the same in all of these tables")
                    .fail();
            }
            return Ok(joined(&cx.output.join(BEST_FOLDER).join(link_name(best)), rest));
        }
        let is_metric = raws.iter().all(|raw| raw.measured.metrics.iter().any(|metric| metric.name == key));
        let has_value = |task: usize| self.of.instances[task].values.iter().any(|(name, _)| name == key);
        let n_values = self.of.compared(comparison).filter(|task| has_value(*task)).count();
        if n_values > 0 && n_values < self.of.compared(comparison).count() {
            return cx
                .error(
                    span,
                    format!(
                        "not every task of `{best}` has a value `{key}`, and any of them may be the best"
                    ),
                )
                .fail();
        }
        if n_values > 0 || is_metric || key == "task" {
            let tables = list(raws.iter().map(|raw| &raw.name.value[..]));
            let others = format!("all tasks of {tables} have");
            return self.late(ValueOwner::Best(at), &others, (&format!("{best}.{key}"), key), span, cx);
        }
        let first = self.of.compared(comparison).next();
        let values =
            first.into_iter().flat_map(|task| &self.of.instances[task].values).map(|(name, _)| &name[..]);
        let metrics = raws[0].measured.metrics.iter().map(|metric| &metric.name[..]);
        let outputs = raws[0].named_outputs.keys().map(String::as_str);
        let known = outputs.chain(["output", "task"]).chain(metrics).chain(values);
        cx.error(span, format!("`{best}` has no value `{key}`"))
            .help(suggestion("values of the best task", key, known))
            .help("names are those of its values, of its metrics and of its outputs, such as outputs = { model = \"{output}/model.onnx\" }; each of the tables must have it")
            .fail()
    }

    fn no_best(&self, best: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        if self.of.wrong_comparisons.iter().any(|wrong| wrong == best) {
            return Err(Reported);
        }
        if let Some(name) = best.strip_prefix("best.") {
            let known = self.of.comparisons.iter().filter_map(|known| known.name.strip_prefix("best."));
            return cx
                .error(span, format!("there is no table `best.{name}`"))
                .help(suggestion("tables of `best`", name, known))
                .fail();
        }
        let table = link_name(best);
        if !self.of.of_table.contains_key(table) {
            let names = self.of.raws.iter().map(|raw| &raw.name.value[..]);
            return cx
                .error(span, format!("there is no table `{table}` of tasks"))
                .help(suggestion("tables", table, names))
                .fail();
        }
        cx.error(span, format!("`{table}` does not say which of its tasks is the best"))
            .help(format!("for example, in [tasks.{table}]: metrics = [\"loss\"] and best = {{ metric = \"loss\", goal = \"min\" }}"))
            .fail()
    }

    /// A late value: in a command its placeholder, which is replaced before the command starts. `others` are whom it waits for: "`train` has".
    fn late(
        &mut self,
        of: ValueOwner,
        others: &str,
        (placeholder, name): (&str, &str),
        span: Span,
        cx: &mut Cx<'_>,
    ) -> Result<String, Reported> {
        let text = match (self.results, self.late_text) {
            (Some(results), _) => match self.noted(of, name, results) {
                Some(value) => value,
                None => {
                    self.unknown.push(placeholder.to_owned());
                    // Tables that use it are only checked now, and planned again before they run. Most settings may be 1.
                    "1".to_owned()
                }
            },
            (None, Some(_)) => format!("{{{placeholder}}}"),
            (None, None) => {
                return cx
                    .error(span, format!("`{{{placeholder}}}` is known only when {others} ended"))
                    .label("`command` and `env` of a task may have it, and no other key")
                    .fail();
            }
        };
        let (name, text_of) = (name.to_owned(), self.late_text.unwrap_or_default());
        self.late_values.push(LateValue { of, name, text: text_of, at: 0..0, is_word: false });
        Ok(text)
    }

    /// The text of a late value, if the task has ended and has it.
    fn noted(&self, of: ValueOwner, name: &str, results: &TaskResults) -> Option<String> {
        let (task, comparison) = match of {
            ValueOwner::Task(task) => {
                let own = best_of_table(&self.of.raws[self.of.instances[task].table].name.value);
                (task, self.of.comparisons.iter().find(|comparison| comparison.name == own))
            }
            ValueOwner::Best(at) => {
                let comparison = &self.of.comparisons[at];
                let folder = results.best.get(link_name(&comparison.name))?;
                let is_it = |task: &usize| self.of.instances[*task].folder == *folder;
                (self.of.compared(comparison).find(is_it)?, Some(comparison))
            }
        };
        let none = TaskMetrics::new();
        let metrics = results.metrics.get(&self.of.instances[task].id).unwrap_or(&none);
        self.values_of(task).get(name, comparison.map(|comparison| &comparison.objective), metrics)
    }

    fn values_of(&self, task: usize) -> NamedValues<'a> {
        let instance = &self.of.instances[task];
        let metrics = &self.of.raws[instance.table].measured.metrics;
        NamedValues { id: &instance.id, values: &instance.values, metrics }
    }

    /// Whether a late value is a metric, which is a number.
    pub fn is_metric(&self, late: &LateValue) -> bool {
        self.texts(late.of, &late.name).next().is_none()
    }

    /// The texts that a late value may become; none for a metric, which is any number.
    fn texts(&self, of: ValueOwner, name: &str) -> impl Iterator<Item = &'a str> {
        let (one, several) = match of {
            ValueOwner::Task(task) => (Some(task), None),
            ValueOwner::Best(at) => (None, Some(self.of.compared(&self.of.comparisons[at]))),
        };
        let tasks = one.into_iter().chain(several.into_iter().flatten());
        tasks.filter_map(move |task| self.values_of(task).text(name))
    }
}

/// A file in a folder; the folder itself without one.
fn joined(folder: &Path, rest: &str) -> String {
    let path = if rest.is_empty() { folder.to_owned() } else { folder.join(rest) };
    path.display().to_string()
}

/// A filled text, if the system can take it.
fn without_nul(filled: String, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
    if filled.contains('\0') {
        return cx.error(span, "a text for a command cannot hold a NUL character").fail();
    }
    Ok(filled)
}
