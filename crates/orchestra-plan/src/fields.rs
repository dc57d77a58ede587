//! Typed reading of one table: every unknown key, missing key and wrong type becomes a diagnostic. Knows no table by name.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::bytes::parse_bytes;
use crate::diagnostics::{Diagnostics, Span};
use crate::kind::Key;
use crate::nearest::{list, suggestion};
use crate::tree::{Entry, Node, Table, Value};

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct At<T> {
    pub value: T,
    /// Its place in the file.
    pub span: Span,
}

impl<T> At<T> {
    /// `value`, which stands at `span`.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// A table that is being read.
pub struct Fields<'a, 'd> {
    /// What messages call it: "stage `pixels`".
    pub what: String,
    /// Where it is named.
    pub span: Span,
    table: &'a Table,
    /// Where errors go.
    pub diags: &'d mut Diagnostics,
}

impl<'a, 'd> Fields<'a, 'd> {
    /// Reads `table`; keys other than `allowed` are reported here and now.
    pub fn new(
        what: String,
        span: Span,
        table: &'a Table,
        allowed: &[&str],
        diags: &'d mut Diagnostics,
    ) -> Self {
        for entry in &table.entries {
            if !allowed.contains(&entry.key.as_str()) {
                diags
                    .error(entry.key_span, format!("{what} has no key `{}`", entry.key))
                    .label("unknown key")
                    .help(suggestion("keys", &entry.key, allowed.iter().copied()));
            }
        }
        Self { what, span, table, diags }
    }

    /// Reads a table whose keys were checked before.
    pub(crate) fn again(what: String, span: Span, table: &'a Table, diags: &'d mut Diagnostics) -> Self {
        Self { what, span, table, diags }
    }

    /// `from`: a name, or a list of names.
    pub fn reads(&mut self) -> crate::kind::Reads {
        self.names("from", "name what it reads from").into_iter().map(|name| (None, name)).collect()
    }

    /// A name, or a list of names, that must be there; `help` says what to write. Empty after an error.
    pub fn names(&mut self, key: &str, help: &str) -> Vec<At<String>> {
        let Some(entry) = self.entry(key) else {
            self.missing(key, help);
            return Vec::new();
        };
        match &entry.node.value {
            Value::Array(items) if items.is_empty() => {
                self.bad(key, self.span, "names nothing");
                Vec::new()
            }
            Value::String(_) => self.string(key).into_iter().collect(),
            _ => self.strings(key).unwrap_or_default(),
        }
    }

    /// The entry of a key, as written.
    pub fn entry(&self, key: &str) -> Option<&'a Entry> {
        self.table.get(key)
    }

    /// Reports that `key` is missing.
    pub fn missing(&mut self, key: &str, help: &str) {
        let message = format!("{} needs the key `{key}`", self.what);
        self.diags.error(self.span, message).label(format!("`{key}` is missing")).help(help);
    }

    /// Reports a value of the wrong type.
    pub fn wrong(&mut self, key: &str, node: &Node, expected: &str) {
        let message = format!("`{key}` of {} must be {expected}", self.what);
        self.diags.error(node.span, message).label(format!("found {}", node.found()));
    }

    /// Reports a value of the right type that cannot be.
    pub fn bad(&mut self, key: &str, span: Span, reason: &str) -> &mut crate::diagnostics::Diagnostic {
        let message = format!("`{key}` of {} {reason}", self.what);
        self.diags.error(span, message)
    }

    /// A text that is not empty. `None` where it is missing, or wrong and reported; so do all that follow.
    pub fn string(&mut self, key: &str) -> Option<At<String>> {
        let node = &self.entry(key)?.node;
        match &node.value {
            Value::String(s) if s.trim().is_empty() => {
                self.bad(key, node.span, "is empty");
                None
            }
            Value::String(s) => Some(At::new(s.clone(), node.span)),
            _ => {
                self.wrong(key, node, "a string");
                None
            }
        }
    }

    /// A text that may consist of blanks.
    pub fn string_with_blanks(&mut self, key: &str) -> Option<At<String>> {
        let node = &self.entry(key)?.node;
        self.string_in(key, node)
    }

    /// A text that must be there; `help` says what to write.
    pub fn required_string(&mut self, key: &str, help: &str) -> Option<At<String>> {
        if self.entry(key).is_none() {
            self.missing(key, help);
            return None;
        }
        self.string(key)
    }

    /// A list of strings, or a single one.
    pub fn strings(&mut self, key: &str) -> Option<Vec<At<String>>> {
        let node = &self.entry(key)?.node;
        match &node.value {
            Value::String(s) => Some(vec![At::new(s.clone(), node.span)]),
            Value::Array(items) => items.iter().map(|n| self.string_in(key, n)).collect(),
            _ => {
                self.wrong(key, node, "a string or a list of strings");
                None
            }
        }
    }

    fn string_in(&mut self, key: &str, node: &Node) -> Option<At<String>> {
        match &node.value {
            Value::String(s) => Some(At::new(s.clone(), node.span)),
            _ => {
                self.wrong(key, node, "a string or a list of strings");
                None
            }
        }
    }

