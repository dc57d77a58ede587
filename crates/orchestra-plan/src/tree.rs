//! TOML text to a tree that knows where everything stands, and `--set` on top of it. Knows no key of the workflow file.

use std::ops::Range;

use toml_edit::{Document, Item, Key, TableLike, Value as TomlValue};

use crate::diagnostics::{Diagnostics, Span};
use crate::nearest::suggestion;

/// A value and its place.
#[derive(Debug, Clone)]
pub struct TomlNode {
    /// Its place in the file.
    pub span: Span,
    pub value: Toml,
}

#[derive(Debug, Clone)]
pub enum Toml {
    String(String),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A date or a time: no key takes one.
    Datetime,
    Array(Vec<TomlNode>),
    Table(Table),
}

/// A table: its entries in the order of the file.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Its place in the file.
    pub span: Span,
    pub entries: Vec<TomlEntry>,
}

#[derive(Debug, Clone)]
pub struct TomlEntry {
    pub key: String,
    /// Where the name stands.
    pub key_span: Span,
    pub node: TomlNode,
}

impl From<&str> for Toml {
    fn from(text: &str) -> Self {
        Toml::String(text.to_owned())
    }
}

impl From<Table> for Toml {
    fn from(table: Table) -> Self {
        Toml::Table(table)
    }
}

impl Table {
    /// A table that stands in no file.
    pub fn of<K: Into<String>>(entries: impl IntoIterator<Item = (K, Toml)>) -> Self {
        let nowhere = || Span::new(0, 0..0);
        let entry = |(key, value): (K, Toml)| TomlEntry {
            key: key.into(),
            key_span: nowhere(),
            node: TomlNode { span: nowhere(), value },
        };
        Self { span: nowhere(), entries: entries.into_iter().map(entry).collect() }
    }

    pub fn get(&self, key: &str) -> Option<&TomlEntry> {
        self.entries.iter().find(|e| e.key == key)
    }
}

impl Toml {
    /// What it is as a part of a text; `None` for a list or a table.
    pub(crate) fn to_text(&self) -> Option<String> {
        match self {
            Toml::String(text) => Some(text.clone()),
            Toml::Integer(n) => Some(n.to_string()),
            Toml::Float(n) => Some(n.to_string()),
            Toml::Boolean(b) => Some(b.to_string()),
            Toml::Datetime | Toml::Array(_) | Toml::Table(_) => None,
        }
    }
}

impl TomlNode {
    /// What the value is, with its article, for messages.
    pub fn found(&self) -> String {
        match &self.value {
            Toml::String(s) => format!("the string \"{s}\""),
            Toml::Integer(n) => format!("the integer {n}"),
            Toml::Float(n) => format!("the number {n}"),
            Toml::Boolean(b) => format!("the boolean {b}"),
            Toml::Datetime => "a date".into(),
            Toml::Array(a) => format!("a list of {}", a.len()),
            Toml::Table(_) => "a table".into(),
        }
    }
}

/// Parses the workflow file. A syntax error is put into `diags`; then there is no tree.
pub(crate) fn parse(text: &str, diags: &mut Diagnostics) -> Option<Table> {
    match Document::parse(text) {
        Ok(document) => Some(TreeBuilder { text: 0 }.table(document.as_table(), 0..0)),
        Err(error) => {
            let range = error.span();
            // The parser takes a bare word for a broken number.
            let rest = range.clone().and_then(|r| text.get(r.start..)).unwrap_or_default();
            let found =
                rest.split([' ', '\t', '\n', '\r', ',', ']', '}', '#', '"']).next().unwrap_or_default();
            let is_word =
                found.contains(char::is_alphabetic) && !found.starts_with(|c: char| c.is_ascii_digit());
            let label = match error.message() {
                message if is_word && message.starts_with("invalid") => {
                    format!("text needs quotes: \"{found}\"")
                }
                message => message.trim().replace('\n', "; "),
            };
            diags.error(range.map(|r| Span::new(0, r)), "the file is no valid TOML").label(label);
            None
        }
    }
}

/// What a text is as a value of TOML; what is no TOML is itself. All of it stands at `span`.
pub(crate) fn value_of(text: &str, span: Span) -> Toml {
    let parsed = Document::parse(format!("v={text}")).ok().filter(|parsed| parsed.len() == 1);
    let node = parsed.and_then(|parsed| Some(TreeBuilder { text: 0 }.item(parsed.get("v")?, 0..0)));
    let mut node = node.unwrap_or_else(|| TomlNode { span, value: Toml::String(text.to_owned()) });
    respan(&mut node, span);
    node.value
}

