//! The files of entries of `paths` in the order of the bytes of their paths, each once, found as they are asked for. It opens no file.
//!
//! A folder is read whole and sorted before the first name in it is known; the names of a folder wait while what lies below one of them is
//! walked. A folder sorts as its name with a slash behind it: every path below it begins so, and no other name in its folder does. Hence
//! a walk depth first gives whole paths in the order of their bytes (`a-b`, then `a/x`, then `a0`), and those of several entries are merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::pattern::{FolderEntry, PathsEntry};
use super::{ListError, PassedOverCounts};
use crate::sorter::{MergedRuns, Sorter};

/// What a walk needs beside its entries.
pub(crate) struct Walking<'a> {
    /// Where names of a large folder are spilled.
    pub spill_folder: &'a Path,
    /// Called for each name that is looked at; an error ends the walk.
    pub step: &'a mut dyn FnMut() -> Result<(), ListError>,
    /// What it finds that is no file of an entry.
    pub passed_over: &'a mut PassedOverCounts,
}

/// The files of several entries, in order, each once.
pub(crate) struct FolderWalk<'e> {
    entries: Vec<EntryWalk<'e>>,
    /// The next file of each entry that has one.
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    last: Vec<u8>,
}

impl<'e> FolderWalk<'e> {
    /// Finds the first file of each entry, which must have one.
    pub fn start(entries: &'e [PathsEntry], walking: &mut Walking<'_>) -> Result<Self, ListError> {
        let walk = Self::begin(entries, walking)?;
        let empty = entries.iter().enumerate().find(|(at, _)| !walk.heads.iter().any(|head| head.0.1 == *at));
        match empty {
            Some((_, e)) => Err(ListError::NoMatch { pattern: e.pattern.clone(), under: e.root.clone() }),
            None => Ok(walk),
        }
    }

    /// Finds the first file of each entry, if it has one.
    pub fn begin(entries: &'e [PathsEntry], walking: &mut Walking<'_>) -> Result<Self, ListError> {
        let mut walk = Self {
            entries: entries.iter().map(EntryWalk::new).collect(),
            heads: BinaryHeap::new(),
            last: Vec::new(),
        };
        for at in 0..entries.len() {
            walk.refill(at, walking)?;
        }
        Ok(walk)
    }

    pub fn next(&mut self, walking: &mut Walking<'_>) -> Result<Option<PathBuf>, ListError> {
        while let Some(Reverse((path, at))) = self.heads.pop() {
            self.refill(at, walking)?;
            if self.last != path {
                self.last.clone_from(&path);
                return Ok(Some(PathBuf::from(std::ffi::OsString::from_vec(path))));
            }
        }
        Ok(None)
    }

    fn refill(&mut self, at: usize, walking: &mut Walking<'_>) -> Result<bool, ListError> {
        let file = self.entries[at].next(walking)?;
        let is_one = file.is_some();
        self.heads.extend(file.map(|file| Reverse((file.into_os_string().into_vec(), at))));
        Ok(is_one)
    }
}

struct EntryWalk<'e> {
    entry: &'e PathsEntry,
    /// The entry is a single file, which has not been given yet.
    file: Option<&'e Path>,
    /// The folders on the way down, each with the names in it that are still to come.
    folders: Vec<(PathBuf, MergedRuns)>,
    begun: bool,
}

impl<'e> EntryWalk<'e> {
    fn new(entry: &'e PathsEntry) -> Self {
        let file = entry.file();
        Self { entry, file, folders: Vec::new(), begun: file.is_some() }
    }

    fn next(&mut self, walking: &mut Walking<'_>) -> Result<Option<PathBuf>, ListError> {
        if let Some(file) = self.file.take() {
            return Ok(Some(file.to_owned()));
        }
        if !std::mem::replace(&mut self.begun, true) {
            self.enter(self.entry.root.clone(), walking)?;
        }
        while let Some((folder, names)) = self.folders.last_mut() {
            let Some(name) = names.next() else {
                self.folders.pop();
                continue;
            };
            let name = name.map_err(|e| spilled(walking, e))?;
            match name.strip_suffix(b"/") {
                Some(name) => {
                    let below = folder.join(OsStr::from_bytes(name));
                    self.enter(below, walking)?;
                }
                None => {
                    let file = folder.join(OsStr::from_bytes(&name));
                    if self.entry.takes(&file) {
                        return Ok(Some(file));
                    }
                }
            }
        }
        Ok(None)
    }

    fn enter(&mut self, folder: PathBuf, walking: &mut Walking<'_>) -> Result<(), ListError> {
        let mut names = Sorter::new(walking.spill_folder);
        self.entry.children(&folder, &mut |child, path| {
            (walking.step)()?;
            if let FolderEntry::PassedOver(reason) = child {
                walking.passed_over.add(reason, 1);
                return Ok(true);
            }
            let mut name = path.file_name().map(OsStr::as_bytes).unwrap_or_default().to_vec();
            name.extend((child == FolderEntry::Folder).then_some(b'/'));
            names.push(&name).map_err(|e| spilled(walking, e)).map(|()| true)
        })?;
        let names = names.finish().map_err(|e| spilled(walking, e))?;
        self.folders.push((folder, names));
        Ok(())
    }
}

/// Any file of the entry, found without reading all folders.
pub(crate) fn any_file(entry: &PathsEntry) -> Result<Option<PathBuf>, ListError> {
    let mut found = entry.file().map(Path::to_owned);
    let mut folders = if found.is_some() { Vec::new() } else { vec![entry.root.clone()] };
    while let Some(folder) = folders.pop().filter(|_| found.is_none()) {
        entry.children(&folder, &mut |child, path| {
            match child {
                FolderEntry::Folder => folders.push(path),
                FolderEntry::File if entry.takes(&path) => found = Some(path),
                FolderEntry::File | FolderEntry::PassedOver(_) => {}
            }
            Ok(found.is_none())
        })?;
    }
    Ok(found)
}

fn spilled(walking: &Walking<'_>, error: io::Error) -> ListError {
    ListError::ListFile { path: walking.spill_folder.into(), doing: "write", error }
}
