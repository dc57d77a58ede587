//! Records of result files and `failures.jsonl`, and whether they are exactly those that a test expects: the test says which, and neither journal
//! nor `run.json` is believed. Holds all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::path::Path;

use orchestra_store::each_record;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemKey {
    pub source: String,
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
    pub fn read(out: &Path, sinks: &[&str]) -> Result<Records, String> {
        let mut records = Records::default();
        for sink in sinks {
            let of_sink = records_of(&out.join(sink))?.ok_or_else(|| format!("`{sink}` is missing"))?;
            for (key, record) in of_sink {
                records.done.entry(key).or_default().insert((*sink).to_owned(), record);
            }
        }
        records.failed = records_of(&out.join("failures.jsonl"))?.unwrap_or_default();
        match records.failed.keys().find(|key| records.done.contains_key(key)) {
            Some(key) => Err(format!("`{key}` is in a sink and in the failures")),
            None => Ok(records),
        }
    }

    /// Whether the items with a record in every one of `n_sinks` sinks are exactly `done`, and those that failed exactly `failed`.
    pub fn must_be(
        &self,
        n_sinks: usize,
        done: &BTreeSet<ItemKey>,
        failed: &BTreeSet<ItemKey>,
    ) -> Result<(), String> {
        if let Some((key, of_item)) = self.done.iter().find(|(_, r)| r.len() != n_sinks) {
            return Err(format!("`{key}` is in {} of {n_sinks} sinks", of_item.len()));
        }
        same("done", &self.done.keys().cloned().collect(), done)?;
        same("failed", &self.failed.keys().cloned().collect(), failed)
    }

    pub fn failure_kind(&self, key: &ItemKey) -> Option<&str> {
        self.failed.get(key)?.get("kind")?.as_str()
    }
}

impl fmt::Display for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.source, self.index)
    }
}

pub fn items(source: &str, indices: impl IntoIterator<Item = u64>) -> BTreeSet<ItemKey> {
    indices.into_iter().map(|index| ItemKey { source: source.to_owned(), index }).collect()
}

fn same(what: &str, found: &BTreeSet<ItemKey>, expected: &BTreeSet<ItemKey>) -> Result<(), String> {
    let list = |set: Vec<&ItemKey>| {
        let names: Vec<_> = set.iter().take(5).map(ToString::to_string).collect();
        format!("{} ({}{})", set.len(), names.join(", "), if set.len() > 5 { ", ..." } else { "" })
    };
    let missing: Vec<_> = expected.difference(found).collect();
    let unexpected: Vec<_> = found.difference(expected).collect();
    match missing.is_empty() && unexpected.is_empty() {
        true => Ok(()),
        false => Err(format!("{what}: missing {}, unexpected {}", list(missing), list(unexpected))),
    }
}

/// The records of one file; `None`: there is no such file.
fn records_of(path: &Path) -> Result<Option<BTreeMap<ItemKey, Value>>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default().display();
    let mut records = BTreeMap::new();
    let read = each_record::<Box<dyn Error>>(path, |_, line, head| {
        let text = String::from_utf8_lossy(line);
        let head =
            head.map_err(|what| format!("`{name}` has a torn or foreign line, {what}: {text:.200}"))?;
        let key = ItemKey { source: head.source.into_owned(), index: head.index };
        match records.insert(key.clone(), serde_json::from_slice(line)?) {
            None => Ok(()),
            Some(_) => Err(format!("`{key}` is twice in `{name}`").into()),
        }
    });
    read.map(|_| Some(records)).map_err(|error| format!("{error}, `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    fn read(dir: &tempfile::TempDir) -> Result<Records, String> {
        Records::read(dir.path(), &["results.jsonl"])
    }

    #[test]
    fn an_exact_folder_passes_and_each_deviation_is_named() {
        let dir = folder(&[line(0), line(2)].concat(), &line(1));
        let records = read(&dir).unwrap();
        let (done, failed) = (items("scans", [0, 2]), items("scans", [1]));
        records.must_be(1, &done, &failed).unwrap();
        let error = records.must_be(1, &items("scans", [0, 2, 3]), &failed).unwrap_err();
        assert!(error.contains("missing 1 (scans[3])"), "{error}");
        let error = records.must_be(1, &items("scans", [0]), &failed).unwrap_err();
        assert!(error.contains("unexpected 1 (scans[2])"), "{error}");
        assert!(records.must_be(1, &done, &items("scans", [])).is_err());
        assert!(records.must_be(2, &done, &failed).is_err());
    }

    #[test]
    fn doubles_and_torn_records_are_errors() {
        let doubled = [line(0), line(0)].concat();
        for (results, failures, says) in [
            (doubled.as_str(), "", "twice in `results.jsonl`"),
            ("", doubled.as_str(), "twice in `failures.jsonl`"),
            (line(0).as_str(), line(0).as_str(), "in a sink and in the failures"),
            (line(0).trim_end(), "", "torn"),
            ("{}\n", "", "no record"),
        ] {
            let error = read(&folder(results, failures)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
