//! Typed reading of one table: every unknown key, missing key and wrong type becomes a diagnostic. Knows no table by name.

use std::ops::RangeInclusive;
use std::time::Duration;

use orchestra_core::Choice;

use crate::bytes::parse_bytes;
use crate::diagnostics::{Diagnostic, Diagnostics, Span};
use crate::key::Key;
use crate::nearest::{list, suggestion};
use crate::tree::{Table, Toml, TomlEntry, TomlNode};

/// A value and its place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spanned<T> {
    pub value: T,
    /// Its place in the file.
    pub span: Span,
}

impl<T> Spanned<T> {
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// A table of texts by their names, in its order.
#[derive(Debug, Clone)]
pub struct NamedTexts(pub Vec<(Spanned<String>, Spanned<String>)>);

/// What a stage reads from, as written, in order; the first part names the input that is fed, where the file says it.
pub type Upstreams = Vec<(Option<Spanned<String>>, Spanned<String>)>;

/// A table that is being read.
pub struct Fields<'a, 'd> {
    /// What messages call it: "stage `pixels`".
    pub what: String,
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
            if names().all(|name| name != entry.key) {
                diags
                    .error(entry.key_span, format!("{what} has no key `{}`", entry.key))
                    .label("unknown key")
                    .help(match &*entry.key {
                        "matrix" => {
                            "stages and tasks have one: give it to the first stage that uses its values"
                                .to_owned()
                        }
                        key => suggestion("keys", key, names()),
                    });
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

    pub(crate) fn declared(&self, name: &str) -> Option<Key> {
        self.keys.iter().find(|key| key.name == name).copied()
    }

    /// The bounds that are declared for an integer; without any, those of TOML.
    fn bounds(&self, key: &str) -> RangeInclusive<u64> {
        let (least, most) = self.declared(key).and_then(|key| key.range).unwrap_or((0, i64::MAX as u64));
        least..=most
    }

    /// `from`: a name, or a list of names.
    pub fn upstreams(&mut self) -> Upstreams {
        self.names("from", "name what it reads from").into_iter().map(|name| (None, name)).collect()
    }

    /// A name, or a list of names, that must be there; `help` says what to write. Empty after an error.
    pub fn names(&mut self, key: &str, help: &str) -> Vec<Spanned<String>> {
        let Some(entry) = self.entry(key) else {
            self.missing(key, help);
            return Vec::new();
        };
        match &entry.node.value {
            Toml::Array(items) if items.is_empty() => {
                self.bad(key, self.span, "names nothing");
                Vec::new()
            }
            Toml::String(_) => self.string(key).into_iter().collect(),
            _ => self.strings(key).unwrap_or_default(),
        }
    }

    pub fn entry(&self, key: &str) -> Option<&'a TomlEntry> {
        self.table.get(key)
    }

    pub fn missing(&mut self, key: &str, help: &str) {
        let message = format!("{} needs the key `{key}`", self.what);
        self.diags.error(self.span, message).label(format!("`{key}` is missing")).help(help);
    }

    /// Reports a value of the wrong type.
    pub fn wrong(&mut self, key: &str, node: &TomlNode, expected: &str) -> &mut Diagnostic {
        let message = format!("`{key}` of {} must be {expected}", self.what);
        self.diags.error(node.span, message).label(format!("found {}", node.found()))
    }

    /// Reports a value of the right type that cannot be.
    pub fn bad(&mut self, key: &str, span: Span, reason: &str) -> &mut Diagnostic {
        let message = format!("`{key}` of {} {reason}", self.what);
        self.diags.error(span, message)
    }

    /// A text that is not empty. This and all below return `None` after reporting: the key is missing, or its value has the wrong type.
    pub fn string(&mut self, key: &str) -> Option<Spanned<String>> {
        let node = &self.entry(key)?.node;
        match &node.value {
            Toml::String(s) if s.trim().is_empty() => self.bad(key, node.span, "is empty").none(),
            Toml::String(s) => Some(Spanned::new(s.clone(), node.span)),
            _ => self.wrong(key, node, "a string").none(),
        }
    }

    /// A text that may consist of blanks.
    pub fn string_with_blanks(&mut self, key: &str) -> Option<Spanned<String>> {
        let node = &self.entry(key)?.node;
        self.string_in(key, node)
    }

    /// A text that must be there; `help` says what to write.
    pub fn required_string(&mut self, key: &str, help: &str) -> Option<Spanned<String>> {
        if self.entry(key).is_none() {
            self.missing(key, help);
            return None;
        }
        self.string(key)
    }

