//! A group of finished items with their records, and every way in which its commit can fail. Writes nothing itself.

use std::io;
use std::path::PathBuf;

use orchestra_core::{ItemId, LeftOutCount};
use thiserror::Error;

use crate::journal::placed::PlacedFile;

/// A file of the run, by its place in the list given to `Journal::begin` or `Journal::resume`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIndex(pub usize);

/// What is to become part of the run as a whole or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    /// Bytes to append, in this order: whole records with their newlines. A file may come more than once.
    pub appends: Vec<(FileIndex, Vec<u8>)>,
    pub files: Vec<PlacedFile>,
    /// Items that are finished by it, in any order.
    pub done: Vec<ItemId>,
    /// Items that have failed for good, in any order.
    pub failed: Vec<ItemId>,
    /// What was passed over in those that are done, added up.
    pub left_out: Vec<LeftOutCount>,
}

impl Commit {
    /// Bytes of all records and files.
    pub fn bytes(&self) -> usize {
        let appended: usize = self.appends.iter().map(|(_, bytes)| bytes.len()).sum();
        appended + self.files.iter().map(|file| file.bytes.len()).sum::<usize>()
    }

    /// The bytes of a file, for more of them.
    pub fn append_to(&mut self, file: FileIndex) -> &mut Vec<u8> {
        let at = self.appends.iter().position(|(of, _)| *of == file).unwrap_or_else(|| {
            self.appends.push((file, Vec::new()));
            self.appends.len() - 1
        });
        &mut self.appends[at].1
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        let appends_nothing = self.appends.iter().all(|(_, b)| b.is_empty());
        self.done.is_empty() && self.failed.is_empty() && self.files.is_empty() && appends_nothing
    }
}

/// Why a commit (or `sync`, or `finish`) failed. Nothing of the group is then part of the run.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The disk is full, or failed. The files are as before; the same commit may be tried again.
    #[error("cannot write to `{}`: {source}; nothing of this group was kept, and the run can be resumed", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Something else cut, extended or removed a file of the run. Nothing was written.
    #[error("`{}` was changed by something else while the run writes to it: {what}", path.display())]
    Disturbed {
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
    },
    /// A bug guard: the item is finished already, or comes twice in the group. Nothing was written.
    #[error("item {0} was to be finished twice")]
    FinishedTwice(ItemId),
    /// A bug guard: the run has fewer files. Nothing was written.
    #[error("the run has no file number {}", .0.0)]
    UnknownFile(FileIndex),
    /// A bug guard: the path leads out of the output folder. Nothing was written.
    #[error("a file was to be placed at `{}`, which is not in the output folder", .0.display())]
    Outside(PathBuf),
    /// A bug guard: the name is not that of a part. Nothing was written.
    #[error("a part file was to be named `{}`, which is not a name, a number of five digits and an extension", .0.display())]
    NoPart(PathBuf),
    /// The run was finished before.
    #[error("the run is finished already")]
    Finished,
    /// An earlier failure could not be undone or made durable: only a new run may go on, from what it finds on the disk.
    #[error("the journal is closed since an earlier failure: {0}")]
    Closed(String),
}
