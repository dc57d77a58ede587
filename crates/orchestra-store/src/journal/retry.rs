//! A retry: the journal is written anew as if no item had failed. Decides nothing about which run may be retried.
//!
//! ```text
//! journal  replaced as a whole: without failures, and without what they added to files that begin anew
//! parts    of these files are removed: its last entry names them, and nothing behind it counts them
//! files    cut
//! ```
//! A start does what a killed one did not: it removes files that were placed for nothing, and cuts off what does not count.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use super::commit::{CommitError, FileIndex};
use super::entry::{CommitGroup, Sealed, decode, kind};
use super::frame::{LogEnd, LogFrames, encode, encode_body};
use super::log::Log;
use super::placed::{PlacedRecord, remove_placed};
use super::{Journal, undisturbed, write_failed};
use crate::atomic::replace;

impl Journal {
    /// Every item that has failed is to be done again, and the files, which hold nothing but records of such items, are empty: both, or neither.
    /// Parts that rows of such a file were sealed into are gone. Durable at once. Gives how many items that are.
    ///
    /// # Errors
    /// See [`CommitError`]. The journal is closed then, and the next start finds out which of both is so.
    pub fn retry_failed(&mut self, files: &[FileIndex]) -> Result<u64, CommitError> {
        self.must_be_open()?;
        let n_failed = self.counts().failed;
        if n_failed == 0 {
            return Ok(0);
        }
        for file in files {
            undisturbed(self.files.get(file.0).ok_or(CommitError::UnknownFile(*file))?)?;
        }
        undisturbed(&self.log.file)?;
        self.must_lie_where_it_was()?;
        self.remove_account()?;
        let synced = self.sync_files();
        self.or_close(synced)?;
        let path = self.log.file.path().to_owned();
        let taken_back = without_failures(&path, files)
            .and_then(|(end, parts)| self.take_back(&path, files, end, &parts))
            .map_err(write_failed(&path));
        self.or_close(taken_back)?;
        self.finished.forget_failed();
        Ok(n_failed)
    }

    fn take_back(
        &mut self,
        path: &Path,
        files: &[FileIndex],
        end: LogEnd,
        parts: &[PlacedRecord],
    ) -> io::Result<()> {
        let folder = self.folder.path();
        for part in parts.iter().filter_map(|part| part.path(folder)) {
            remove_placed(&part, folder)?;
        }
        for FileIndex(index) in files {
            self.files[*index].cut(0)?;
            self.parts[*index].clear();
        }
        self.log = Log::go_on(path, end)?;
        Ok(())
    }
}

/// Replaces the journal at `path`. Gives where it ends but for its last entry, and what that names: the parts of files that begin `anew`.
fn without_failures(path: &Path, anew: &[FileIndex]) -> io::Result<(LogEnd, Vec<PlacedRecord>)> {
    let begins_anew = |file: u16| anew.contains(&FileIndex(file.into()));
    let (mut end, mut gone) = (LogEnd::START, Vec::new());
    replace(path, |file| {
        let mut out = BufWriter::new(file);
        let mut put = |frame: &dyn Fn(LogEnd) -> io::Result<(Vec<u8>, LogEnd)>| {
            let (bytes, next) = frame(end)?;
            end = next;
            out.write_all(&bytes).map(|()| next)
        };
        let mut frames = LogFrames::new(File::open(path)?)?;
        let mut placed: Option<Vec<u8>> = None;
        while let Some((kind, body)) = frames.next()? {
            if kind == kind::PLACED {
                placed = Some(body.to_vec()); // It stays with the entry that follows.
                continue;
            }
            let mut group = if kind == kind::GROUP { decode::<CommitGroup>(body) } else { None };
            let sealed = if kind == kind::SEALED { decode::<Sealed>(body) } else { None };
            let placed = placed.take();
            if let Some(sealed) = sealed.filter(|sealed| begins_anew(sealed.file)) {
                gone.push(sealed.part);
                continue;
            }
            if kind == kind::FINISHED
                || group.as_mut().is_some_and(|group| !group.without_failures(begins_anew))
            {
                continue;
            }
            if let Some(placed) = placed {
                put(&|end| encode_body(kind::PLACED, &placed, end))?;
            }
            match group {
                Some(group) => put(&|end| encode(kind, &group, end))?,
                None => put(&|end| encode_body(kind, body, end))?,
            };
        }
        let counted = put(&|end| encode(kind::SYNCED, &(), end))?;
        put(&|end| encode(kind::PLACED, &gone, end))?;
        out.flush().map(|()| counted)
    })
    .map(|counted| (counted, gone))
}
