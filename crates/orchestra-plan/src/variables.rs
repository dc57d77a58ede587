//! `${NAME}` and `${NAME:-default}` in texts: values of `[variables]`, else of the environment. Knows no other key.

use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::nearest::suggestion;
use crate::tree::{Table, Toml, TomlNode, value_of};

const KEY: &str = "variables";

/// Takes `[variables]` out of the tree, and puts values into all texts that name them.
pub(crate) fn fill_in(root: &mut Table, cx: &mut Cx<'_>) {
    let mut own = Table { span: root.span, entries: Vec::new() };
    if let Some(at) = root.entries.iter().position(|entry| entry.key == KEY) {
        match root.entries.remove(at).node {
            TomlNode { value: Toml::Table(table), .. } => own = table,
            other => {
                cx.error(other.span, format!("`{KEY}` must be a table"))
                    .label(format!("found {}", other.found()))
                    .help("write [variables] and a line for each: size = 32");
            }
        }
    }
    // Their own values may name those of the environment.
    let none = Table { span: own.span, entries: Vec::new() };
    let outside = VariableScope { own: &none };
    own.entries.iter_mut().for_each(|entry| outside.node(&mut entry.node, cx));
    let names = VariableScope { own: &own };
    root.entries.iter_mut().for_each(|entry| names.node(&mut entry.node, cx));
}

struct VariableScope<'a> {
    own: &'a Table,
}

enum VariablePart<'a> {
    Text(&'a str),
    Variable { name: &'a str, default: Option<&'a str> },
}

impl VariableScope<'_> {
    fn node(&self, node: &mut TomlNode, cx: &mut Cx<'_>) {
        match &mut node.value {
            Toml::Array(nodes) => nodes.iter_mut().for_each(|node| self.node(node, cx)),
            Toml::Table(table) => {
                table.entries.iter_mut().for_each(|entry| self.node(&mut entry.node, cx));
            }
            Toml::String(text) if text.contains("${") => {
                if let Ok(value) = self.text(&parts(text), node.span, cx) {
                    node.value = value;
                }
            }
            _ => {}
        }
    }

    /// A text with values in it; one that is nothing but a variable is what the value is.
    fn text(&self, parts: &[VariablePart<'_>], span: Span, cx: &mut Cx<'_>) -> Result<Toml, Reported> {
        if let [VariablePart::Variable { name, default }] = parts {
            return self.value(name, *default, span, cx);
        }
        let mut filled = String::new();
        for part in parts {
            match part {
                VariablePart::Text(text) => filled.push_str(text),
                VariablePart::Variable { name, default } => {
                    let Some(text) = self.value(name, *default, span, cx)?.to_text() else {
                        let message = format!("the variable `{name}` is no part of a text");
                        return cx
                            .error(span, message)
                            .help("it is a list or a table: let it be all of the value")
                            .fail();
                    };
                    filled.push_str(&text);
                }
            }
        }
        Ok(Toml::String(filled))
    }

    fn value(
        &self,
        name: &str,
        default: Option<&str>,
        span: Span,
        cx: &mut Cx<'_>,
    ) -> Result<Toml, Reported> {
        if let Some(entry) = self.own.get(name) {
            return Ok(entry.node.value.clone());
        }
        if let Some(text) = cx.host.variable(name).as_deref().or(default) {
            return Ok(value_of(text, span));
        }
        let known: Vec<&str> = self.own.entries.iter().map(|entry| entry.key.as_str()).collect();
        let help = match &known[..] {
            [] => format!(
                "write [variables] {name} = .., set it in the environment, or give it a default: ${{{name}:-..}}"
            ),
            known => suggestion("variables", name, known.iter().copied()),
        };
        cx.error(span, format!("the variable `{name}` has no value")).help(help).fail()
    }
}

/// `$${` stands for `${`; what is no name in braces is text.
fn parts(text: &str) -> Vec<VariablePart<'_>> {
    let mut parts = Vec::new();
    let mut left = text;
    while let Some(at) = left.find("${") {
        let (before, from) = left.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            parts.extend([VariablePart::Text(before), VariablePart::Text("${")]);
            left = &from[2..];
            continue;
        }
        let named = from[2..].find('}').and_then(|end| {
            let (name, default) = match from[2..2 + end].split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (&from[2..2 + end], None),
            };
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_named =
                name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_name);
            is_named.then_some((VariablePart::Variable { name, default }, &from[3 + end..]))
        });
        if !before.is_empty() {
            parts.push(VariablePart::Text(before));
        }
        match named {
            Some((part, rest)) => {
                parts.push(part);
                left = rest;
            }
            None => {
                parts.push(VariablePart::Text("${"));
                left = &from[2..];
            }
        }
    }
    if !left.is_empty() || parts.is_empty() {
        parts.push(VariablePart::Text(left));
    }
    parts
}
