//! Sealing: the rows that a private file of the run has gathered become a part file or a state, and the file begins anew. Decides neither when,
//! nor what a part or a state looks like.
//!
//! ```text
//! PLACED  the part will be there     a start that finds no `SEALED` behind it removes the part; the rows are still in their file
//! part    write, sync, rename
//! SEALED  the part counts            it is durable, with all before it
//! cut     the file of rows is empty  a start does it, where a killed run did not
//! ```
//!
//! A state is a part in the private folder that holds all rows so far, so only the last one counts. Its name ends with its number modulo 2: the
//! state before it is replaced by the next one, never by the one that is being written.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::atomic::write_atomic;
use crate::journal::append_file::AppendFile;
use crate::journal::commit::{CommitError, FileIndex};
use crate::journal::entry::{Sealed, is_of_rows, kind};
use crate::journal::placed::{PlacedFile, state_path};
use crate::journal::{Journal, undisturbed, write_failed};

impl Journal {
    fn inside<'a>(&self, file: &'a AppendFile) -> &'a Path {
        file.path().strip_prefix(self.folder.path()).unwrap_or(file.path())
    }

    /// All that a file holds and that counts.
    pub fn rows(&self, FileIndex(index): FileIndex) -> Result<Vec<u8>, CommitError> {
        let file = self.files.get(index).ok_or(CommitError::UnknownFile(FileIndex(index)))?;
        undisturbed(file)?;
        file.read().map_err(write_failed(file.path()))
    }

    /// A reader of all that a file holds and that counts now: for files that may be larger than memory.
    pub fn rows_reader(&self, FileIndex(index): FileIndex) -> Result<impl Read + use<>, CommitError> {
        let file = self.files.get(index).ok_or(CommitError::UnknownFile(FileIndex(index)))?;
        undisturbed(file)?;
        file.reader().map_err(write_failed(file.path()))
    }

    /// How many part files, or states, a file was sealed into: the number of the next one.
    pub fn n_part_files(&self, FileIndex(index): FileIndex) -> u64 {
        self.parts.get(index).map_or(0, |parts| parts.len() as u64)
    }

    /// What was noted of each of them when it was sealed.
    pub fn notes(&self, FileIndex(index): FileIndex) -> &[Vec<u8>] {
        self.parts.get(index).map_or(&[], Vec::as_slice)
    }

    /// All rows of the file are in `part` from now on, of which `note` is kept, and the file is empty: both, or neither. Unlike a commit it is durable
    /// at once.
    ///
    /// # Errors
    /// See [`CommitError`]. The rows are then in their file as before; a failure after the part was written closes the journal, and the next start
    /// finds out which of both counts.
    pub fn seal(
        &mut self,
        FileIndex(index): FileIndex,
        part: &PlacedFile,
        note: Vec<u8>,
    ) -> Result<(), CommitError> {
        self.must_be_open()?;
        if !part.is_part() {
            return Err(CommitError::NoPart(part.path.clone()));
        }
        self.seal_rows(index, part, note)
    }

    /// All rows of the file are in `state` from now on, with those of the state before it, and the file is empty: both, or neither. Durable at
    /// once, and on an error as [`Journal::seal`].
    pub fn keep_state(&mut self, FileIndex(index): FileIndex, state: Vec<u8>) -> Result<(), CommitError> {
        let unknown = CommitError::UnknownFile(FileIndex(index));
        let path = self.state_path(index, self.n_part_files(FileIndex(index))).ok_or(unknown)?;
        self.seal_rows(index, &PlacedFile { path, bytes: state }, Vec::new())
    }

    /// The state that a file's rows were last sealed into; `None`: they never were.
    pub fn state(&self, FileIndex(index): FileIndex) -> Result<Option<Vec<u8>>, CommitError> {
        let Some(last) = self.n_part_files(FileIndex(index)).checked_sub(1) else { return Ok(None) };
        let path = self.state_path(index, last).ok_or(CommitError::UnknownFile(FileIndex(index)))?;
        let path = self.folder.path().join(path);
        fs::read(&path).map(Some).map_err(write_failed(&path))
    }

    fn state_path(&self, index: usize, number: u64) -> Option<PathBuf> {
        state_path(self.inside(self.files.get(index)?), number)
    }

    fn seal_rows(&mut self, index: usize, part: &PlacedFile, note: Vec<u8>) -> Result<(), CommitError> {
        self.must_be_open()?;
        let unknown = CommitError::UnknownFile(FileIndex(index));
        let file = self.files.get(index).filter(|file| is_of_rows(self.inside(file))).ok_or(unknown)?;
        undisturbed(file)?;
        undisturbed(&self.log.file)?;
        self.must_lie_where_it_was()?;
        // `open_files` lets no run have more files than fit.
        let number = u16::try_from(index).unwrap_or(u16::MAX);
        let sealed = Sealed { file: number, bytes: file.len(), part: part.entry(), note };
        let folder = self.folder.path().to_owned();
        self.all_or_nothing(std::slice::from_ref(part), |this| {
            this.append(kind::PLACED, &[part.entry()].to_vec())?;
            part.write(&folder, write_atomic).map_err(write_failed(&folder.join(&part.path)))
        })?;
        self.make_durable(kind::SEALED, &sealed)?;
        self.unsynced = false;
        self.parts[index].push(sealed.note);
        let file = &mut self.files[index];
        let emptied = file.cut(0).map_err(write_failed(file.path()));
        self.or_close(emptied)
    }
}
