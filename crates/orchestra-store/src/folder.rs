//! The output folder as its owner sees it: locked, what an earlier run left in it, and how to start over. Commits nothing.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::atomic::{NEIGHBOUR, sync_folder_of};
use crate::identity::RunIdentity;
use crate::journal::entry::resolve;
use crate::journal::finished::Counts;
use crate::journal::placed::{lies_below, remove_empty_folders, remove_placed};
use crate::journal::recovery::{FoundJournal, examine, placed_files};
use crate::layout::{JOURNAL, PRIVATE, foreign};
use crate::lock::{FolderLock, OpenError, make_folder};

/// The run's summary in the output folder.
pub const RUN_SUMMARY: &str = "run.json";
/// The records of items that failed.
pub const FAILURE_RECORDS: &str = "failures.jsonl";
/// The page of a run, and that of two, where no other file is named.
pub const REPORT_PAGE: &str = "report.html";
pub const COMPARED_PAGE: &str = "compare.html";
const LOCK: &str = "lock";
/// Of the run, which are written to their end.
const LOGS: &str = "logs";
/// Logs and folders of commands.
const TASKS: &str = "tasks";
/// In the private folder, besides the lock and the journal: files by their names, files by the beginnings of their names, and folders. Of the
/// store, of the runtime, and of the command (`command.json`).
const FILES: [&str; 6] = ["tasks", "commands", "keepers", "doubt", "command.json", "history.jsonl"];
const FILES_BY_PREFIX: [&str; 5] = ["items-", "rows-", "fold-", "state-", "made-"];
const FOLDERS: [&str; 1] = ["best"];

/// What an earlier run left in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FolderState {
    /// Nothing: `Journal::begin` starts a run.
    Fresh,
    /// A run that can go on with `Journal::resume`.
    Unfinished {
        /// To be compared before resuming.
        identity: RunIdentity,
        counts: Counts,
    },
    /// A run whose end was recorded. `Journal::resume` reopens it, for items that are new.
    Finished { identity: RunIdentity, counts: Counts, code: i32 },
    /// A journal that cannot be used, and why: `discard`, or another folder.
    Unreadable(String),
}

/// Refuses what may stand in the place of files that every start reads or writes: a link, which leads to files of others, a pipe or a device,
/// at which it would wait for ever, and a folder.
///
/// # Errors
/// [`OpenError::Io`] names the first of them; it [`is_foreign`].
pub fn only_files(folder: &Path) -> Result<(), OpenError> {
    let refused = |path: &Path, what| Err(OpenError::Io { path: path.to_owned(), source: foreign(what) });
    let private = folder.join(PRIVATE);
    let written = [private.clone(), folder.join(LOGS), folder.join(TASKS)];
    if let Some(link) = written.iter().find(|folder| folder.is_symlink()) {
        return refused(link, "a link");
    }
    // A link there is replaced, and may be read.
    let account = folder.join(RUN_SUMMARY);
    if account.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        return refused(&account, "a pipe or a device");
    }
    let folders = [private.clone(), folder.join(LOGS)];
    // What cannot be listed is told by what opens it.
    let is_file = |path: &Path| {
        let name = path.strip_prefix(&private).map_or(b"".as_slice(), |name| name.as_os_str().as_bytes());
        [LOCK.as_bytes(), JOURNAL.as_bytes()].contains(&name) || name.starts_with(b"items-")
    };
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        match path.symlink_metadata().map(|meta| meta.file_type()) {
            Ok(kind) if kind.is_symlink() => return refused(&path, "a link"),
            Ok(kind) if !kind.is_file() && !kind.is_dir() => return refused(&path, "a pipe or a device"),
            Ok(kind) if kind.is_dir() && is_file(&path) => return refused(&path, "a folder"),
            _ => {}
        }
    }
    Ok(())
}

