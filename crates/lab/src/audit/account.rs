//! Where each record of an output folder lies, for runs of any size: 8 bytes per item and file are held.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use orchestra_store::{ListError, ListingReader};
use serde::Deserialize;

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
    failures: Places,
    sinks: Vec<Places>,
}

/// The records of one file, by source and index.
#[derive(Debug, Default)]
struct Places {
    file: Option<File>,
    /// Offset of the record and one; 0: there is none.
    places: BTreeMap<usize, Vec<u64>>,
}

impl Account {
    /// Reads the files. One that is not there has no records.
    pub fn read(items: &Items, failures: &Path, sinks: &[PathBuf]) -> io::Result<Self> {
        let mut account = Self {
            doubled: BTreeMap::new(),
            unknown: 0,
            unknown_shown: Vec::new(),
            failures: Places::default(),
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

    fn records(&mut self, items: &Items, path: &Path, sources: &[usize]) -> io::Result<Places> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let empty = |s: &usize| (*s, vec![0; items.sources[*s].names.len()]);
        let mut places: BTreeMap<usize, Vec<u64>> = sources.iter().map(empty).collect();
        let mut twice = BTreeSet::new();
        let file =
            each_record(path, &mut |offset, line, head| match head.and_then(|head| known(items, &head)) {
                Ok((source, index)) => match places.get_mut(&source).map(|of| &mut of[index as usize]) {
                    Some(place) if *place == 0 => *place = offset + 1,
                    Some(_) => drop(twice.insert((source, index))),
                    None => self.is_unknown(&name, line, "an item of a source that this sink has nothing of"),
                },
                Err(what) => self.is_unknown(&name, line, &what),
            })?;
        for key in twice {
            self.doubled.entry(key).or_insert_with(|| format!("more than one record in `{name}`"));
        }
        Ok(Places { file, places })
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
fn known(items: &Items, head: &Head<'_>) -> Result<Key, String> {
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

impl Places {
    fn place(&self, (source, index): Key) -> Option<u64> {
        let place = *self.places.get(&source)?.get(usize::try_from(index).ok()?)?;
        place.checked_sub(1)
    }

    fn has(&self, key: Key) -> bool {
        self.place(key).is_some()
    }

    /// The whole line, without its end.
    fn line(&self, key: Key) -> io::Result<Option<Vec<u8>>> {
        let (Some(file), Some(mut at)) = (&self.file, self.place(key)) else { return Ok(None) };
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

/// What every record names.
#[derive(Debug, Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    item: Cow<'a, str>,
    index: u64,
    #[serde(borrow)]
    source: Cow<'a, str>,
}

/// Offset, line, and what it names or why it is no record.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8], Result<Head<'_>, String>);

/// Visits each line of a file. `None`: there is no such file.
fn each_record(path: &Path, visit: Visit<'_>) -> io::Result<Option<File>> {
    let in_file = |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(in_file(error)),
    };
    let mut reader = BufReader::with_capacity(1 << 20, &file);
    let (mut line, mut offset) = (Vec::new(), 0u64);
    loop {
        line.clear();
        let n = reader.read_until(b'\n', &mut line).map_err(in_file)?;
        if n == 0 {
            break;
        }
        let head = match line.last() {
            Some(b'\n') => {
                serde_json::from_slice(&line).map_err(|error| format!("a line that is no record ({error})"))
            }
            _ => Err("a torn line".to_owned()),
        };
        visit(offset, &line, head);
        offset += n as u64;
    }
    Ok(Some(file))
}
