//! Named tables of a group, and the kind that each of them names.

use std::collections::HashSet;
use std::sync::Arc;

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::Spanned;
use crate::key::Key;
use crate::keys;
use crate::kind::{SinkKind, Writes};
use crate::nearest::suggestion;
use crate::tree::{Table, Toml};

/// Tables of one kind. Ids of the plan have 16 bits; a file beyond this bound is a mistake of the program that generated it.
const MAX_TABLES: usize = 10_000;

/// All keys of a table of some kind.
pub(crate) fn declared(common: &[Key], own: &[Key]) -> Vec<Key> {
    [&[keys::KIND][..], common, own].concat()
}

/// The keys of the table of a sink of this kind, beside `kind` and those of the kind.
pub fn keys_of_sink(kind: &dyn SinkKind) -> &'static [Key] {
    if kind.writes() == Writes::Reply { keys::REPLY } else { keys::SINK }
}

/// The kind that a table names: what `find` finds of these names, else reported.
pub(super) fn kind<'k, K: ?Sized + 'k>(
    what: &str,
    table: &Table,
    span: Span,
    names: impl Iterator<Item = &'static str>,
    find: impl FnOnce(&str) -> Option<&'k Arc<K>>,
    diags: &mut Diagnostics,
) -> Option<Arc<K>> {
    let mut names: Vec<&str> = names.collect();
    // One that is replaced has its name twice.
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(*name));
    let Some(entry) = table.get("kind") else {
        diags
            .error(span, format!("{what} needs the key `kind`"))
            .label("`kind` is missing")
            .help(suggestion("kinds", "", names.iter().copied()));
        return None;
    };
    let Toml::String(text) = &entry.node.value else {
        diags
            .error(entry.node.span, format!("`kind` of {what} must be a string"))
            .label(format!("found {}", entry.node.found()));
        return None;
    };
    let found = find(text).cloned();
    if found.is_none() {
        diags.error(entry.node.span, format!("{what} has the unknown kind `{text}`")).help(suggestion(
            "kinds",
            text,
            names.iter().copied(),
        ));
    }
    found
}

pub(super) fn tables<T>(
    root: &Table,
    key: &str,
    what: &str,
    diags: &mut Diagnostics,
    mut read: impl FnMut(Spanned<String>, &Table, &mut Diagnostics) -> T,
) -> Vec<T> {
    let Some(section) = root.get(key) else { return Vec::new() };
    let Toml::Table(named) = &section.node.value else {
        diags
            .error(section.key_span, format!("`{key}` must hold named tables"))
            .label(format!("found {}", section.node.found()))
            .help(format!("write [{key}.some_name] and its keys below it"));
        return Vec::new();
    };
    if named.entries.len() > MAX_TABLES {
        diags.error(section.key_span, format!("`{key}` holds more than {MAX_TABLES} tables"));
        return Vec::new();
    }
    let mut result = Vec::new();
    for entry in &named.entries {
        let name = Spanned::new(entry.key.clone(), entry.key_span);
        if entry.key.is_empty()
            || !entry.key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        {
            diags
                .error(name.span, format!("`{}` is no name for a {what}", entry.key))
                .help("names are made of letters, digits, `_` and `-`");
        }
        match &entry.node.value {
            Toml::Table(table) => result.push(read(name, table, diags)),
            _ => {
                diags
                    .error(entry.key_span, format!("{what} `{}` must be a table", entry.key))
                    .label(format!("found {}", entry.node.found()))
                    .help(format!("write [{key}.some_name] and its keys below it"));
            }
        }
    }
    result
}
