//! Fills the placeholders of one task, and notes which tasks it comes after by that.

use std::collections::BTreeSet;
use std::path::Path;

use super::combine::RESERVED;
use super::template::{Part, parts};
use super::{BEST_FOLDER, BestValue, Expander, TASKS_FOLDER, shell};
use crate::diagnostics::{Diagnostics, Span};
use crate::fields::At;
use crate::nearest::suggestion;

pub(super) struct Fill<'a> {
    of: &'a Expander<'a>,
    values: &'a [(String, String)],
    output: &'a Path,
    /// Tasks whose values were used.
    pub after: BTreeSet<usize>,
    /// Tables whose best task was.
    pub best_of: BTreeSet<String>,
    /// Sinks whose values were used.
    pub after_sinks: BTreeSet<String>,
    /// Values of best tasks, in the order of the texts.
    pub best_values: Vec<BestValue>,
    /// Values that the text of the shell names.
    pub variables: Vec<(String, String)>,
    /// The text that is filled, where it may have values of best tasks: see [`BestValue::text`].
    late_text: Option<usize>,
}

impl<'a> Fill<'a> {
    pub fn new(of: &'a Expander<'a>, values: &'a [(String, String)], output: &'a Path) -> Self {
        let (after, best_of, after_sinks, best_values, variables) = Default::default();
        Self { of, values, output, after, best_of, after_sinks, best_values, variables, late_text: None }
    }

    /// From now on a text of this number is filled, which may have values of best tasks; with `None`, one that may not.
    pub fn late_text(&mut self, text: Option<usize>) -> &mut Self {
        self.late_text = text;
        self
    }

    /// The text with its values; `None` was reported.
    pub fn text(&mut self, text: &At<String>, diags: &mut Diagnostics) -> Option<String> {
        self.fill(&text.value, text.span, diags)
    }

