//! `include`: other files of tables, below those of the file that names them. Knows no other key.

use std::path::{Path, PathBuf};

use crate::diagnostics::{Diagnostics, Span};
use crate::host::Host;
use crate::tree::{Entry, Table, Value, parse};

const KEY: &str = "include";

/// Files that one another include.
const DEEPEST: usize = 16;

/// Takes `include` out of the tree, and puts what those files say into it. What the tree says itself goes first. `file` is the workflow file.
pub(crate) fn include(root: &mut Table, file: &Path, host: &dyn Host, diags: &mut Diagnostics) {
    let mut open = vec![host.resolve(file)];
    add_to(root, &mut open, host, diags);
}

/// `open` are the files that lead here, each included by the one before.
fn add_to(root: &mut Table, open: &mut Vec<PathBuf>, host: &dyn Host, diags: &mut Diagnostics) {
    let Some(at) = root.entries.iter().position(|entry| entry.key == KEY) else { return };
    let entry = root.entries.remove(at);
    let Some(names) = names(&entry, diags) else { return };
    // Of two files that say something else, the later one is nearer.
    for (name, span) in names.into_iter().rev() {
        let path = open.last().and_then(|file| file.parent()).unwrap_or(Path::new("/")).join(&name);
        let path = host.resolve(&path);
        if open.contains(&path) || open.len() >= DEEPEST {
            let message = format!("`{name}` is included by a file that it includes itself");
            diags.error(span, message).help("files lead from general ones to special ones, in no circle");
            continue;
        }
        let text = host.read(&path).and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                diags
                    .error(span, format!("cannot include `{}`: {error}", path.display()))
                    .help("paths are relative to the folder of the file that includes");
                continue;
            }
        };
        let Some(mut included) = parse(&text, Some(&path.display().to_string()), diags) else { continue };
        open.push(path);
        add_to(&mut included, open, host, diags);
        open.pop();
        merge(root, included);
    }
}

fn names(entry: &Entry, diags: &mut Diagnostics) -> Option<Vec<(String, Span)>> {
    let name = |node: &crate::tree::Node| match &node.value {
        Value::String(name) if !name.is_empty() => Some((name.clone(), node.span)),
        _ => None,
    };
    let names = match &entry.node.value {
        Value::Array(nodes) => nodes.iter().map(name).collect(),
        _ => name(&entry.node).map(|one| vec![one]),
    };
    if names.is_none() {
        diags
            .error(entry.node.span, format!("`{KEY}` must be a file or a list of files"))
            .label(format!("found {}", entry.node.found()))
            .help("for example: include = [\"common.toml\"]");
    }
    names
}

/// Adds what is not there. Tables of one name become one.
fn merge(root: &mut Table, included: Table) {
    for entry in included.entries {
        let there = root.entries.iter_mut().find(|own| own.key == entry.key);
        match (there.map(|own| &mut own.node.value), entry.node.value) {
            (None, value) => {
                let node = crate::tree::Node { span: entry.node.span, value };
                root.entries.push(Entry { node, ..entry });
            }
            (Some(Value::Table(own)), Value::Table(theirs)) => merge(own, theirs),
            (Some(_), _) => {}
        }
    }
}