    /// A list of strings, or a single one.
    pub fn strings(&mut self, key: &str) -> Option<Vec<Spanned<String>>> {
        let node = &self.entry(key)?.node;
        match &node.value {
            Toml::String(s) => Some(vec![Spanned::new(s.clone(), node.span)]),
            Toml::Array(items) => items.iter().map(|n| self.string_in(key, n)).collect(),
            _ => self.wrong(key, node, "a string or a list of strings").none(),
        }
    }

    /// A table of texts with their names, in its order. All that are empty or no texts are reported: what a table is to be, what is wrong with an empty
    /// one, and what each entry is to be.
    pub fn texts(&mut self, key: &str, words: [&str; 3]) -> Option<NamedTexts> {
        self.texts_beside(key, words, |_| false)
    }

    /// The same of a table that has other entries beside texts.
    pub fn texts_beside(
        &mut self,
        key: &str,
        [table_of, empty, each]: [&str; 3],
        is_other: impl Fn(&Toml) -> bool,
    ) -> Option<NamedTexts> {
        let node = &self.entry(key)?.node;
        let Toml::Table(table) = &node.value else {
            return self.wrong(key, node, table_of).none();
        };
        if table.entries.is_empty() {
            return self.bad(key, node.span, empty).help(format!("write {table_of}")).none();
        }
        let mut texts = Some(Vec::new());
        for TomlEntry { key: name, key_span, node } in &table.entries {
            let below = format!("{key}.{name}");
            match &node.value {
                value if is_other(value) => continue,
                Toml::String(_) if name.trim().is_empty() => {
                    self.bad(key, *key_span, "has an entry without a name");
                }
                Toml::String(text) if text.trim().is_empty() => {
                    self.bad(&below, node.span, "is empty");
                }
                Toml::String(text) => {
                    let named =
                        (Spanned::new(name.clone(), *key_span), Spanned::new(text.clone(), node.span));
                    texts.iter_mut().for_each(|texts| texts.push(named.clone()));
                    continue;
                }
                _ => drop(self.wrong(&below, node, each)),
            }
            texts = None;
        }
        texts.map(NamedTexts)
    }

    fn string_in(&mut self, key: &str, node: &TomlNode) -> Option<Spanned<String>> {
        match &node.value {
            Toml::String(s) => Some(Spanned::new(s.clone(), node.span)),
            _ => self.wrong(key, node, "a string or a list of strings").none(),
        }
    }

    /// An integer within its declared bounds.
    pub fn integer(&mut self, key: &str) -> Option<Spanned<u64>> {
        let bounds = self.bounds(key);
        self.integer_within(key, bounds)
    }