    fn fill(&mut self, text: &str, span: Span, diags: &mut Diagnostics) -> Option<String> {
        let mut filled = String::new();
        for part in parts(text) {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Name(name) => {
                    let value = self.value_at(name, filled.len(), span, diags)?;
                    filled.push_str(&value);
                }
            }
        }
        without_nul(filled, span, diags)
    }

    /// The same for a text of the shell, in which each value is one word. One that is not plain is given in a variable: see [`shell`].
    pub fn shell(&mut self, text: &At<String>, diags: &mut Diagnostics) -> Option<String> {
        let mut filled = String::new();
        for part in parts(&text.value) {
            let name = match part {
                Part::Text(text) => {
                    filled.push_str(text);
                    continue;
                }
                Part::Name(name) => name,
            };
            let known = self.best_values.len();
            let value = self.value_at(name, filled.len(), text.span, diags)?;
            let late = self.best_values.get_mut(known);
            let not_plain = match late {
                Some(late) => {
                    late.is_word = true;
                    let (table, name) = (late.table.clone(), late.name.clone());
                    self.of.values(&table, &name).find(|value| !shell::is_plain(value)).cloned()
                }
                None => Some(value.clone()).filter(|value| !shell::is_plain(value)),
            };
            if let Some(value) = &not_plain
                && let Some(within) = shell::enclosing(&filled)
            {
                let error = diags
                    .error(text.span, format!("`{{{name}}}` stands {within}, and its value `{value}` can only be a word by itself"))
                    .help(format!("write {{{name}}} as a word by itself, or `command` as a list"));
                // In arithmetic a shell may run what is in a variable, too.
                if within != shell::Within::Arithmetic {
                    error.help(format!(
                        "or give it a name: env = {{ VALUE = \"{{{name}}}\" }}, and \"$VALUE\" in the text"
                    ));
                }
                return None;
            }
            let is_late = self.best_values.len() > known;
            let not_plain = not_plain.filter(|_| !is_late);
            let part_files = not_plain.as_deref().filter(|_| name.starts_with("sinks."));
            filled.push_str(&match (part_files.and_then(shell::part_files), &not_plain) {
                (Some((stem, glob)), _) if shell::is_plain(stem) => format!("{stem}{glob}"),
                (Some((stem, glob)), _) => {
                    self.variable(without_nul(stem.to_owned(), text.span, diags)?) + glob
                }
                (None, Some(value)) => self.variable(without_nul(value.clone(), text.span, diags)?),
                (None, None) => value,
            });
        }
        without_nul(filled, text.span, diags)
    }

    /// The word of a text that stands for this value.
    fn variable(&mut self, value: String) -> String {
        let known = self.variables.iter().position(|(_, known)| *known == value);
        let at = known.unwrap_or(self.variables.len());
        if known.is_none() {
            self.variables.push((shell::variable(at + 1), value));
        }
        shell::word(&self.variables[at].0)
    }

    /// The value, and where it stands, if it is known only later.
    fn value_at(&mut self, name: &str, at: usize, span: Span, diags: &mut Diagnostics) -> Option<String> {
        let known = self.best_values.len();
        let value = self.value(name, span, diags)?;
        if let Some(late) = self.best_values.get_mut(known) {
            late.at = at..at + value.len();
        }
        Some(value)
    }

    pub fn value(&mut self, name: &str, span: Span, diags: &mut Diagnostics) -> Option<String> {
        if let Some((_, value)) = self.values.iter().find(|(own, _)| own == name) {
            return Some(value.clone());
        }
        if name == "output" {
            return Some(self.output.display().to_string());
        }
        if let Some(of_task) = name.strip_prefix("tasks.") {
            return self.of_task(of_task, span, diags);
        }
        if let Some(of_sink) = name.strip_prefix("sinks.") {
            return self.of_sink(of_sink, span, diags);
        }
        let known = self.values.iter().map(|(name, _)| &name[..]).chain(RESERVED.iter().copied().take(1));
        let error = diags
            .error(span, format!("nothing is called `{name}` here"))
            .label(format!("`{{{name}}}` has no value"));
        // What is known only when the command starts, it is told by variables.
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
            .help(format!("`{{{{{name}}}}}` stands for the text `{{{name}}}`"));
        None
    }

    /// `NAME.path`
    fn of_sink(&mut self, name: &str, span: Span, diags: &mut Diagnostics) -> Option<String> {
        let (sink, key) = name.split_once('.').unwrap_or((name, ""));
        let (_, path) = self.of.sink(sink, span, diags)?;
        if key != "path" {
            diags.error(span, format!("sinks have no value `{key}`")).help(suggestion(
                "values of sinks",
                key,
                ["path"],
            ));
            return None;
        }
        self.after_sinks.insert(sink.to_owned());
        Some(path.clone())
    }

    /// `NAME.output`, `NAME[..].output`, `NAME.best.output` or `NAME.folder`.
    fn of_task(&mut self, name: &str, span: Span, diags: &mut Diagnostics) -> Option<String> {
        let end = name.rfind(']').map_or(0, |at| at + 1);
        let dot = name[end..].rfind('.').map(|dot| end + dot);
        let (task, key) = dot.map_or((name, ""), |dot| (&name[..dot], &name[dot + 1..]));
        // Which task it is has to be known now.
        let late_text = self.late_text.take();
        let task = self.fill(task, span, diags);
        self.late_text = late_text;
        let task = task?;
        let table = task.strip_suffix(".best").filter(|_| !self.of.of_table.contains_key(&task[..]));
        if let Some(table) = table {
            return self.of_best(table, key, span, diags);
        }
        let named = self.of.named(&At::new(task.clone(), span), diags)?;
        let table = task.split_once('[').map_or(&task[..], |(table, _)| table);
        let raw = self.of.raws.iter().find(|raw| raw.name.value == table);
        let own =
            |key: &str| if key == "output" { Some("") } else { Some(&raw?.named_outputs.get(key)?[..]) };
        let value = match (own(key), &named[..]) {
            (Some(rest), [one]) => joined(&self.of.outputs[*one], rest),
            (Some(_), several) => {
                let some = self.of.some_of(several);
                diags
                    .error(
                        span,
                        format!("`{task}` is {} tasks, and each has an output of its own", several.len()),
                    )
                    .help(format!(
                        "name one of them: {some}; values may be used: {{tasks.{task}[lr={{lr}}].{key}}}"
                    ))
                    .help(format!(
                        "{{tasks.{task}.folder}} is the folder of them all, with NAME=VALUE/output in it"
                    ));
                return None;
            }
            (None, _) if key == "folder" => {
                self.of.around.output.join(TASKS_FOLDER).join(table).display().to_string()
            }
            _ => {
                let outputs = raw.iter().flat_map(|raw| raw.named_outputs.keys()).map(String::as_str);
                let known = outputs.chain(["output", "best.output", "folder"]);
                diags.error(span, format!("tasks have no value `{key}`")).help(suggestion(
                    "values of tasks",
                    key,
                    known,
                ));
                return None;
            }
        };
        self.after.extend(named);
        Some(value)
    }

    /// The link of the table: which task is best is known when all have ended.
    fn of_best(&mut self, table: &str, key: &str, span: Span, diags: &mut Diagnostics) -> Option<String> {
        let Some(raw) = self.of.raws.iter().find(|raw| raw.name.value == table) else {
            let names = self.of.raws.iter().map(|raw| &raw.name.value[..]);
            diags
                .error(span, format!("there is no table `{table}` of tasks"))
                .help(suggestion("tables", table, names));
            return None;
        };
        if raw.measured.best.is_none() {
            diags
                .error(span, format!("`{table}` does not say which of its tasks is the best"))
                .help(format!("for example, in [tasks.{table}]: metrics = [\"loss\"] and best = {{ metric = \"loss\", goal = \"min\" }}"));
            return None;
        }
        if key != "output"
            && !raw.named_outputs.contains_key(key)
            && self.of.values(table, key).next().is_some()
        {
            return self.value_of_best(table, key, span, diags);
        }
        let outputs = &raw.named_outputs;
        let Some(rest) = (if key == "output" { Some("") } else { outputs.get(key).map(String::as_str) })
        else {
            let values = self.of.named_values(table);
            let known: Vec<&str> =
                outputs.keys().map(String::as_str).chain(["output"]).chain(values).collect();
            diags
                .error(span, format!("the best task of `{table}` has no value `{key}`"))
                .help(suggestion("values of the best task", key, known.iter().copied()))
                .help(format!("names are those of its values and of its outputs: [tasks.{table}] outputs = {{ model = \"{{output}}/model.onnx\" }}"));
            return None;
        };
        self.best_of.insert(table.to_owned());
        Some(joined(&self.of.around.output.join(BEST_FOLDER).join(table), rest))
    }

    /// The placeholder of a value of the best task, which stands there until that is known.
    fn value_of_best(
        &mut self,
        table: &str,
        name: &str,
        span: Span,
        diags: &mut Diagnostics,
    ) -> Option<String> {
        let placeholder = format!("{{tasks.{table}.best.{name}}}");
        let Some(text) = self.late_text else {
            diags
                .error(span, format!("`{placeholder}` is known only when all tasks of `{table}` have ended"))
                .label("`command` and `env` of a task may have it, and no other key");
            return None;
        };
        let of_table = self.of.of_table.get(table)?.len();
        if self.of.values(table, name).count() < of_table {
            diags.error(
                span,
                format!("not every task of `{table}` has a value `{name}`, and any of them may be the best"),
            );
            return None;
        }
        self.best_of.insert(table.to_owned());
        let (table, name) = (table.to_owned(), name.to_owned());
        self.best_values.push(BestValue { table, name, text, at: 0..0, is_word: false });
        Some(placeholder)
    }
}

/// A file in a folder; the folder itself without one.
fn joined(folder: &Path, rest: &str) -> String {
    let path = if rest.is_empty() { folder.to_owned() } else { folder.join(rest) };
    path.display().to_string()
}

/// A filled text, if the system can take it.
fn without_nul(filled: String, span: Span, diags: &mut Diagnostics) -> Option<String> {
    if filled.contains('\0') {
        diags.error(span, "a text for a command cannot hold a NUL character");
        return None;
    }
    Some(filled)
}
