//! Counts the items of a finished run again, from its files: `run.json`, what the sinks have written, and `failures.jsonl`. The journal says which
//! bytes they have been written with, and nothing of items. Changes nothing, and holds of items only which have a record in a file. Which items there
//! are it believes `run.json`. The tests read records as it does (`orchestra_store::each_record`), and know that from elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use orchestra_core::LeftOutCount;
use orchestra_kinds::read_lines;
use orchestra_plan::{Kinds, ReadBack, ReadRecord, RecordsPerItem, TASKS_FOLDER, Writes, part_number};
use orchestra_runtime::{IndexLine, OutputReport};
use orchestra_store::{
    COMPARED_PAGE, FAILURE_RECORDS, NumberSet, REPORT_PAGE, RUN_SUMMARY, altered_files, only_files,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

mod bucket;
mod item_names;

use item_names::ItemNames;

/// More items than any source has: a larger number is a damaged account.
const MOST_ITEMS: u64 = 1 << 36;

/// What is said of each kind of fault by name; the rest is counted.
const NAMED: usize = 20;

/// Why the files of a run cannot be counted.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// There is no `run.json`, or not one of this version.
    #[error("`{}` holds no account of a run: {why}; a run writes it at its end", path.display())]
    NoAccount {
        /// The folder.
        path: PathBuf,
        /// What is wrong with its account.
        why: String,
    },
    /// The store that parts are in cannot be asked.
    #[error("the parts of sink `{sink}` cannot be counted: {why}")]
    Store {
        /// Whose parts.
        sink: String,
        /// Why.
        why: String,
    },
    /// It was stopped, or what it was to do is not known.
    #[error("the run in `{}` has not ended: start it again, then verify", .0.display())]
    Unfinished(PathBuf),
}

/// What was found. `faults` is empty where every item ended in exactly one place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Items that the sources name.
    pub items: u64,
    /// Items without a failure.
    pub done: u64,
    /// Items with one.
    pub failed: u64,
    /// Of all sinks.
    pub records: u64,
    /// What each source was given that is no item, by reason, as `run.json` says.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub passed_over: BTreeMap<String, BTreeMap<String, u64>>,
    /// Pages, frames and boxes of done items that no stage was given, as `run.json` says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutCount>,
    /// Sinks whose kind cannot be read back, and those of `reduce`: their records are not counted.
    pub not_counted: Vec<String>,
    /// How many faults of each kind there are.
    pub counts: BTreeMap<FaultKind, u64>,
    /// The first 20 of each kind, in words.
    pub faults: Vec<String>,
}

/// What may be wrong with the files of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// An item without the record that it should have, and without a failure.
    Lost,
    /// An item with more records than it should have, or with a record and a failure.
    Doubled,
    /// A record of an item that no source names, or under the number of another one, or a file that nothing names.
    Stray,
    /// A file that cannot be read to its end, or that is not as long as it should be.
    Damaged,
}

#[derive(Deserialize)]
struct Account {
    run_id: String,
    exit_code: i32,
    complete: bool,
    sources: BTreeMap<String, Option<u64>>,
    #[serde(default)]
    passed_over: BTreeMap<String, BTreeMap<String, u64>>,
    #[serde(default)]
    left_out: Vec<LeftOutCount>,
    outputs: Vec<OutputReport>,
}

/// Items by source.
type Sets<'a> = BTreeMap<&'a str, NumberSet>;

