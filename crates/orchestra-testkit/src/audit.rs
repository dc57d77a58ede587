//! Whether an output folder holds exactly the items it should, each once. Reads the files as a user would; knows no journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// An item as records name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemKey {
    /// Name of its source.
    pub source: String,
    /// Its index in the source.
    pub index: u64,
}

/// The records of an output folder.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Of the sinks: per item and sink file, the whole record.
    pub done: BTreeMap<ItemKey, BTreeMap<String, Value>>,
    /// Of `failures.jsonl`: per item, the whole record.
    pub failed: BTreeMap<ItemKey, Value>,
}

impl Records {
    /// Reads the sinks' files (names relative to `out`) and `failures.jsonl`, if there is one.
    ///
    /// # Errors
    /// A torn or unreadable line, a record without item, an item that is twice in one file, or an item both in a sink and in the
    /// failures.
    pub fn read(out: &Path, sinks: &[&str]) -> anyhow::Result<Records> {
        let mut records = Records::default();
        for sink in sinks {
            for (key, record) in lines(&out.join(sink))? {
                let of_item = records.done.entry(key.clone()).or_default();
                ensure!(of_item.insert((*sink).to_owned(), record).is_none(), "`{key}` is twice in `{sink}`");
            }
        }
        let failures = out.join("failures.jsonl");
        if failures.exists() {
            for (key, record) in lines(&failures)? {
                ensure!(!records.done.contains_key(&key), "`{key}` is in a sink and in the failures");
                ensure!(
                    records.failed.insert(key.clone(), record).is_none(),
                    "`{key}` is twice in the failures"
                );
            }
        }
        Ok(records)
    }

    /// Whether the items with a record in every one of `n_sinks` sinks are exactly `done`, and those that failed exactly `failed`.
    ///
    /// # Errors
    /// Says how many items are missing or too many, and names the first.
    pub fn must_be(
        &self,
        n_sinks: usize,
        done: &BTreeSet<ItemKey>,
        failed: &BTreeSet<ItemKey>,
    ) -> anyhow::Result<()> {
        if let Some((key, of_item)) = self.done.iter().find(|(_, r)| r.len() != n_sinks) {
            bail!("`{key}` is in {} of {n_sinks} sinks", of_item.len());
        }
        same("done", &self.done.keys().cloned().collect(), done)?;
        same("failed", &self.failed.keys().cloned().collect(), failed)
    }

    /// The `kind` of an item's failure.
    #[must_use]
    pub fn failure_kind(&self, key: &ItemKey) -> Option<&str> {
        self.failed.get(key)?.get("kind")?.as_str()
    }
}

impl fmt::Display for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.source, self.index)
    }
}

/// Items of one source.
#[must_use]
pub fn items(source: &str, indices: impl IntoIterator<Item = u64>) -> BTreeSet<ItemKey> {
    indices.into_iter().map(|index| ItemKey { source: source.to_owned(), index }).collect()
}

fn same(what: &str, found: &BTreeSet<ItemKey>, expected: &BTreeSet<ItemKey>) -> anyhow::Result<()> {
    let list = |set: Vec<&ItemKey>| {
        let names: Vec<_> = set.iter().take(5).map(ToString::to_string).collect();
        format!("{} ({}{})", set.len(), names.join(", "), if set.len() > 5 { ", ..." } else { "" })
    };
    let missing: Vec<_> = expected.difference(found).collect();
    let unexpected: Vec<_> = found.difference(expected).collect();
    ensure!(
        missing.is_empty() && unexpected.is_empty(),
        "{what}: missing {}, unexpected {}",
        list(missing),
        list(unexpected)
    );
    Ok(())
}

fn lines(path: &Path) -> anyhow::Result<Vec<(ItemKey, Value)>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    ensure!(text.is_empty() || text.ends_with('\n'), "`{}` ends with a torn record", path.display());
    text.lines()
        .enumerate()
        .map(|(i, line)| {
            record(line).with_context(|| format!("`{}`, line {}: {line:.200}", path.display(), i + 1))
        })
        .collect()
}

fn record(line: &str) -> anyhow::Result<(ItemKey, Value)> {
    let record: Value = serde_json::from_str(line)?;
    let source = record.get("source").and_then(Value::as_str).context("no `source`")?.to_owned();
    let index = record.get("index").and_then(Value::as_u64).context("no `index`")?;
    record.get("item").and_then(Value::as_str).context("no `item`")?;
    Ok((ItemKey { source, index }, record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(index: u64) -> String {
        format!("{{\"item\": \"{index}.png\", \"index\": {index}, \"source\": \"scans\", \"result\": []}}\n")
    }

    fn folder(results: &str, failures: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("results.jsonl"), results).unwrap();
        fs::write(dir.path().join("failures.jsonl"), failures).unwrap();
        dir
    }

    fn read(dir: &tempfile::TempDir) -> anyhow::Result<Records> {
        Records::read(dir.path(), &["results.jsonl"])
    }

    #[test]
    fn an_exact_folder_passes_and_each_deviation_is_named() {
        let dir = folder(&[line(0), line(2)].concat(), &line(1));
        let records = read(&dir).unwrap();
        let (done, failed) = (items("scans", [0, 2]), items("scans", [1]));
        records.must_be(1, &done, &failed).unwrap();
        let error = records.must_be(1, &items("scans", [0, 2, 3]), &failed).unwrap_err();
        assert!(error.to_string().contains("missing 1 (scans[3])"), "{error}");
        let error = records.must_be(1, &items("scans", [0]), &failed).unwrap_err();
        assert!(error.to_string().contains("unexpected 1 (scans[2])"), "{error}");
        assert!(records.must_be(1, &done, &items("scans", [])).is_err());
        assert!(records.must_be(2, &done, &failed).is_err());
    }

    #[test]
    fn doubles_and_torn_records_are_errors() {
        let doubled = [line(0), line(0)].concat();
        for (results, failures, says) in [
            (doubled.as_str(), "", "twice in `results.jsonl`"),
            ("", doubled.as_str(), "twice in the failures"),
            (line(0).as_str(), line(0).as_str(), "in a sink and in the failures"),
            (line(0).trim_end(), "", "torn"),
            ("{}\n", "", "line 1"),
        ] {
            let error = format!("{:#}", read(&folder(results, failures)).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