    /// An integer within `range`.
    pub fn integer(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<At<u64>> {
        let node = &self.entry(key)?.node;
        let Value::Integer(n) = node.value else {
            self.wrong(key, node, &format!("an integer from {} to {}", range.start(), range.end()));
            return None;
        };
        match u64::try_from(n).ok().filter(|n| range.contains(n)) {
            Some(n) => Some(At::new(n, node.span)),
            None => {
                let reason = format!("must be from {} to {}, not {n}", range.start(), range.end());
                self.bad(key, node.span, &reason);
                None
            }
        }
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, key: &str) -> Option<bool> {
        let node = &self.entry(key)?.node;
        match node.value {
            Value::Boolean(b) => Some(b),
            _ => {
                self.wrong(key, node, "true or false");
                None
            }
        }
    }

    /// A list of integers, not empty.
    pub fn integers(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<At<Vec<u64>>> {
        let node = &self.entry(key)?.node;
        let one = |node: &Node| match node.value {
            Value::Integer(n) => u64::try_from(n).ok().filter(|n| range.contains(n)),
            _ => None,
        };
        let integers: Option<Vec<u64>> = match &node.value {
            Value::Array(items) if !items.is_empty() => items.iter().map(one).collect(),
            _ => None,
        };
        if integers.is_none() {
            self.wrong(key, node, &format!("a list of integers from {} to {}", range.start(), range.end()));
        }
        Some(At::new(integers?, node.span))
    }

    pub fn numbers(&mut self, key: &str) -> Option<At<Vec<f64>>> {
        let node = &self.entry(key)?.node;
        let one = |node: &Node| match node.value {
            Value::Integer(n) => Some(n as f64),
            // They end as f32.
            Value::Float(n) if n.abs() <= f64::from(f32::MAX) => Some(n),
            _ => None,
        };
        let numbers = match &node.value {
            Value::Array(items) => items.iter().map(one).collect(),
            _ => one(node).map(|n| vec![n]),
        };
        if numbers.is_none() {
            self.wrong(key, node, "a number or a list of numbers");
        }
        numbers.map(|n| At::new(n, node.span))
    }

    /// A number, or a list of one.
    pub fn number(&mut self, key: &str) -> Option<At<f64>> {
        let numbers = self.numbers(key)?;
        match numbers.value[..] {
            [one] => Some(At::new(one, numbers.span)),
            _ => {
                self.bad(key, numbers.span, "must be one number");
                None
            }
        }
    }

    pub fn duration(&mut self, key: &str) -> Option<Duration> {
        let node = &self.entry(key)?.node;
        let Value::String(text) = &node.value else {
            self.wrong(key, node, "a duration in quotes, for example \"500ms\" or \"2m\"");
            return None;
        };
        match humantime::parse_duration(text.trim()) {
            Ok(duration) => Some(duration),
            Err(error) => {
                let reason = format!("is no duration: `{text}`: {error}");
                self.bad(key, node.span, &reason).help("for example \"5ms\", \"30s\" or \"2m\"");
                None
            }
        }
    }

    /// An amount of memory, in bytes.
    pub fn bytes(&mut self, key: &str) -> Option<At<u64>> {
        let node = &self.entry(key)?.node;
        let bytes = match &node.value {
            Value::Integer(n) => u64::try_from(*n).ok(),
            Value::String(text) => parse_bytes(text),
            _ => {
                self.wrong(key, node, "an amount of memory, for example \"4GiB\"");
                return None;
            }
        };
        if bytes.is_none() {
            let reason = format!("is no amount of memory: {}", node.found());
            self.bad(key, node.span, &reason).help("for example \"4GiB\", \"500MB\" or a number of bytes");
        }
        bytes.map(|b| At::new(b, node.span))
    }

    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Option<At<T>> {
        let node = &self.entry(key)?.node;
        let names = choices.iter().map(|(name, _)| *name);
        let Value::String(text) = &node.value else {
            let expected = format!("one of {}", list(names));
            self.wrong(key, node, &expected);
            return None;
        };
        let found = choices.iter().find(|(name, _)| name == text);
        if found.is_none() {
            let reason = format!("cannot be `{text}`");
            self.bad(key, node.span, &reason).help(suggestion("choices", text, names));
        }
        found.map(|(_, value)| At::new(*value, node.span))
    }

    /// A table of the top level, which messages call `[key]`.
    pub(crate) fn section(&mut self, key: &str, allowed: &[Key]) -> Option<Fields<'a, '_>> {
        self.table_called(key, format!("[{key}]"), &crate::keys::names(allowed))
    }

    /// A table under `key`; keys other than `allowed` are reported.
    pub fn table(&mut self, key: &str, allowed: &[&str]) -> Option<Fields<'a, '_>> {
        self.table_called(key, format!("`{key}` of {}", self.what), allowed)
    }

    fn table_called(&mut self, key: &str, what: String, allowed: &[&str]) -> Option<Fields<'a, '_>> {
        let entry = self.entry(key)?;
        let Value::Table(table) = &entry.node.value else {
            let expected = format!("a table: {key} = {{ {} = .. }}", allowed.join(" = .., "));
            self.wrong(key, &entry.node, &expected);
            return None;
        };
        Some(Fields::new(what, entry.key_span, table, allowed, self.diags))
    }
}