    /// An integer whose bounds depend on something else that the file says.
    pub(crate) fn integer_within(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<Spanned<u64>> {
        let node = &self.entry(key)?.node;
        let Toml::Integer(n) = node.value else {
            return self
                .wrong(key, node, &format!("an integer from {} to {}", range.start(), range.end()))
                .none();
        };
        match u64::try_from(n).ok().filter(|n| range.contains(n)) {
            Some(n) => Some(Spanned::new(n, node.span)),
            None => {
                let reason = format!("must be from {} to {}, not {n}", range.start(), range.end());
                self.bad(key, node.span, &reason).none()
            }
        }
    }

    /// A whole number of either sign.
    pub(crate) fn whole_number(&mut self, key: &str) -> Option<i64> {
        let node = &self.entry(key)?.node;
        let Toml::Integer(n) = node.value else {
            return self.wrong(key, node, "a whole number").none();
        };
        Some(n)
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, key: &str) -> Option<bool> {
        let node = &self.entry(key)?.node;
        match node.value {
            Toml::Boolean(b) => Some(b),
            _ => self.wrong(key, node, "true or false").none(),
        }
    }

    pub fn numbers(&mut self, key: &str) -> Option<Spanned<Vec<f64>>> {
        let node = &self.entry(key)?.node;
        let one = |node: &TomlNode| match node.value {
            Toml::Integer(n) if n as f64 as i128 == i128::from(n) => Some(n as f64),
            // They end as f32.
            Toml::Float(n) if n.abs() <= f64::from(f32::MAX) => Some(n),
            _ => None,
        };
        let numbers = match &node.value {
            Toml::Array(items) => items.iter().map(one).collect(),
            _ => one(node).map(|n| vec![n]),
        };
        if numbers.is_none() {
            let all =
                if let Toml::Array(items) = &node.value { &items[..] } else { std::slice::from_ref(node) };
            let rounded = all.iter().find_map(|node| match node.value {
                Toml::Integer(n) if n as f64 as i128 != i128::from(n) => Some(n),
                _ => None,
            });
            if let Some(n) = rounded {
                let near = n as f64;
                self.bad(key, node.span, &format!("cannot be {n}: f64 has no such number"))
                    .help(format!("write {key} = {near:.0}, which is the nearest"));
            } else {
                self.wrong(key, node, "a number or a list of numbers");
            }
        }
        numbers.map(|n| Spanned::new(n, node.span))
    }

    /// A number within its declared bounds, or a list of one.
    pub fn number(&mut self, key: &str) -> Option<Spanned<f64>> {
        let numbers = self.numbers(key)?;
        let [one] = numbers.value[..] else {
            return self.bad(key, numbers.span, "must be one number").none();
        };
        if let Some((least, most)) = self.declared(key).and_then(|key| key.range)
            && let (least, most) = (least as f64, most as f64)
            && !(least..=most).contains(&one)
        {
            return self.bad(key, numbers.span, &format!("must be from {least:?} to {most:?}")).none();
        }
        Some(Spanned::new(one, numbers.span))
    }

    pub fn duration(&mut self, key: &str) -> Option<Duration> {
        let node = &self.entry(key)?.node;
        let Toml::String(text) = &node.value else {
            return self.wrong(key, node, "a duration in quotes, for example \"500ms\" or \"2m\"").none();
        };
        match humantime::parse_duration(text.trim()) {
            Ok(duration) => Some(duration),
            Err(error) => {
                let reason = format!("is no duration: `{text}`: {error}");
                self.bad(key, node.span, &reason).help("for example \"5ms\", \"30s\" or \"2m\"").none()
            }
        }
    }

    /// An amount of memory, in bytes.
    pub fn bytes(&mut self, key: &str) -> Option<Spanned<u64>> {
        let node = &self.entry(key)?.node;
        let bytes = match &node.value {
            Toml::Integer(n) => u64::try_from(*n).ok(),
            Toml::String(text) => parse_bytes(text),
            _ => {
                return self.wrong(key, node, "an amount of memory, for example \"4GiB\"").none();
            }
        };
        if bytes.is_none() {
            let reason = format!("is no amount of memory: {}", node.found());
            self.bad(key, node.span, &reason).help("for example \"4GiB\", \"500MB\" or a number of bytes");
        }
        bytes.map(|b| Spanned::new(b, node.span))
    }

    /// What the word stands for; `None` where it is left out, or wrong and reported.
    pub fn choice<T: Choice>(&mut self, key: &str) -> Option<T> {
        debug_assert!(
            self.declared(key).is_none_or(|key| key.words == T::WORDS),
            "`{key}` of {} is declared with other words",
            self.what
        );
        let node = &self.entry(key)?.node;
        let names = T::WORDS.iter().map(|word| word.text);
        let Toml::String(text) = &node.value else {
            let expected = format!("one of {}", list(names));
            return self.wrong(key, node, &expected).none();
        };
        let choice = T::named(text);
        if choice.is_none() {
            let reason = format!("cannot be `{text}`");
            self.bad(key, node.span, &reason).help(suggestion("choices", text, names));
        }
        choice
    }

    /// A table of the top level, which messages call `[key]`; where it is left out, or wrong and reported, a table without entries.
    pub(crate) fn section(&mut self, key: &str, keys: &[Key]) -> Fields<'a, '_> {
        self.table_or_empty_called(key, format!("[{key}]"), keys)
    }

    /// A table under `key`, with the keys that are declared for it; others are reported.
    pub fn table(&mut self, key: &str) -> Option<Fields<'a, '_>> {
        let keys = self.declared(key).map_or(&[][..], |key| key.keys);
        let (table, span) = self.table_under(key, keys)?;
        Some(Fields::new(format!("`{key}` of {}", self.what), span, table, keys, self.diags))
    }

    /// As [`Fields::table`]; where it is left out, or wrong and reported, a table without entries, so that the declared defaults are read.
    pub fn table_or_empty(&mut self, key: &str) -> Fields<'a, '_> {
        let keys = self.declared(key).map_or(&[][..], |key| key.keys);
        self.table_or_empty_called(key, format!("`{key}` of {}", self.what), keys)
    }

    fn table_or_empty_called(&mut self, key: &str, what: String, keys: &[Key]) -> Fields<'a, '_> {
        static EMPTY: Table = Table { span: Span { text: 0, start: 0, end: 0 }, entries: Vec::new() };
        let (table, span) = self.table_under(key, keys).unwrap_or((&EMPTY, self.span));
        Fields::new(what, span, table, keys, self.diags)
    }

    /// The table under `key`, which may hold `keys`, and where it is named.
    fn table_under(&mut self, key: &str, keys: &[Key]) -> Option<(&'a Table, Span)> {
        let entry = self.entry(key)?;
        let Toml::Table(table) = &entry.node.value else {
            let names: Vec<_> = keys.iter().map(|key| key.name).collect();
            let expected = format!("a table: {key} = {{ {} = .. }}", names.join(" = .., "));
            return self.wrong(key, &entry.node, &expected).none();
        };
        Some((table, entry.key_span))
    }
}