/// An output folder that this process owns until the value (or the journal made from it) is dropped.
#[derive(Debug)]
pub struct OutputFolder {
    folder: PathBuf,
    private: PathBuf,
    found: FoundJournal,
    discarded: bool,
    _lock: FolderLock,
}

/// What `discard` threw away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Items whose records are gone.
    pub counts: Counts,
    /// The files that are gone or empty now, other than the journal's own.
    pub files: Vec<PathBuf>,
}

/// A file that could not be removed. What was not removed yet is intact; `discard` may be called again.
#[derive(Debug, Error)]
#[error("cannot discard `{}`: {source}", path.display())]
pub struct DiscardError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl From<io::Error> for DiscardError {
    /// Of the journal, which names what is to be removed.
    fn from(source: io::Error) -> Self {
        Self { path: JOURNAL.into(), source }
    }
}

impl OutputFolder {
    /// Makes the folder if need be, takes its lock and looks at what an earlier run left. Changes no record.
    ///
    /// # Errors
    /// [`OpenError::Busy`] while another process (or another value in this one) owns it.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let private = folder.join(PRIVATE);
        only_files(folder)?;
        make_folder(&private)?;
        let lock = FolderLock::take(&private.join(LOCK), folder)?;
        let journal = private.join(JOURNAL);
        drop(fs::remove_file(folder.join(NEIGHBOUR))); // There is one only where a run was killed while it wrote.
        remove_half_written(&private).map_err(|source| OpenError::Io { path: folder.to_owned(), source })?;
        let found =
            examine(folder, &journal).map_err(|source| OpenError::Io { path: journal.clone(), source })?;
        Ok(Self { folder: folder.to_owned(), private, found, discarded: false, _lock: lock })
    }

    /// What an earlier run left, as it was when the folder was opened (or discarded).
    pub fn state(&self) -> FolderState {
        match &self.found {
            FoundJournal::Nothing => FolderState::Fresh,
            FoundJournal::Unreadable(why) => FolderState::Unreadable(why.clone()),
            FoundJournal::Run(run) => {
                let identity = run.replayed.identity.clone();
                let counts = run.replayed.finished.counts();
                match run.code {
                    Some(code) => FolderState::Finished { identity, counts, code },
                    None => FolderState::Unfinished { identity, counts },
                }
            }
        }
    }

    /// From now on `Journal::begin` empties files that it finds in its way, as after [`Self::discard`].
    pub fn replace_files(&mut self) {
        self.discarded = true;
    }

    /// The result files of the run in the folder, as it was begun with them; none where there is no run.
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.found {
            FoundJournal::Run(run) => run.files.clone(),
            FoundJournal::Nothing | FoundJournal::Unreadable(_) => Vec::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The folder for what only the next run needs, such as listings of items. `discard` empties it.
    pub fn private_dir(&self) -> &Path {
        &self.private
    }

    /// A file in that folder, relative to the output folder.
    pub fn private_file(name: &str) -> PathBuf {
        Path::new(PRIVATE).join(name)
    }

    /// Starts over: empties and removes the earlier run's files, its `run.json` and everything that runs keep in the private folder, but the lock.
    /// What else lies there stays. From now on `Journal::begin` also empties files that it finds in its way.
    pub fn discard(&mut self) -> Result<Discarded, DiscardError> {
        let mut discarded = Discarded::default();
        if let FoundJournal::Run(run) = &self.found {
            discarded.counts = run.replayed.finished.counts();
            // First: where one cannot be removed, the journal and the records are still there.
            placed_files(&self.folder, &self.journal_path(), 0, |_, path| {
                remove_placed(&path, &self.folder)
                    .map_err(|source| DiscardError { path: path.clone(), source })?;
                remove_empty_folders(&path, &self.folder);
                Ok::<(), DiscardError>(())
            })?;
            for file in run.files.iter().filter(|file| !file.starts_with(PRIVATE)) {
                let path = resolve(&self.folder, file);
                if remove(&path, &self.folder)? {
                    discarded.files.push(path);
                }
            }
            for file in &run.files {
                remove_empty_folders(&resolve(&self.folder, file), &self.folder);
            }
        }
        let summary = self.folder.join(RUN_SUMMARY);
        if remove(&summary, &self.folder)? {
            discarded.files.push(summary);
        }
        self.remove_private()?;
        self.found = FoundJournal::Nothing;
        self.discarded = true;
        Ok(discarded)
    }

    /// Forgets a run that had neither sources nor anything else that results depend on, but for what is known of its tasks: another one may begin
    /// beside them. Whether there was such a run.
    pub fn forget_without_items(&mut self) -> Result<bool, DiscardError> {
        let FoundJournal::Run(run) = &self.found else { return Ok(false) };
        if !run.replayed.identity.fingerprint.is_empty() || run.replayed.finished.counts().total() > 0 {
            return Ok(false);
        }
        remove(&self.journal_path(), &self.folder)?;
        self.found = FoundJournal::Nothing;
        Ok(true)
    }

    pub(crate) fn journal_path(&self) -> PathBuf {
        self.private.join(JOURNAL)
    }

    pub(crate) fn found(&self) -> &FoundJournal {
        &self.found
    }

    pub(crate) fn may_replace_files(&self) -> bool {
        self.discarded
    }

    /// The journal goes last: as long as it is there, it names the files that are still to be removed.
    fn remove_private(&self) -> Result<(), DiscardError> {
        let failed = |path: &Path, source| DiscardError { path: path.to_owned(), source };
        let entries = fs::read_dir(&self.private).map_err(|e| failed(&self.private, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| failed(&self.private, e))?;
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type().map_err(|e| failed(&path, e))?;
            let is_folder = FOLDERS.iter().any(|folder| name == *folder);
            let removed = match name.to_str() {
                // It follows no links.
                _ if kind.is_dir() && is_folder => fs::remove_dir_all(&path),
                Some(name) if !kind.is_dir() && (is_folder || is_private_file(name)) => {
                    fs::remove_file(&path)
                }
                _ => Ok(()),
            };
            removed.map_err(|e| failed(&path, e))?;
        }
        let journal = self.journal_path();
        remove(&journal, &self.folder)?;
        sync_folder_of(&journal).map_err(|e| failed(&self.private, e))
    }
}

