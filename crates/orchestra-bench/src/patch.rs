//! Settings into the text of a workflow file, and the difference as a patch. It opens no file, and keeps comments and order.

use std::fmt::Write as _;

use thiserror::Error;
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

/// Lines around a change.
const CONTEXT: usize = 3;

/// Why a setting cannot be put into a file.
#[derive(Debug, Error)]
pub enum PatchError {
    /// The text is no TOML.
    #[error("the file is no valid TOML: {0}")]
    Toml(#[from] toml_edit::TomlError),
    /// Something on the way to the key is no table.
    #[error("`{0}` is a value, not a table")]
    NoTable(String),
}

/// The text with these integers set. Keys are names joined by dots.
pub fn edited(text: &str, settings: &[(String, u64)]) -> Result<String, PatchError> {
    let mut document: DocumentMut = text.parse()?;
    for (key, value) in settings {
        let names: Vec<&str> = key.split('.').collect();
        let value = i64::try_from(*value).unwrap_or(i64::MAX);
        set(document.as_table_mut(), &names, key, value)?;
    }
    Ok(document.to_string())
}

fn set(table: &mut dyn TableLike, names: &[&str], key: &str, value: i64) -> Result<(), PatchError> {
    let Some((name, rest)) = names.split_first() else { return Ok(()) };
    if rest.is_empty() {
        let mut new = Value::from(value);
        if let Some(old) = table.get(name).and_then(Item::as_value) {
            // The comment behind the old value stays.
            *new.decor_mut() = old.decor().clone();
            table.insert(name, Item::Value(new));
        } else {
            table.insert(name, Item::Value(new));
        }
        return Ok(());
    }
    if table.get(name).is_none() {
        let missing = match rest.len() {
            // `batch` of a stage reads best on one line.
            1 if names.len() < key.split('.').count() => Item::Value(Value::InlineTable(InlineTable::new())),
            _ => Item::Table(Table::new()),
        };
        table.insert(name, missing);
    }
    let inner = table.get_mut(name).and_then(Item::as_table_like_mut);
    set(inner.ok_or_else(|| PatchError::NoTable((*name).to_owned()))?, rest, key, value)
}

/// What turns `old` into `new`, for `patch`; empty where they are the same. `name` is what the patch calls the file.
#[must_use]
pub fn unified_diff(name: &str, old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (lines(old), lines(new));
    let prefix = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    if prefix == a.len() && prefix == b.len() {
        return String::new();
    }
    let rest = a.len().min(b.len()) - prefix;
    let suffix = a.iter().rev().zip(b.iter().rev()).take(rest).take_while(|(x, y)| x == y).count();
    let start = prefix.saturating_sub(CONTEXT);
    let (end_a, end_b) = (a.len() - suffix, b.len() - suffix);
    let after = suffix.min(CONTEXT);
    let mut body = String::new();
    a[start..prefix].iter().for_each(|l| push(&mut body, ' ', l));
    changes(&a[prefix..end_a], &b[prefix..end_b], &mut body);
    a[end_a..end_a + after].iter().for_each(|l| push(&mut body, ' ', l));
    let range = |end: usize| {
        let count = end + after - start;
        format!("{},{count}", if count == 0 { start } else { start + 1 })
    };
    format!("--- {name}\n+++ {name}\n@@ -{} +{} @@\n{body}", range(end_a), range(end_b))
}

/// Lines with their ends.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn push(out: &mut String, sign: char, line: &str) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{sign}{line}");
    if !line.ends_with('\n') {
        out.push_str("\n\\ No newline at end of file\n");
    }
}

/// The shortest way from `a` to `b`. Quadratic: workflow files are short, and this is only the part that changed.
fn changes(a: &[&str], b: &[&str], out: &mut String) {
    let mut common = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] =
                if a[i] == b[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            push(out, ' ', a[i]);
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || common[i + 1][j] >= common[i][j + 1]) {
            push(out, '-', a[i]);
            i += 1;
        } else {
            push(out, '+', b[j]);
            j += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# top\nversion = 1\n\n[models.m]\npath = \"m.onnx\"   # the model\nworkers = 2 # two\n\n[stages.s]\nkind = \"infer\"\nbatch = { max = 64, wait = \"5ms\" } # large\n\n[stages.t]\nkind = \"infer\"\nfrom = \"p\"\n\n[sinks.r]\nkind = \"jsonl\"\n";

    fn set(settings: &[(&str, u64)]) -> String {
        let settings: Vec<(String, u64)> = settings.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        edited(FILE, &settings).unwrap()
    }

    #[test]
    fn comments_and_order_stay() {
        let text = set(&[("models.m.workers", 3), ("stages.s.batch.max", 128)]);
        let expected = FILE.replace("workers = 2 #", "workers = 3 #").replace("max = 64,", "max = 128,");
        assert_eq!(text, expected);
    }

    #[test]
    fn keys_that_were_not_there_are_added() {
        let text = set(&[("models.m.threads", 1), ("stages.t.batch.max", 16), ("limits.loaders", 4)]);
        assert!(text.contains("workers = 2 # two\nthreads = 1\n"), "{text}");
        assert!(text.contains("from = \"p\"\nbatch = { max = 16 }\n"), "{text}");
        assert!(text.contains("[limits]\nloaders = 4\n"), "{text}");
    }

    #[test]
    fn a_value_is_no_table() {
        let settings = [("version.x".to_owned(), 1)];
        assert!(matches!(edited(FILE, &settings), Err(PatchError::NoTable(name)) if name == "version"));
        assert!(matches!(edited("a = ", &[]), Err(PatchError::Toml(_))));
    }

    #[test]
    fn a_patch_names_what_changed_with_lines_around_it() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\nmore\n8\n9\n";
        let expected = "--- f\n+++ f\n@@ -2,8 +2,9 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n+more\n 8\n 9\n";
        assert_eq!(unified_diff("f", old, new), expected);
        assert_eq!(unified_diff("f", old, old), "");
        let at_end = unified_diff("f", "a", "a\nb\n");
        assert_eq!(at_end, "--- f\n+++ f\n@@ -1,1 +1,2 @@\n-a\n\\ No newline at end of file\n+a\n+b\n");
    }
}
