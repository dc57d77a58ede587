//! Whole files that a commit puts into the output folder, each named after its item. A reader sees such a file whole or not at all.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use bincode::{Decode, Encode};

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedFile {
    /// Where, relative to the output folder: names of folders and files only. What is there is replaced.
    pub path: PathBuf,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl PlacedFile {
    pub(crate) fn entry(&self) -> Placed {
        let (bytes, crc) = (self.bytes.len() as u64, crc32fast::hash(&self.bytes));
        Placed { path: self.path.as_os_str().as_bytes().to_vec(), bytes, crc }
    }

    /// Whether the path stays inside the output folder.
    pub(crate) fn is_inside(&self) -> bool {
        is_inside(&self.path)
    }

    /// Writes a neighbour and renames it. It is durable only after the file system is synced.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(&self.path);
        let parent = path.parent().unwrap_or(folder);
        let neighbour = parent.join(NEIGHBOUR);
        let written = match write_new(&neighbour, &self.bytes) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(parent).and_then(|()| write_new(&neighbour, &self.bytes))
            }
            // A killed run has left it, or it is a link of the user's: the name goes, and the link is not followed.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&neighbour).and_then(|()| write_new(&neighbour, &self.bytes))
            }
            other => other,
        };
        let placed = written.and_then(|()| fs::rename(&neighbour, &path));
        if placed.is_err() {
            drop(fs::remove_file(&neighbour)); // The first error is what the caller must hear of.
        }
        placed
    }
}

/// One thread writes at a time, so one name is enough.
const NEIGHBOUR: &str = ".placing.tmp";

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).open(path)?.write_all(bytes)
}

/// What the journal knows of a file.
#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct Placed {
    path: Vec<u8>,
    bytes: u64,
    crc: u32,
}

impl Placed {
    /// Where it lies; `None` where the path leads out of the folder.
    pub(crate) fn path(&self, folder: &Path) -> Option<PathBuf> {
        let path = PathBuf::from(std::ffi::OsString::from_vec(self.path.clone()));
        is_inside(&path).then(|| folder.join(path))
    }

    /// Whether the file is as it was written.
    pub(crate) fn is_there(&self, folder: &Path) -> io::Result<bool> {
        let Some(path) = self.path(folder) else { return Ok(false) };
        // A file that is not as long as it was need not be read.
        match fs::symlink_metadata(&path) {
            Ok(m) if m.is_file() && m.len() == self.bytes => {
                Ok(crc32fast::hash(&fs::read(&path)?) == self.crc)
            }
            Ok(_) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// In a folder of the output folder, and in none that is hidden, as the journal's own is.
fn is_inside(path: &Path) -> bool {
    let mut parts = path.components();
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let first = parts.next().filter(is_plain).map(|part| part.as_os_str().as_bytes().starts_with(b"."));
    first == Some(false) && parts.clone().next().is_some() && parts.all(|part| is_plain(&part))
}

/// Removes a file that was placed. It may be gone. Where the user has put a link in its place, the link goes and its target stays. Where the
/// user has put a link in the place of a folder, so that the file lies outside of `folder`, it stays.
pub(crate) fn remove_placed(path: &Path, folder: &Path) -> io::Result<()> {
    let real = |path: &Path| match path.canonicalize() {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        found => found.map(Some),
    };
    let (Some(folder), Some(parent)) = (real(folder)?, path.parent().map_or(Ok(None), real)?) else {
        return Ok(());
    };
    if !parent.starts_with(&folder) {
        return Ok(());
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        // A folder that stands there now is not ours.
        Err(_) if path.is_dir() => Ok(()),
        removed => removed,
    }
}

/// Removes the folders of `path` below `folder` that are empty now.
pub(crate) fn remove_empty_folders(path: &Path, folder: &Path) {
    let mut at = path.parent();
    while let Some(parent) = at.filter(|parent| *parent != folder && parent.starts_with(folder)) {
        drop(fs::remove_file(parent.join(NEIGHBOUR)));
        if fs::remove_dir(parent).is_err() {
            return; // Something of the user's is in it.
        }
        at = parent.parent();
    }
}
