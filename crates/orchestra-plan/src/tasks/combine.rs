//! `matrix` and `for_each`: all combinations of the values of a table, and the name of each.

use std::collections::BTreeSet;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::raw::{RawTask, RawValues};
use super::template::{Part, parts};
use super::{Surroundings, rows};
use crate::build::resolve;
use crate::diagnostics::{Diagnostics, Span};
use crate::fingerprint::hex;

type Values = Vec<(String, String)>;

/// What placeholders of every task are called.
pub(super) const RESERVED: [&str; 3] = ["output", "tasks", "sinks"];

/// A longer name is cut, and told from others by its checksum.
const MAX_NAME: usize = 120;

/// The product of `matrix` and the rows of `for_each`; one without values where there is none of them. At most `most` + 1.
pub(super) fn combinations(
    raw: &RawTask,
    most: usize,
    around: &Surroundings<'_>,
    diags: &mut Diagnostics,
) -> Option<Vec<Values>> {
    let mut axes: Vec<Vec<Values>> = Vec::new();
    for list in &raw.matrix {
        axes.push(list.values.iter().map(|value| vec![(list.name.value.clone(), value.clone())]).collect());
    }
    let named = |list: &RawValues| (list.name.value.clone(), list.name.span);
    let mut names: Vec<(String, Span)> = raw.matrix.iter().map(named).collect();
    if let Some(file) = &raw.for_each {
        let placeholder = parts(&file.value).into_iter().find_map(|part| match part {
            Part::Name(name) => Some(name),
            Part::Text(_) => None,
        });
        if let Some(name) = placeholder {
            diags
                .error(
                    file.span,
                    format!("`for_each` of task `{}` has `{{{name}}}`, and its rows are read before any command runs", raw.name.value),
                )
                .help("name a file that is there before: let a workflow file of its own make it, and run that one first");
            return None;
        }
        let path = resolve(around.folder, &file.value, around.host);
        let read = around.host.read(&path).map_err(|error| error.to_string());
        let rows = match read.and_then(|bytes| rows::rows(&path, &bytes, most)) {
            Ok(rows) => rows,
            Err(why) => {
                diags
                    .error(file.span, format!("`for_each` of task `{}`: `{}`: {why}", raw.name.value, path.display()))
                    .help("a .csv with a line of names, or a .jsonl with an object per line, relative to the folder of the workflow file");
                return None;
            }
        };
        // Rows of JSON lines may differ in theirs.
        let of_rows: BTreeSet<&String> = rows.iter().flatten().map(|(name, _)| name).collect();
        names.extend(of_rows.into_iter().map(|name| (name.clone(), file.span)));
        axes.push(rows);
    }
    let mut is_fine = true;
    for (at, (name, span)) in names.iter().enumerate() {
        let why = match () {
            () if RESERVED.contains(&&name[..]) => "is the name of something else",
            () if names[..at].iter().any(|(other, _)| other == name) => "is there twice",
            () => continue,
        };
        diags
            .error(*span, format!("the value `{name}` of task `{}` {why}", raw.name.value))
            .help("give it another name");
        is_fine = false;
    }
    let count = axes
        .iter()
        .try_fold(1usize, |count, axis| count.checked_mul(axis.len()).filter(|count| *count <= most));
    if count.is_none() {
        diags.error(
            raw.name.span,
            format!("task `{}` has more than {most} combinations of values", raw.name.value),
        );
        return None;
    }
    let product = |all: Vec<Values>, axis: &Vec<Values>| -> Vec<Values> {
        all.iter().flat_map(|values| axis.iter().map(move |more| [&values[..], more].concat())).collect()
    };
    is_fine.then(|| axes.iter().fold(vec![Vec::new()], product))
}

/// The id of a task, and its folder below that of all tasks. Both are the same in every run.
pub(super) fn names(table: &str, values: &Values) -> (String, PathBuf) {
    if values.is_empty() {
        return (table.to_owned(), table.into());
    }
    let pairs: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let written = pairs.join(",");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-=,@".contains(c);
    (id(table, &written), PathBuf::from(table).join(short(&written, is_plain)))
}

/// The id of the task that `train[lr=0.1,seed=2]` names with its values in full, of which a long id has a part.
pub(super) fn id_of(written: &str) -> Option<String> {
    let (table, values) = written.strip_suffix(']')?.split_once('[')?;
    Some(id(table, values))
}

fn id(table: &str, written: &str) -> String {
    format!("{table}[{}]", short(written, |c| !c.is_control()))
}

/// The text with `_` for characters that must not be in it. Where anything was lost a checksum of all of it follows.
fn short(text: &str, may_be: impl Fn(char) -> bool) -> String {
    if text.len() <= MAX_NAME && text.chars().all(&may_be) {
        return text.to_owned();
    }
    let kept = text.chars().map(|c| if may_be(c) { c } else { '_' });
    let mut kept: String = kept.collect();
    kept.truncate(kept.floor_char_boundary(MAX_NAME - 9));
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    format!("{kept}-{}", &hex(&digest)[..8])
}
