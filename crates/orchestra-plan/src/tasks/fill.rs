//! Fills the placeholders of one task, and notes which tasks it comes after by that.

use std::collections::BTreeSet;
use std::path::Path;

use super::Expander;
use super::combine::RESERVED;
use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::nearest::suggestion;
use crate::plan::{BEST_FOLDER, BestValue, TASKS_FOLDER};
use crate::shell;
use crate::template::{TemplatePart, parts};
use crate::workflow::{RawCommand, RawTask};

/// Each with its value.
type Variables = Vec<(String, String)>;

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
    variables: Variables,
    /// The text that is filled, where it may have values of best tasks: see [`BestValue::text`].
    late_text: Option<usize>,
}

impl<'a> Fill<'a> {
    pub fn new(of: &'a Expander<'a>, values: &'a [(String, String)], output: &'a Path) -> Self {
        let (after, best_of, after_sinks, best_values, variables) = Default::default();
        Self { of, values, output, after, best_of, after_sinks, best_values, variables, late_text: None }
    }

    /// The command and its variables, whose texts may have values of best tasks.
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

    /// The text of this number is filled, which may have values of best tasks.
    fn late_text(&mut self, text: usize) -> &mut Self {
        self.late_text = Some(text);
        self
    }

    /// The text with its values.
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

    /// The same for a text of the shell, in which each value is one word. One that is not plain is given in a variable: see [`shell`].
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
            let known = self.best_values.len();
            let value = self.value_at(name, filled.len(), text.span, cx)?;
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
            let is_late = self.best_values.len() > known;
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
    fn value_at(&mut self, name: &str, at: usize, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let known = self.best_values.len();
        let value = self.value(name, span, cx)?;
        if let Some(late) = self.best_values.get_mut(known) {
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
        if let Some(of_sink) = name.strip_prefix("sinks.") {
            return self.of_sink(of_sink, span, cx);
        }
        let known = self.values.iter().map(|(name, _)| &name[..]).chain(RESERVED.iter().copied().take(1));
        let error = cx
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

    /// `NAME.output`, `NAME[..].output`, `NAME.best.output` or `NAME.folder`.
    fn of_task(&mut self, name: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let end = name.rfind(']').map_or(0, |at| at + 1);
        let dot = name[end..].rfind('.').map(|dot| end + dot);
        let (task, key) = dot.map_or((name, ""), |dot| (&name[..dot], &name[dot + 1..]));
        // Which task it is has to be known now.
        let late_text = self.late_text.take();
        let task = self.fill(task, span, cx);
        self.late_text = late_text;
        let task = task?;
        let table = task.strip_suffix(".best").filter(|_| !self.of.of_table.contains_key(&task[..]));
        if let Some(table) = table {
            return self.of_best(table, key, span, cx);
        }
        let named = self.of.named(&Spanned::new(task.clone(), span), cx)?;
        let table = task.split_once('[').map_or(&task[..], |(table, _)| table);
        let raw = self.of.raws.iter().find(|raw| raw.name.value == table);
        let own =
            |key: &str| if key == "output" { Some("") } else { Some(&raw?.named_outputs.get(key)?[..]) };
        let value = match (own(key), &named[..]) {
            (Some(rest), [one]) => joined(&self.of.outputs[*one], rest),
            (Some(_), several) => {
                let some = self.of.some_of(several);
                return cx
                    .error(
                        span,
                        format!("`{task}` is {} tasks, and each has an output of its own", several.len()),
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
                let known = outputs.chain(["output", "best.output", "folder"]);
                return cx
                    .error(span, format!("tasks have no value `{key}`"))
                    .help(suggestion("values of tasks", key, known))
                    .fail();
            }
        };
        self.after.extend(named);
        Ok(value)
    }

    /// The link of the table: which task is best is known when all have ended.
    fn of_best(&mut self, table: &str, key: &str, span: Span, cx: &mut Cx<'_>) -> Result<String, Reported> {
        let Some(raw) = self.of.raws.iter().find(|raw| raw.name.value == table) else {
            let names = self.of.raws.iter().map(|raw| &raw.name.value[..]);
            return cx
                .error(span, format!("there is no table `{table}` of tasks"))
                .help(suggestion("tables", table, names))
                .fail();
        };
        if raw.measured.best.is_none() {
            return cx.error(span, format!("`{table}` does not say which of its tasks is the best"))
                .help(format!("for example, in [tasks.{table}]: metrics = [\"loss\"] and best = {{ metric = \"loss\", goal = \"min\" }}")).fail();
        }
        if key != "output"
            && !raw.named_outputs.contains_key(key)
            && self.of.values(table, key).next().is_some()
        {
            return self.value_of_best(table, key, span, cx);
        }
        let outputs = &raw.named_outputs;
        let Some(rest) = (if key == "output" { Some("") } else { outputs.get(key).map(String::as_str) })
        else {
            let values = self.of.named_values(table);
            let known: Vec<&str> =
                outputs.keys().map(String::as_str).chain(["output"]).chain(values).collect();
            return cx.error(span, format!("the best task of `{table}` has no value `{key}`"))
                .help(suggestion("values of the best task", key, known.iter().copied()))
                .help(format!("names are those of its values and of its outputs: [tasks.{table}] outputs = {{ model = \"{{output}}/model.onnx\" }}")).fail();
        };
        self.best_of.insert(table.to_owned());
        Ok(joined(&cx.output.join(BEST_FOLDER).join(table), rest))
    }

    /// The placeholder of a value of the best task, which stands there until that is known.
    fn value_of_best(
        &mut self,
        table: &str,
        name: &str,
        span: Span,
        cx: &mut Cx<'_>,
    ) -> Result<String, Reported> {
        let placeholder = format!("{{tasks.{table}.best.{name}}}");
        let Some(text) = self.late_text else {
            return cx
                .error(span, format!("`{placeholder}` is known only when all tasks of `{table}` have ended"))
                .label("`command` and `env` of a task may have it, and no other key")
                .fail();
        };
        let of_table = self.of.of_table.get(table).map_or(0, Vec::len);
        if self.of.values(table, name).count() < of_table {
            return cx
                .error(
                    span,
                    format!(
                        "not every task of `{table}` has a value `{name}`, and any of them may be the best"
                    ),
                )
                .fail();
        }
        self.best_of.insert(table.to_owned());
        let (table, name) = (table.to_owned(), name.to_owned());
        self.best_values.push(BestValue { table, name, text, at: 0..0, is_word: false });
        Ok(placeholder)
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
