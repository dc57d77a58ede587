//! Whole files that a commit puts into the output folder, each named after its item. A reader sees such a file whole or not at all.

use std::fs;
use std::io;
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
        let written = match fs::write(&neighbour, &self.bytes) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(parent).and_then(|()| fs::write(&neighbour, &self.bytes))
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

/// One thread writes at a time, so one name is enough; what a killed run has left of it is written over.
const NEIGHBOUR: &str = ".placing.tmp";

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

fn is_inside(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
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