/// Counts the items of the run in `folder`. Blocks.
///
/// # Errors
/// See [`VerifyError`]; whatever is wrong with what the run wrote is in [`Verified::faults`].
pub fn verify(folder: &Path, kinds: &Kinds) -> Result<Verified, VerifyError> {
    let path = folder.join(RUN_SUMMARY);
    let no_account = |why: String| VerifyError::NoAccount { path: folder.to_owned(), why };
    only_files(folder).map_err(|error| no_account(error.to_string()))?;
    let text = fs::read(&path).map_err(|error| no_account(format!("`run.json`: {error}")))?;
    let account: Account =
        serde_json::from_slice(&text).map_err(|error| no_account(format!("`run.json`: {error}")))?;
    if !matches!(account.exit_code, 0 | 65) || !account.complete {
        return Err(VerifyError::Unfinished(folder.to_owned()));
    }
    let sources: Option<BTreeMap<&str, u64>> =
        account.sources.iter().map(|(name, items)| Some((name.as_str(), (*items)?))).collect();
    let Some(sources) = sources else { return Err(VerifyError::Unfinished(folder.to_owned())) };
    if let Some((name, items)) = sources.iter().find(|(_, items)| **items > MOST_ITEMS) {
        return Err(no_account(format!(
            "source `{name}` is said to have {items} items, and no run has so many"
        )));
    }
    let altered = altered_files(folder).map_err(|error| no_account(format!("its journal: {error}")))?;
    let altered = altered.into_iter().collect();
    let mut count =
        Count { folder, sources, names: ItemNames::default(), altered, found: Verified::default() };
    let mut failed = Sets::new();
    let path = folder.join(FAILURE_RECORDS);
    count.read(FAILURE_RECORDS.as_ref(), &path, read_lines, RecordsPerItem::AtMostOne, None, &mut failed);
    for output in &account.outputs {
        count.output(output, kinds, &account.run_id, &failed)?;
    }
    count.strays(&account.outputs);
    // That a file of items is missing was told by its items.
    for file in std::mem::take(&mut count.altered).into_iter().filter(|file| folder.join(file).exists()) {
        let what =
            |_: &mut Count<'_>| format!("`{}` holds other bytes than the run has written", file.display());
        count.fault(FaultKind::Damaged, what);
    }
    count.found.items = count.sources.values().sum();
    count.found.failed = failed.values().map(NumberSet::len).sum();
    count.found.done = count.found.items.saturating_sub(count.found.failed);
    count.found.passed_over = account.passed_over.clone();
    count.found.left_out = account.left_out.clone();
    Ok(count.found)
}

struct Count<'a> {
    folder: &'a Path,
    /// Their items.
    sources: BTreeMap<&'a str, u64>,
    names: ItemNames,
    /// Files with other bytes than the run has written, of which nothing was said yet.
    altered: BTreeSet<PathBuf>,
    found: Verified,
}

impl<'a> Count<'a> {
    fn fault(&mut self, kind: FaultKind, what: impl FnOnce(&mut Self) -> String) {
        let n = self.found.counts.entry(kind).or_default();
        *n += 1;
        if *n <= NAMED as u64 {
            let what = what(self);
            self.found.faults.push(what);
        }
    }

    /// An item for people: its name, where the list of the run still has it, and its number.
    fn item(&mut self, source: &str, index: u64) -> String {
        match self.names.of(self.folder, source, index) {
            Some(name) => format!("`{name}` ({source}[{index}])"),
            None => format!("{source}[{index}]"),
        }
    }

    /// Whether another fault of this kind is said by name.
    fn is_named(&self, kind: FaultKind) -> bool {
        self.found.counts.get(&kind).is_none_or(|n| *n < NAMED as u64)
    }

    /// Reads a file that lies at `path` and is called `file`; adds the items whose records it has to `seen`.
    fn read(
        &mut self,
        file: &Path,
        path: &Path,
        read_back: ReadBack,
        records: RecordsPerItem,
        failed: Option<&Sets<'a>>,
        seen: &mut Sets<'a>,
    ) {
        // A pipe would never end, and a device perhaps not either.
        if path.metadata().is_ok_and(|meta| !meta.is_file()) {
            self.fault(FaultKind::Damaged, |_| format!("`{}`: it is no regular file", file.display()));
            return;
        }
        let read = read_back(path, &mut |ReadRecord { source, index, item: named }| {
            if failed.is_some() {
                self.found.records += 1;
            }
            let known = self.sources.get_key_value(source).filter(|(_, items)| index < **items);
            let Some((&source, _)) = known else {
                let what = |_: &mut Self| {
                    format!("`{}` has a record of {source}[{index}], which no source names", file.display())
                };
                self.fault(FaultKind::Stray, what);
                return;
            };
            if let Some(name) = self.names.of(self.folder, source, index).filter(|name| *name != named) {
                let what = format!(
                    "`{}` has a record of `{named}` under the number {source}[{index}], which is that of `{name}`",
                    file.display()
                );
                self.fault(FaultKind::Stray, |_| what);
                return;
            }
            let is_new = seen.entry(source).or_default().insert(index);
            if !is_new && records != RecordsPerItem::Any {
                self.fault(FaultKind::Doubled, |count| {
                    format!("{} is twice in `{}`", count.item(source, index), file.display())
                });
            }
            if is_new
                && failed.is_some_and(|failed| failed.get(source).is_some_and(|set| set.contains(index)))
            {
                let what = |count: &mut Self| {
                    let item = count.item(source, index);
                    format!("{item} is in `{}` and in `{FAILURE_RECORDS}`", file.display())
                };
                self.fault(FaultKind::Doubled, what);
            }
        });
        if let Err(why) = read {
            self.altered.remove(file);
            self.fault(FaultKind::Damaged, |_| format!("`{}`: {why}", file.display()));
        }
    }

