//! Where each record of an output folder lies, for runs of any size: 8 bytes per item and file are held. Neither the journal nor `run.json` is
//! read: which items there are, and their names, is known from lists that the experiment wrote before the run, so an item that the run forgot, journal
//! and all, is lost here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use orchestra_store::{ListError, ListingReader, RecordHead, each_record};

/// Places that are shown of many that are no records.
const SHOWN: usize = 5;
/// Most of a line that is shown, in characters.
const SHOWN_CHARS: usize = 120;

/// The items that a run was given.
#[derive(Debug, Default)]
pub struct Items {
    /// In the order of the plan's sources.
    pub sources: Vec<SourceItems>,
    /// Makes the numbers in which names are kept.
    hasher: RandomState,
}

#[derive(Debug)]
pub struct SourceItems {
    pub name: String,
    /// Where its items are listed.
    pub list: PathBuf,
    /// The sinks that get a record of each, by place.
    pub sinks: Vec<usize>,
    /// By index, the name of the item, as a number.
    names: Vec<u64>,
}

impl Items {
    /// Adds a source whose items are listed in the file `list`.
    pub fn add(&mut self, name: &str, list: &Path, sinks: Vec<usize>) -> Result<(), ListError> {
        let mut names = Vec::new();
        for item in ListingReader::open(list)? {
            names.push(self.hasher.hash_one(item?.name.as_str()));
        }
        self.sources.push(SourceItems { name: name.to_owned(), list: list.to_owned(), sinks, names });
        Ok(())
    }

    /// Of all sources.
    pub fn total(&self) -> u64 {
        self.sources.iter().map(SourceItems::count).sum()
    }
}

impl SourceItems {
    /// How many.
    pub fn count(&self) -> u64 {
        self.names.len() as u64
    }
}

/// An item: place of its source, index.
pub type Key = (usize, u64);

/// What lies in an output folder.
#[derive(Debug)]
pub struct Account {
    /// By item that has more records in one file than one: what is wrong.
    pub doubled: BTreeMap<Key, String>,
    /// Lines that are no record of any item.
    pub unknown: u64,
    /// The first of them, with what is wrong.
    pub unknown_shown: Vec<String>,
    failures: RecordOffsets,
    sinks: Vec<RecordOffsets>,
}

/// Where the records of one file begin, by source and index.
#[derive(Debug, Default)]
struct RecordOffsets {
    file: Option<File>,
    /// Offset of the record and one; 0: there is none.
    offsets: BTreeMap<usize, Vec<u64>>,
}

impl Account {
    /// Reads the files. One that is not there has no records.
    pub fn read(items: &Items, failures: &Path, sinks: &[PathBuf]) -> io::Result<Self> {
        let mut account = Self {
            doubled: BTreeMap::new(),
            unknown: 0,
            unknown_shown: Vec::new(),
            failures: RecordOffsets::default(),
            sinks: Vec::new(),
        };
        let all: Vec<usize> = (0..items.sources.len()).collect();
        account.failures = account.records(items, failures, &all)?;
        for (place, sink) in sinks.iter().enumerate() {
            let with = |s: &usize| items.sources[*s].sinks.contains(&place);
            let sources: Vec<usize> = all.iter().copied().filter(with).collect();
            let records = account.records(items, sink, &sources)?;
            account.sinks.push(records);
        }
        Ok(account)
    }

    pub fn failure(&self, key: Key) -> io::Result<Option<Vec<u8>>> {
        self.failures.line(key)
    }

    pub fn record(&self, sink: usize, key: Key) -> io::Result<Option<Vec<u8>>> {
        self.sinks[sink].line(key)
    }

    pub fn has_failed(&self, key: Key) -> bool {
        self.failures.has(key)
    }

    /// Of these sinks, how many have a record of it.
    pub fn records_of(&self, sinks: &[usize], key: Key) -> usize {
        sinks.iter().filter(|s| self.sinks[**s].has(key)).count()
    }

    fn records(&mut self, items: &Items, path: &Path, sources: &[usize]) -> io::Result<RecordOffsets> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let empty = |s: &usize| (*s, vec![0; items.sources[*s].names.len()]);
        let mut offsets: BTreeMap<usize, Vec<u64>> = sources.iter().map(empty).collect();
        let mut twice = BTreeSet::new();
        let in_file =
            |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
        if !path.try_exists().map_err(in_file)? {
            return Ok(RecordOffsets { file: None, offsets });
        }
        let file = each_record(path, |offset, line, head| {
            let head = head.map_err(|error| format!("a line that is {error}"));
            match head.and_then(|head| known(items, &head)) {
                Ok((source, index)) => match offsets.get_mut(&source).map(|of| &mut of[index as usize]) {
                    Some(at) if *at == 0 => *at = offset + 1,
                    Some(_) => drop(twice.insert((source, index))),
                    None => self.is_unknown(&name, line, "an item of a source that this sink has nothing of"),
                },
                Err(what) => self.is_unknown(&name, line, &what),
            }
            Ok(())
        })
        .map_err(in_file)?;
        for key in twice {
            self.doubled.entry(key).or_insert_with(|| format!("more than one record in `{name}`"));
        }
        Ok(RecordOffsets { file: Some(file), offsets })
    }

    fn is_unknown(&mut self, file: &str, line: &[u8], what: &str) {
        self.unknown += 1;
        if self.unknown_shown.len() < SHOWN {
            let text = String::from_utf8_lossy(line);
            let text: String = text.trim_end().chars().take(SHOWN_CHARS).collect();
            self.unknown_shown.push(format!("`{file}` has {what}: {text}"));
        }
    }
}

/// The item that a record is of, or why it is of none.
fn known(items: &Items, head: &RecordHead<'_>) -> Result<Key, String> {
    let source = items.sources.iter().position(|s| s.name == head.source);
    let source = source.ok_or_else(|| format!("an item of a source `{}` that is not there", head.source))?;
    let of_source = &items.sources[source];
    let name = usize::try_from(head.index).ok().and_then(|i| of_source.names.get(i));
    match name {
        None => Err(format!("an item with the index {}, and there are {}", head.index, of_source.count())),
        Some(name) if *name != items.hasher.hash_one(&*head.item) => {
            Err(format!("the name `{}` for item {}, which is called otherwise", head.item, head.index))
        }
        Some(_) => Ok((source, head.index)),
    }
}

impl RecordOffsets {
    fn offset(&self, (source, index): Key) -> Option<u64> {
        let offset = *self.offsets.get(&source)?.get(usize::try_from(index).ok()?)?;
        offset.checked_sub(1)
    }

    fn has(&self, key: Key) -> bool {
        self.offset(key).is_some()
    }

    /// The whole line, without its end.
    fn line(&self, key: Key) -> io::Result<Option<Vec<u8>>> {
        let (Some(file), Some(mut at)) = (&self.file, self.offset(key)) else { return Ok(None) };
        let (mut line, mut buffer) = (Vec::new(), [0; 1024]);
        loop {
            let n = file.read_at(&mut buffer, at)?;
            let end = buffer[..n].iter().position(|b| *b == b'\n');
            line.extend_from_slice(&buffer[..end.unwrap_or(n)]);
            if end.is_some() || n == 0 {
                return Ok(Some(line));
            }
            at += n as u64;
        }
    }
}
