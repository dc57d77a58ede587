//! Typed reading of one table: every unknown key, missing key and wrong type becomes a diagnostic. Knows no table by name.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::bytes::parse_bytes;
use crate::diagnostics::{Diagnostics, Span};
use crate::key::{Key, Words};
use crate::nearest::{list, suggestion};
use crate::removed_keys;
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
    /// What it may hold.
    keys: Vec<Key>,
    /// Where errors go.
    pub diags: &'d mut Diagnostics,
}

impl<'a, 'd> Fields<'a, 'd> {
    /// Reads `table`; keys other than `keys` are reported here and now.
    pub fn new(what: String, span: Span, table: &'a Table, keys: &[Key], diags: &'d mut Diagnostics) -> Self {
        let names = || keys.iter().map(|key| key.name);
        for entry in &table.entries {
            if let Some(instead) = removed_keys::instead_of(&what, table, &entry.key) {
                let message = format!("the key `{}` of {what} was removed", entry.key);
                diags.error(entry.key_span, message).label("removed").help(instead);
            } else if names().all(|name| name != entry.key) {
                diags
                    .error(entry.key_span, format!("{what} has no key `{}`", entry.key))
                    .label("unknown key")
                    .help(suggestion("keys", &entry.key, names()));
            }
        }
        Self::again(what, span, table, keys, diags)
    }

    /// Reads a table whose keys were checked before.
    pub(crate) fn again(
        what: String,
        span: Span,
        table: &'a Table,
        keys: &[Key],
        diags: &'d mut Diagnostics,
    ) -> Self {
        Self { what, span, table, keys: keys.to_vec(), diags }
    }

    /// How the key is declared.
    fn declared(&self, name: &str) -> Option<Key> {
        self.keys.iter().find(|key| key.name == name).copied()
    }

    /// The default that is declared for the key, as it stands there, without quotes.
    fn default_of(&self, key: &str) -> &'static str {
        self.declared(key).map_or("", |key| key.default.trim_matches('"'))
    }

    /// The bounds that are declared for an integer; without any, those of TOML.
    fn bounds(&self, key: &str) -> RangeInclusive<u64> {
        let (least, most) = self.declared(key).and_then(|key| key.range).unwrap_or((0, i64::MAX as u64));
        least..=most
    }

    /// `from`: a name, or a list of names.
    pub fn upstreams(&mut self) -> crate::kind::Upstreams {
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

    /// A text that is not empty; where it is left out, or wrong and reported, the declared default, at the place of the table.
    pub fn string_or_default(&mut self, key: &str) -> At<String> {
        let default = self.default_of(key);
        self.string(key).unwrap_or_else(|| At::new(default.to_owned(), self.span))
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

    /// An integer within its declared bounds.
    pub fn integer(&mut self, key: &str) -> Option<At<u64>> {
        let bounds = self.bounds(key);
        self.integer_within(key, bounds)
    }

    /// An integer; where it is left out, or wrong and reported, the declared default, at the place of the table.
    pub fn integer_or_default(&mut self, key: &str) -> At<u64> {
        let default = self.default_of(key).parse().unwrap_or(0);
        self.integer(key).unwrap_or(At::new(default, self.span))
    }

    /// An integer whose bounds depend on something else that the file says.
    pub(crate) fn integer_within(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<At<u64>> {
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

    /// `true` or `false`; where it is left out, or wrong and reported, the declared default.
    pub fn flag(&mut self, key: &str) -> bool {
        let default = self.default_of(key) == "true";
        self.boolean(key).unwrap_or(default)
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

    /// A number, or a list of one; where it is left out, or wrong and reported, the declared default, at the place of the table.
    pub fn number_or_default(&mut self, key: &str) -> At<f64> {
        let default = self.default_of(key).parse().unwrap_or(0.0);
        self.number(key).unwrap_or(At::new(default, self.span))
    }

    /// A duration; where it is left out, or wrong and reported, the declared default.
    pub fn duration_or_default(&mut self, key: &str) -> Duration {
        let default = humantime::parse_duration(self.default_of(key)).unwrap_or_default();
        self.duration(key).unwrap_or(default)
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

    /// What the word stands for, which is one of those that the key is declared with.
    pub fn word<T: Copy, const N: usize>(&mut self, key: &str, words: &Words<T, N>) -> Option<At<T>> {
        debug_assert!(
            self.declared(key).is_none_or(|key| key.words == words.words),
            "`{key}` of {} is declared with other words",
            self.what
        );
        let node = &self.entry(key)?.node;
        let names = words.words.iter().map(|word| word.text);
        let Value::String(text) = &node.value else {
            let expected = format!("one of {}", list(names));
            self.wrong(key, node, &expected);
            return None;
        };
        let value = words.value(text);
        if value.is_none() {
            let reason = format!("cannot be `{text}`");
            self.bad(key, node.span, &reason).help(suggestion("choices", text, names));
        }
        value.map(|value| At::new(value, node.span))
    }

    /// What the word stands for; where it is left out, or wrong and reported, what that of the declared default does, at the place of the table. A
    /// default that is none of them counts as the first.
    pub fn word_or_default<T: Copy, const N: usize>(&mut self, key: &str, words: &Words<T, N>) -> At<T> {
        let word = self.word(key, words);
        word.unwrap_or_else(|| {
            let value = words.value(self.default_of(key)).unwrap_or_else(|| words.first());
            At::new(value, self.span)
        })
    }

    /// A table of the top level, which messages call `[key]`.
    pub(crate) fn section(&mut self, key: &str, keys: &[Key]) -> Option<Fields<'a, '_>> {
        self.table_called(key, format!("[{key}]"), keys)
    }

    /// A table under `key`, with the keys that are declared for it; others are reported.
    pub fn table(&mut self, key: &str) -> Option<Fields<'a, '_>> {
        let keys = self.declared(key).map_or(&[][..], |key| key.keys);
        self.table_called(key, format!("`{key}` of {}", self.what), keys)
    }

    /// As [`Fields::table`]; where it is left out, or wrong and reported, a table without entries, so that the declared defaults are read.
    pub fn table_or_empty(&mut self, key: &str) -> Fields<'a, '_> {
        static EMPTY: Table = Table { span: Span { text: 0, start: 0, end: 0 }, entries: Vec::new() };
        let keys = self.declared(key).map_or(&[][..], |key| key.keys);
        let (table, span) = self.table_under(key, keys).unwrap_or((&EMPTY, self.span));
        Fields::new(format!("`{key}` of {}", self.what), span, table, keys, self.diags)
    }

    fn table_called(&mut self, key: &str, what: String, keys: &[Key]) -> Option<Fields<'a, '_>> {
        let (table, span) = self.table_under(key, keys)?;
        Some(Fields::new(what, span, table, keys, self.diags))
    }

    /// The table under `key`, which may hold `keys`, and where it is named.
    fn table_under(&mut self, key: &str, keys: &[Key]) -> Option<(&'a Table, Span)> {
        let entry = self.entry(key)?;
        let Value::Table(table) = &entry.node.value else {
            let names: Vec<_> = keys.iter().map(|key| key.name).collect();
            let expected = format!("a table: {key} = {{ {} = .. }}", names.join(" = .., "));
            self.wrong(key, &entry.node, &expected);
            return None;
        };
        Some((table, entry.key_span))
    }
}
