//! `matrix` and `for_each`: all combinations of the values of a table.

use std::collections::BTreeSet;

use super::rows::{self, TaskValues};
use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::template::{TemplatePart, parts};
use crate::workflow::RawTask;

/// Memory for the values of all tasks of a table, in MiB.
const PRODUCT_MIB: usize = 512;

/// What placeholders of every task are called.
pub(super) const RESERVED: [&str; 3] = ["output", "tasks", "sinks"];

/// The product of `matrix` and the rows of `for_each`; one without values where there is none of them. At most `most` + 1.
pub(super) fn combinations(raw: &RawTask, most: usize, cx: &mut Cx<'_>) -> Result<Vec<TaskValues>, Reported> {
    let axis = |(name, values): &(Spanned<String>, Vec<String>)| -> Vec<TaskValues> {
        values.iter().map(|value| vec![(name.value.clone(), value.clone())]).collect()
    };
    let mut axes: Vec<Vec<TaskValues>> = raw.matrix.iter().map(axis).collect();
    let named = |(name, _): &(Spanned<String>, Vec<String>)| (name.value.clone(), name.span);
    let mut names: Vec<(String, Span)> = raw.matrix.iter().map(named).collect();
    if let Some(file) = &raw.for_each {
        let rows = rows_of(&raw.name.value, file, most, cx)?;
        // Rows of JSON lines may differ in theirs.
        let of_rows: BTreeSet<&String> = rows.iter().flatten().map(|(name, _)| name).collect();
        names.extend(of_rows.into_iter().map(|name| (name.clone(), file.span)));
        axes.push(rows);
    }
    let (mut is_fine, mut seen) = (Ok(()), BTreeSet::new());
    for (name, span) in &names {
        let why = match () {
            () if RESERVED.contains(&&name[..]) => "is the name of something else",
            () if !seen.insert(name) => "is there twice",
            () => continue,
        };
        let message = format!("the value `{name}` of task `{}` {why}", raw.name.value);
        is_fine = cx.error(*span, message).help("give it another name").fail();
    }
    let count = axes
        .iter()
        .try_fold(1usize, |count, axis| count.checked_mul(axis.len()).filter(|count| *count <= most));
    let largest = |axis: &Vec<TaskValues>| axis.iter().map(rows::memory).max().unwrap_or(0);
    let each: usize = axes.iter().map(largest).sum();
    let why = match count {
        None => format!("{most} combinations of values"),
        Some(count) if count.saturating_mul(each) > PRODUCT_MIB << 20 => {
            format!("{PRODUCT_MIB} MiB of values in its combinations")
        }
        Some(_) => String::new(),
    };
    if !why.is_empty() {
        let message = format!("task `{}` has more than {why}", raw.name.value);
        return cx.error(raw.name.span, message).fail();
    }
    is_fine.map(|()| product(&axes))
}

/// All combinations of what is on each axis; the last axis changes first.
pub(crate) fn product<T: Clone>(axes: &[Vec<Vec<T>>]) -> Vec<Vec<T>> {
    let more = |all: Vec<Vec<T>>, axis: &Vec<Vec<T>>| -> Vec<Vec<T>> {
        all.iter().flat_map(|values| axis.iter().map(move |more| [&values[..], more].concat())).collect()
    };
    axes.iter().fold(vec![Vec::new()], more)
}

/// The rows of the file that `for_each` of a task names.
fn rows_of(
    task: &str,
    file: &Spanned<String>,
    most: usize,
    cx: &mut Cx<'_>,
) -> Result<Vec<TaskValues>, Reported> {
    for part in parts(&file.value) {
        if let TemplatePart::Name(name) = part {
            return cx
                .error(file.span, format!("`for_each` of task `{task}` has `{{{name}}}`, and its rows are read before any command runs"))
                .help("name a file that is there before: let a workflow file of its own make it, and run that one first")
                .fail();
        }
    }
    let path = cx.resolve(&file.value);
    let read = cx.host.read(&path).map_err(|error| error.to_string());
    read.and_then(|bytes| rows::rows(&path, &bytes, most)).or_else(|why| {
        cx.error(file.span, format!("`for_each` of task `{task}`: `{}`: {why}", path.display()))
            .help("a .csv with a line of names, or a .jsonl with an object per line, relative to the folder of the workflow file")
            .fail()
    })
}