/// Whether it is the name of a file that a run keeps in the private folder until the next one.
fn is_private_file(name: &str) -> bool {
    FILES.contains(&name) || FILES_BY_PREFIX.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether it is the name of a file that is renamed when it is whole.
fn is_half_written(name: &str) -> bool {
    // As `tempfile` has them, whose names are chance.
    let is_of_tempfile = name
        .strip_prefix(".tmp")
        .is_some_and(|rest| rest.len() == 6 && rest.bytes().all(|b| b.is_ascii_alphanumeric()));
    is_of_tempfile || name == NEIGHBOUR
}

/// Removes what a killed run was about to write in the private folder: journal and lists are written to files of other names, and renamed when
/// they are whole.
fn remove_half_written(private: &Path) -> io::Result<()> {
    for entry in fs::read_dir(private)? {
        let entry = entry?;
        let is_ours = entry.file_name().to_str().is_some_and(is_half_written);
        if is_ours && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file of the run. Where a link stands in its place, the link goes and what it leads to stays; where a folder on the way to it is a
/// link out of `folder`, all stays. Whether there was one.
fn remove(path: &Path, folder: &Path) -> Result<bool, DiscardError> {
    let failed = |source| DiscardError { path: path.to_owned(), source };
    if !lies_below(path, folder).map_err(failed)? {
        return Ok(false);
    }
    let kind = match fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(failed(e)),
    };
    if !kind.is_file() && !kind.is_symlink() {
        return Err(failed(foreign("no regular file")));
    }
    fs::remove_file(path).map(|()| true).map_err(failed)
}
