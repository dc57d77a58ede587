//! How a run begins, or goes on with what is in its folder. Commits nothing.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::append_file::AppendFile;
use super::commit::CommitError;
use super::entry::{JournalHeader, kind};
use super::log::Log;
use super::open_files::{cut_files, open_files, remove_links};
use super::placed::{remove_empty_folders, remove_placed};
use super::recovery::{FoundJournal, Replayed, placed_files};
use super::{Journal, JournalPhase};
use crate::folder::OutputFolder;
use crate::identity::RunIdentity;

/// Why a run can be neither begun nor resumed in a folder. No record was changed.
#[derive(Debug, Error)]
pub enum BeginError {
    /// `begin` in a folder that holds a run.
    #[error("output folder `{}` holds a run already: resume it, or start over with `--fresh`", .0.display())]
    NotFresh(PathBuf),
    /// `resume` in a folder that holds none (or none that can be read).
    #[error("output folder `{}` holds no run that could be resumed", .0.display())]
    NothingToResume(PathBuf),
    /// `begin` found text in a file that no run of this folder wrote.
    #[error("`{}` is there already and was not written by this run: move it away, or start over with `--fresh`", .0.display())]
    InTheWay(PathBuf),
    /// A part that the journal of the run in its folder does not name.
    #[error(
        "`{}` is there already, and the run's journal does not name it: another program has written it, or the journal has lost its end; \
        move it away, and the run makes its rows again, or start over with `--fresh`",
        .0.display()
    )]
    UnknownPart(PathBuf),
    /// `resume` of a finished run found more in a file than the run wrote.
    #[error("`{}` has grown since the run finished, and going on would cut that off: move it away, start over with `--fresh`, \
        or choose another `--output`", .0.display())]
    Grown(PathBuf),
    /// Two of the files are one.
    #[error("`{}` and `{}` are the same file: give each its own", first.display(), second.display())]
    SameFile {
        /// One of its names.
        first: PathBuf,
        second: PathBuf,
    },
    /// `resume` with other files than the run was begun with.
    #[error(
        "the run writes other files now ({}) than before ({}): start over with `--fresh`, or choose another `--output`",
        names(now),
        names(before)
    )]
    OtherFiles {
        /// The files that the run was begun with.
        before: Vec<PathBuf>,
        /// The files it was to be resumed with.
        now: Vec<PathBuf>,
    },
    /// A file cannot be made, read, cut or written.
    #[error("cannot use `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// What `resume` had to throw away so that files and journal agree. Its items will be done again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Commits whose records had not all reached the disk.
    pub lost_commits: u64,
    /// Bytes cut off the files: records that were written, but not committed.
    pub cut_bytes: u64,
}

impl From<io::Error> for BeginError {
    fn from(source: io::Error) -> Self {
        BeginError::Io { path: "journal".into(), source }
    }
}

impl Journal {
    /// Begins a run that writes `files` (relative to the folder, or absolute) and makes them, empty.
    ///
    /// # Errors
    /// See [`BeginError`]; a file that has text in it is only emptied after [`OutputFolder::discard`].
    pub fn begin(
        folder: OutputFolder,
        identity: &RunIdentity,
        files: &[PathBuf],
    ) -> Result<Self, BeginError> {
        if !matches!(folder.found(), FoundJournal::Nothing) {
            return Err(BeginError::NotFresh(folder.path().to_owned()));
        }
        if folder.may_replace_files() {
            remove_links(folder.path(), files)?;
        }
        let mut open = open_files(&folder, files)?;
        if let Some(full) = open.iter().find(|f| f.len() > 0 && !folder.may_replace_files()) {
            return Err(BeginError::InTheWay(full.path().to_owned()));
        }
        for file in &mut open {
            file.cut(0).and_then(|()| file.sync()).map_err(failed(file.path()))?;
        }
        let path = folder.journal_path();
        let log =
            Log::begin(&path, kind::HEADER, &JournalHeader::new(identity, files)).map_err(failed(&path))?;
        let replayed = Replayed::none(identity.clone(), files.len(), log.end());
        Ok(Self::new(folder, log, open, replayed, Recovered::default()))
    }

    /// Goes on with the run in the folder: cuts off what was written but not committed, and knows what is finished. `identity`
    /// replaces the stored one; comparing the two ([`RunIdentity::changes`]) is up to the caller. `files` must be those that
    /// the run was begun with.
    pub fn resume(
        folder: OutputFolder,
        identity: &RunIdentity,
        files: &[PathBuf],
    ) -> Result<Self, BeginError> {
        let FoundJournal::Run(run) = folder.found() else {
            return Err(BeginError::NothingToResume(folder.path().to_owned()));
        };
        if run.files != files {
            return Err(BeginError::OtherFiles { before: run.files.clone(), now: files.to_vec() });
        }
        let path = folder.journal_path();
        let (replayed, lost_commits) = run.resumable(folder.path(), &path).map_err(failed(&path))?;
        let mut open = open_files(&folder, files)?;
        let counted: Vec<PathBuf> = replayed.states(files).map(|state| folder.path().join(state)).collect();
        // Files of items that do not count: a file is there exactly if its item is done.
        placed_files(folder.path(), &path, replayed.end.len, |_, file| {
            if counted.contains(&file) {
                return Ok(()); // A state that does not count was to replace it, and has not.
            }
            remove_placed(&file, folder.path()).map_err(failed(&file))?;
            remove_empty_folders(&file, folder.path());
            Ok::<(), BeginError>(())
        })?;
        let is_finished = run.code.is_some() && lost_commits == 0;
        let lengths: Vec<u64> = replayed.files.iter().map(|file| file.len).collect();
        let cut_bytes = cut_files(&mut open, &lengths, is_finished)?;
        let log = Log::go_on(&path, replayed.end).map_err(failed(&path))?;
        let reopen = run.code.is_some() || replayed.identity != *identity;
        let recovered = Recovered { lost_commits, cut_bytes };
        let mut this = Self::new(folder, log, open, replayed, recovered);
        // Also makes the cuts durable, so that no cut byte comes back after a power cut, and files that the killed run had no time to sync.
        (this.unsynced, this.has_placed) = (true, true);
        let begun = if reopen { this.append(kind::RESUMED, identity) } else { Ok(()) };
        begun.and_then(|()| this.sync()).map_err(|e| match e {
            CommitError::Write { path, source } => BeginError::Io { path, source },
            other => BeginError::Io { path, source: io::Error::other(other.to_string()) },
        })?;
        Ok(this)
    }

    fn new(
        folder: OutputFolder,
        log: Log,
        files: Vec<AppendFile>,
        replayed: Replayed,
        recovered: Recovered,
    ) -> Self {
        let parts = replayed.files.into_iter().map(|file| file.parts).collect();
        Self {
            folder,
            log,
            files,
            parts,
            finished: replayed.finished,
            left_out: replayed.left_out,
            recovered,
            phase: JournalPhase::Open,
            unsynced: false,
            has_placed: false,
            may_have_account: true,
        }
    }
}

pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> BeginError {
    let path = path.to_owned();
    move |source| BeginError::Io { path, source }
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|f| format!("`{}`", f.display())).collect::<Vec<_>>().join(", ")
}