    fn output(
        &mut self,
        output: &OutputReport,
        kinds: &Kinds,
        run_id: &str,
        failed: &Sets<'a>,
    ) -> Result<(), VerifyError> {
        let kind = kinds.sink(&output.kind);
        let read_back = kind.and_then(|kind| kind.read_back());
        let Some(read_back) = read_back.filter(|_| output.records != RecordsPerItem::OfRun) else {
            self.found.not_counted.push(output.sink.clone());
            self.missing(output);
            return Ok(());
        };
        let mut seen = Sets::new();
        let of_records = (output.records != RecordsPerItem::Failed).then_some(failed);
        for file in self.files(output) {
            let path = self.folder.join(&file);
            self.read(&file, &path, read_back, output.records, of_records, &mut seen);
        }
        if let Some(url) = &output.url {
            let unknown = || Err("this program has no such kind".to_owned());
            let store = kind.map_or_else(unknown, |kind| kind.objects());
            let not_asked = |why: String| VerifyError::Store { sink: output.sink.clone(), why };
            let store = store.map_err(not_asked)?;
            let mut read = |count: &mut Self, name: &str, file: &Path| {
                count.read(name.as_ref(), file, read_back, output.records, of_records, &mut seen);
            };
            let holds_files = kind.is_some_and(|kind| kind.writes() == Writes::FileEach);
            self.bucket(url, &*store, run_id, holds_files, &mut read).map_err(not_asked)?;
        }
        if output.records == RecordsPerItem::Failed {
            self.failures(output, failed, &seen);
        }
        if output.records != RecordsPerItem::One {
            return Ok(());
        }
        for name in &output.sources {
            let Some((&source, &items)) = self.sources.get_key_value(name.as_str()) else { continue };
            let mut ended = seen.remove(source).unwrap_or_default();
            for index in failed.get(source).into_iter().flat_map(NumberSet::iter) {
                ended.insert(index);
            }
            let mut lost = items.saturating_sub(ended.len());
            let mut index = ended.next_missing(0);
            while index < items && self.is_named(FaultKind::Lost) {
                let what = |count: &mut Self| {
                    let item = count.item(source, index);
                    format!("{item} has neither a record in `{}` nor a failure", output.path.display())
                };
                self.fault(FaultKind::Lost, what);
                lost -= 1;
                index = ended.next_missing(index + 1);
            }
            if lost > 0 {
                // The others are counted: an account may claim any number.
                *self.found.counts.entry(FaultKind::Lost).or_default() += lost;
            }
        }
        Ok(())
    }

    /// Compares what a sink has of failures with `failures.jsonl`.
    fn failures(&mut self, output: &OutputReport, failed: &Sets<'a>, seen: &Sets<'a>) {
        let file = output.path.display();
        let sources: Vec<&str> = self.sources.keys().copied().collect();
        for source in sources {
            let of = |sets: &Sets<'a>| sets.get(source).cloned().unwrap_or_default();
            let (failed, seen) = (of(failed), of(seen));
            for index in failed.iter().filter(|index| !seen.contains(*index)) {
                self.fault(FaultKind::Lost, |count| {
                    format!("{} has failed and is not in `{file}`", count.item(source, index))
                });
            }
            for index in seen.iter().filter(|index| !failed.contains(*index)) {
                self.fault(FaultKind::Stray, |count| {
                    format!("{} is in `{file}` and has not failed", count.item(source, index))
                });
            }
        }
    }