/// Applies `--set key=value` to the tree. The value is TOML; what is no TOML is taken as a string.
pub(crate) fn set(root: &mut Table, key: &str, value: &str, diags: &mut Diagnostics) {
    let flag = format!("{key}={value}");
    let text = diags.add_option("set", &flag);
    let key_span = Span::new(text, 0..key.len());
    let value_span = Span::new(text, key.len() + 1..flag.len());
    let whole = Span::new(text, 0..flag.len());
    let option = diags.option("set");
    let mut refuse = |span: Span, why: String, help: &str| {
        diags.error(span, format!("`{option} {flag}`: {why}")).help(help);
    };
    let path = match Key::parse(key) {
        Ok(path) if !path.is_empty() => path,
        _ => {
            let help = "expected names joined by dots, such as `stages.pixels.size`";
            return refuse(key_span, format!("`{key}` is no key"), help);
        }
    };
    let parsed = Document::parse(format!("v={value}")).ok().filter(|parsed| parsed.len() == 1);
    if parsed.is_none() && value.trim_start().starts_with(['[', '{', '"', '\'']) {
        let help = "expected TOML, such as `[64, 64]`; in a shell, the whole option is in quotes: 'stages.pixels.size=[64, 64]'";
        return refuse(value_span, "the value is no valid TOML".to_owned(), help);
    }
    let node = TomlNode { span: value_span, value: value_of(value, value_span) };
    let names: Vec<&str> = path.iter().map(Key::get).collect();
    if let Some((group, name, there)) = unknown_name(root, &names) {
        let help = suggestion(&group, &name, there.iter().map(String::as_str));
        return refuse(key_span, format!("there is no `{group}.{name}` in the file"), &help);
    }
    if let Err(stopped_at) = insert(root, &names, node, whole) {
        let why = format!("`{stopped_at}` is a value, not a table");
        refuse(key_span, why, "only keys of tables can be set");
    }
}

/// The group and the name of a key such as `stages.NAME.size` if the group has no such name, with the names that it has. A setting
/// changes what is there; a name that is written wrong must not begin a table of its own.
fn unknown_name(root: &Table, path: &[&str]) -> Option<(String, String, Vec<String>)> {
    let [group, name, _, ..] = path else { return None };
    if !["sources", "models", "stages", "sinks", "tasks", "best"].contains(group) {
        return None;
    }
    let Toml::Table(there) = &root.get(group)?.node.value else { return None };
    if there.get(name).is_some() {
        return None;
    }
    Some(((*group).into(), (*name).into(), there.entries.iter().map(|e| e.key.clone()).collect()))
}

/// Puts `node` at the end of the path, making tables on the way.
fn insert(table: &mut Table, path: &[&str], node: TomlNode, flag: Span) -> Result<(), String> {
    let Some((name, rest)) = path.split_first() else { return Ok(()) };
    let at = match table.entries.iter().position(|e| e.key == *name) {
        Some(at) => at,
        None => {
            let value = Toml::Table(Table { span: flag, entries: Vec::new() });
            table.entries.push(TomlEntry {
                key: (*name).into(),
                key_span: flag,
                node: TomlNode { span: flag, value },
            });
            table.entries.len() - 1
        }
    };
    let entry = &mut table.entries[at];
    if rest.is_empty() {
        entry.node = node;
        entry.key_span = flag;
        return Ok(());
    }
    match &mut entry.node.value {
        Toml::Table(inner) => insert(inner, rest, node, flag),
        _ => Err((*name).into()),
    }
}

/// The value of an option was parsed from another text: all of it points at the option's value.
fn respan(node: &mut TomlNode, span: Span) {
    node.span = span;
    match &mut node.value {
        Toml::Array(items) => items.iter_mut().for_each(|n| respan(n, span)),
        Toml::Table(table) => {
            table.span = span;
            for entry in &mut table.entries {
                entry.key_span = span;
                respan(&mut entry.node, span);
            }
        }
        _ => {}
    }
}

struct TreeBuilder {
    text: u16,
}

impl TreeBuilder {
    fn span(&self, own: Option<Range<usize>>, outer: &Range<usize>) -> Range<usize> {
        own.unwrap_or_else(|| outer.clone())
    }

    fn item(&self, item: &Item, outer: Range<usize>) -> TomlNode {
        let range = self.span(item.span(), &outer);
        let value = match item {
            Item::Value(value) => return self.value(value, range),
            Item::Table(table) => Toml::Table(self.table(table, range.clone())),
            Item::ArrayOfTables(tables) => Toml::Array(
                tables
                    .iter()
                    .map(|t| {
                        let inner = self.span(t.span(), &range);
                        let span = Span::new(self.text, inner.clone());
                        TomlNode { span, value: Toml::Table(self.table(t, inner)) }
                    })
                    .collect(),
            ),
            Item::None => {
                Toml::Table(Table { span: Span::new(self.text, range.clone()), entries: Vec::new() })
            }
        };
        TomlNode { span: Span::new(self.text, range), value }
    }

    fn value(&self, value: &TomlValue, outer: Range<usize>) -> TomlNode {
        let range = self.span(value.span(), &outer);
        let span = Span::new(self.text, range.clone());
        let value = match value {
            TomlValue::String(s) => Toml::String(s.value().clone()),
            TomlValue::Integer(n) => Toml::Integer(*n.value()),
            TomlValue::Float(n) => Toml::Float(*n.value()),
            TomlValue::Boolean(b) => Toml::Boolean(*b.value()),
            TomlValue::Datetime(_) => Toml::Datetime,
            TomlValue::Array(a) => Toml::Array(a.iter().map(|v| self.value(v, range.clone())).collect()),
            TomlValue::InlineTable(t) => Toml::Table(self.table(t, range)),
        };
        TomlNode { span, value }
    }

    fn table(&self, table: &dyn TableLike, range: Range<usize>) -> Table {
        let entries = table
            .iter()
            .map(|(name, item)| {
                let key = table.key(name).and_then(Key::span);
                let key = self.span(key, &self.span(item.span(), &range));
                TomlEntry {
                    key: name.into(),
                    key_span: Span::new(self.text, key.clone()),
                    node: self.item(item, key),
                }
            })
            .collect();
        Table { span: Span::new(self.text, range), entries }
    }
}