    /// The files of a sink: one, or all that fit its glob, by name. One that writes to a store has none.
    fn files(&self, output: &OutputReport) -> Vec<PathBuf> {
        let path = &output.path;
        if output.url.is_some() {
            return Vec::new();
        }
        let Some((stem, extension)) = parts_of(path) else { return vec![path.to_owned()] };
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut files: Vec<PathBuf> = names_in(&self.folder.join(folder))
            .filter(|name| part_number(name, stem, extension).is_some())
            .map(|name| folder.join(name))
            .collect();
        files.sort();
        files
    }

    /// Files of a sink that are not there: without a count of its records, nothing else tells it.
    fn missing(&mut self, output: &OutputReport) {
        // Parts that are in a store, or that a script has taken, were removed here.
        let is_of = |file: &PathBuf| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_part = |(stem, extension)| part_number(name, stem, extension).is_some();
            *file == output.path
                || file.parent() == output.path.parent() && parts_of(&output.path).is_some_and(is_part)
        };
        let are_here = output.url.is_none() && output.script.is_none();
        let is_missing = |file: &&PathBuf| are_here && !self.folder.join(file).exists();
        for file in self.altered.clone().iter().filter(is_missing).filter(|file| is_of(file)) {
            let what =
                |_: &mut Self| format!("`{}`, which the run has written, is not there", file.display());
            self.fault(FaultKind::Damaged, what);
        }
    }

    /// Files that nothing names, and named ones that are not there as they were written.
    fn strays(&mut self, outputs: &[OutputReport]) {
        let mut known: BTreeSet<PathBuf> = [RUN_SUMMARY, FAILURE_RECORDS, REPORT_PAGE, COMPARED_PAGE]
            .into_iter()
            .map(|name| self.folder.join(name))
            .collect();
        for output in outputs {
            known.extend(self.files(output).into_iter().map(|file| self.folder.join(file)));
            if output.path.file_name().is_some_and(|name| name == "index.jsonl") {
                self.indexed(&output.path, &mut known);
            }
        }
        let mut open = vec![self.folder.to_owned()];
        while let Some(folder) = open.pop() {
            for name in names_in(&folder) {
                let path = folder.join(&name);
                if folder == self.folder && (name == "logs" || name == TASKS_FOLDER || name.starts_with('.'))
                {
                    continue;
                }
                if path.is_dir() {
                    open.push(path);
                } else if !known.contains(&path) {
                    let path = path.strip_prefix(self.folder).unwrap_or(&path).to_owned();
                    self.fault(FaultKind::Stray, |_| {
                        format!("`{}` was not written by the run", path.display())
                    });
                }
            }
        }
    }

    /// Adds the files that an index names, and looks at their sizes.
    fn indexed(&mut self, index: &Path, known: &mut BTreeSet<PathBuf>) {
        let folder = self.folder.join(index.parent().unwrap_or(Path::new("")));
        let path = self.folder.join(index);
        let text = if path.is_file() { fs::read(path).unwrap_or_default() } else { Vec::new() };
        for (file, bytes) in files_of(&text) {
            let path = folder.join(file);
            match fs::metadata(&path) {
                Ok(meta) if meta.len() == bytes => {}
                Ok(meta) => {
                    self.altered.remove(path.strip_prefix(self.folder).unwrap_or(&path));
                    self.fault(FaultKind::Damaged, |_| {
                        format!("`{}` has {} bytes, and its index says {bytes}", path.display(), meta.len())
                    });
                }
                Err(error) => {
                    self.fault(FaultKind::Lost, |_| {
                        format!("`{}`, which its index names: {error}", path.display())
                    });
                }
            }
            known.insert(path);
        }
    }
}

/// The beginning and the extension of the names of part files, where `path` is their glob.
fn parts_of(path: &Path) -> Option<(&str, &str)> {
    path.file_name()?.to_str()?.split_once("-*.")
}

/// The files that an index names, and their bytes: of a file that was written over with the result of more items, those of its last line. That a
/// line is none was said by its reader.
fn files_of(index: &[u8]) -> BTreeMap<String, u64> {
    let lines =
        index.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<IndexLine>(line).ok());
    lines.map(|line| (line.file, line.bytes)).collect()
}

fn names_in(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}
