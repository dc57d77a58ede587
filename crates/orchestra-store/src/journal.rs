//! The journal of a run: begins or resumes it, commits groups of records exactly once, and records its end.
//! It never decides which items belong together, and never retries.

pub(crate) mod append_file;
pub(crate) mod commit;
pub(crate) mod entry;
pub(crate) mod finished;
pub(crate) mod frame;
pub(crate) mod log;
mod open_files;
pub(crate) mod placed;
pub(crate) mod recovery;
mod retry;
mod seal;
mod start;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::{ItemId, LeftOutCount, SourceId};

use self::append_file::{AppendFile, Disturbance};
pub use self::commit::{Commit, CommitError, FileIndex};
use self::entry::{Appended, CommitGroup, kind};
pub use self::finished::Counts;
use self::finished::FinishedSet;
use self::log::Log;
pub use self::placed::PlacedFile;
use self::placed::{PlacedRecord, remove_placed};
pub use self::recovery::altered_files;
pub use self::start::{BeginError, Recovered};
use crate::atomic::{sync_folder_of, write_whole};
use crate::folder::{OutputFolder, RUN_SUMMARY};
use crate::identity::RunIdentity;
use crate::number_set::NumberSet;

/// An open run. One thread owns it; every call may block on the disk.
#[derive(Debug)]
pub struct Journal {
    folder: OutputFolder,
    log: Log,
    files: Vec<AppendFile>,
    /// What is noted of the parts, or states, that each file was sealed into.
    parts: Vec<Vec<Vec<u8>>>,
    finished: FinishedSet,
    left_out: Vec<LeftOutCount>,
    recovered: Recovered,
    phase: JournalPhase,
    /// Something was committed since the last `sync`.
    unsynced: bool,
    /// Files were placed since: there may be many, so their whole file system is synced.
    has_placed: bool,
    /// The account of an earlier end may lie in the folder: it is true until this start changes what counts.
    may_have_account: bool,
}

#[derive(Debug)]
enum JournalPhase {
    // ## Open => (Finished | Closed)
    Open,
    Finished,
    Closed(String),
}

impl Journal {
    /// Whether the item is done or failed.
    pub fn is_finished(&self, item: ItemId) -> bool {
        self.finished.contains(item)
    }

    /// The finished items of a source, as they are now. Cheap: the set is shared.
    pub fn finished(&self, source: SourceId) -> Arc<NumberSet> {
        self.finished.of_source(source)
    }

    /// Those of them that have failed.
    pub fn failed(&self, source: SourceId) -> NumberSet {
        self.finished.failed_of(source)
    }

    /// Finished items of all sources.
    pub fn counts(&self) -> Counts {
        self.finished.counts()
    }

    /// Finished items of one source.
    pub fn counts_of(&self, source: SourceId) -> Counts {
        self.finished.counts_of(source)
    }

    /// What was passed over in items that are done, over all starts of the run.
    pub fn left_out(&self) -> &[LeftOutCount] {
        &self.left_out
    }

    /// What `resume` threw away.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The folder that the run writes to.
    pub fn folder(&self) -> &OutputFolder {
        &self.folder
    }

    /// The same, which stays locked. Nothing is committed any more.
    pub fn into_folder(self) -> OutputFolder {
        self.folder
    }

    /// Appends the group's records and marks its items as finished: all of it, or nothing. From then on `kill -9` cannot undo
    /// it; a power cut can, until the next [`Journal::sync`], and then undoes records and marks alike.
    ///
    /// # Errors
    /// See [`CommitError`]. The files are as before.
    pub fn commit(&mut self, group: &Commit) -> Result<(), CommitError> {
        self.must_be_open()?;
        if group.is_empty() {
            return Ok(());
        }
        let done = sorted(&group.done);
        let failed = sorted(&group.failed);
        self.must_be_new(&done, &failed)?;
        let grown = self.grown(group)?;
        for index in grown.keys() {
            undisturbed(&self.files[*index])?;
        }
        undisturbed(&self.log.file)?;
        let appended = grown.iter().map(|(index, grown)| grown.appended(*index)).collect();
        let entry = CommitGroup::new(appended, &done, &failed, group.left_out.clone());
        if let Some(outside) = group.files.iter().find(|file| !file.is_inside()) {
            return Err(CommitError::Outside(outside.path.clone()));
        }
        if !group.files.is_empty() {
            self.must_lie_where_it_was()?;
        }
        self.remove_account()?;
        self.all_or_nothing(&group.files, |this| {
            this.place(&group.files)?;
            this.write_records(group)?;
            this.append(kind::GROUP, &entry)
        })?;
        for (index, grown) in grown {
            self.files[index].accept_more(grown.bytes, &grown.hasher);
        }
        entry.add_to(&mut self.finished);
        entry.left_out.into_iter().for_each(|count| count.add_to(&mut self.left_out));
        self.unsynced = true;
        Ok(())
    }

    /// Makes everything committed so far survive a power cut. Costs a few milliseconds to some hundred: call it every second or
    /// so, not for every commit.
    ///
    /// # Errors
    /// [`CommitError::Write`] closes the journal: after a failed sync it is unknown what the disk holds, until it is read again.
    pub fn sync(&mut self) -> Result<(), CommitError> {
        self.must_be_open()?;
        if !self.unsynced {
            return Ok(());
        }
        self.make_durable(kind::SYNCED, &())?;
        self.unsynced = false;
        Ok(())
    }

    /// Replaces the stored identity, for a part of it that is known only now. It is on the disk before anything that is committed afterwards.
    pub fn identify(&mut self, identity: &RunIdentity) -> Result<(), CommitError> {
        self.must_be_open()?;
        self.append(kind::RESUMED, identity)?;
        self.unsynced = true;
        Ok(())
    }

    /// Removes the account of an earlier end before the first change behind it. Who counts by it after a kill would take the items that are done again for
    /// lost, and their records for strays.
    fn remove_account(&mut self) -> Result<(), CommitError> {
        if !self.may_have_account {
            return Ok(());
        }
        let path = self.folder.path().join(RUN_SUMMARY);
        let removed = match fs::remove_file(&path) {
            Ok(()) => sync_folder_of(&path),
            // A folder is no account; the end of this run will say that it is in the way.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => Ok(()),
            Err(e) => Err(e),
        };
        removed.map_err(write_failed(&path))?;
        self.may_have_account = false;
        Ok(())
    }

    /// Records durably that the run is over, with its exit code. No commit is possible after it. A run that was interrupted and
    /// shall go on is not finished: call [`Journal::sync`] instead.
    ///
    /// # Errors
    /// As [`Journal::sync`]; the run then counts as unfinished.
    pub fn finish(&mut self, code: i32) -> Result<(), CommitError> {
        self.must_be_open()?;
        self.make_durable(kind::FINISHED, &code)?;
        self.phase = JournalPhase::Finished;
        Ok(())
    }

    fn must_be_open(&self) -> Result<(), CommitError> {
        match &self.phase {
            JournalPhase::Open => Ok(()),
            JournalPhase::Finished => Err(CommitError::Finished),
            JournalPhase::Closed(why) => Err(CommitError::Closed(why.clone())),
        }
    }

    fn must_be_new(&self, done: &[ItemId], failed: &[ItemId]) -> Result<(), CommitError> {
        for list in [done, failed] {
            if let Some(twice) = list.windows(2).find(|w| w[0] == w[1]) {
                return Err(CommitError::FinishedTwice(twice[0]));
            }
        }
        for item in done.iter().chain(failed) {
            if self.finished.contains(*item) {
                return Err(CommitError::FinishedTwice(*item));
            }
        }
        match failed.iter().find(|item| done.binary_search(item).is_ok()) {
            Some(both) => Err(CommitError::FinishedTwice(*both)),
            None => Ok(()),
        }
    }

    /// By how much each file of the group grows.
    fn grown(&self, group: &Commit) -> Result<BTreeMap<usize, Grown>, CommitError> {
        let mut grown: BTreeMap<usize, Grown> = BTreeMap::new();
        for (FileIndex(index), bytes) in &group.appends {
            if *index >= self.files.len() {
                return Err(CommitError::UnknownFile(FileIndex(*index)));
            }
            let of_file = grown.entry(*index).or_default();
            of_file.bytes += bytes.len() as u64;
            of_file.hasher.update(bytes);
        }
        grown.retain(|_, g| g.bytes > 0);
        Ok(grown)
    }

    fn write_records(&mut self, group: &Commit) -> Result<(), CommitError> {
        let mut ends: Vec<u64> = self.files.iter().map(AppendFile::len).collect();
        for (FileIndex(index), bytes) in &group.appends {
            let file = &mut self.files[*index];
            file.write_at(bytes, ends[*index]).map_err(write_failed(file.path()))?;
            ends[*index] += bytes.len() as u64;
        }
        Ok(())
    }

    /// Places files. What they will be is said before the first is there, so that those of a group that never counts can be found.
    fn place(&mut self, files: &[PlacedFile]) -> Result<(), CommitError> {
        if files.is_empty() {
            return Ok(());
        }
        self.append(kind::PLACED, &files.iter().map(PlacedFile::entry).collect::<Vec<PlacedRecord>>())?;
        self.has_placed = true;
        let folder = self.folder.path();
        let written = |file: &PlacedFile| {
            file.write(folder, write_whole).map_err(write_failed(&folder.join(&file.path)))
        };
        files.iter().try_for_each(written)
    }

    /// Files are placed by their path. In a folder that was moved away, with another one in its place, the journal would count what is not beside it.
    fn must_lie_where_it_was(&self) -> Result<(), CommitError> {
        let path = self.log.file.path();
        let there = fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
        let ours = self.log.file.identity().map_err(write_failed(path))?;
        match there == Some(ours) {
            true => Ok(()),
            false => Err(CommitError::Disturbed {
                path: self.folder.path().to_owned(),
                what: "it was moved or replaced".to_owned(),
            }),
        }
    }

    /// Removes the files of a group that does not count. One that cannot be removed is written over when its item is done again.
    fn take_away(&self, files: &[PlacedFile]) {
        let folder = self.folder.path();
        for file in files {
            drop(remove_placed(&folder.join(&file.path), folder));
        }
    }

    /// Writes an entry, which then counts.
    fn append(&mut self, kind: u8, body: &impl bincode::Encode) -> Result<(), CommitError> {
        self.log.append(kind, body).map_err(write_failed(self.log.file.path()))
    }

    /// What `write` writes counts where it succeeds; else the files are as before, and `placed` are gone.
    fn all_or_nothing(
        &mut self,
        placed: &[PlacedFile],
        write: impl FnOnce(&mut Self) -> Result<(), CommitError>,
    ) -> Result<(), CommitError> {
        let before = self.log.end();
        write(self).inspect_err(|_| {
            self.log.end_at(before);
            for file in self.files.iter_mut().chain([&mut self.log.file]) {
                if let Err(error) = file.roll_back() {
                    self.phase = JournalPhase::Closed(format!(
                        "`{}` could not be cut back: {error}",
                        file.path().display()
                    ));
                    return;
                }
            }
            self.take_away(placed);
        })
    }

    /// After an error it is unknown what the disk holds, until it is read again.
    fn or_close<T>(&mut self, done: Result<T, CommitError>) -> Result<T, CommitError> {
        done.inspect_err(|error| self.phase = JournalPhase::Closed(error.to_string()))
    }

    /// Files first: an entry that says that they are durable must not be read before they are.
    fn make_durable(&mut self, kind: u8, body: &impl bincode::Encode) -> Result<(), CommitError> {
        let appended =
            self.sync_files().and_then(|()| self.all_or_nothing(&[], |this| this.append(kind, body)));
        let durable =
            appended.and_then(|()| self.log.file.sync().map_err(write_failed(self.log.file.path())));
        self.or_close(durable)
    }

    fn sync_files(&mut self) -> Result<(), CommitError> {
        if std::mem::take(&mut self.has_placed) {
            let folder = self.folder.path();
            let synced = fs::File::open(folder).and_then(|f| rustix::fs::syncfs(f).map_err(io::Error::from));
            synced.map_err(write_failed(folder))?;
        }
        self.files.iter_mut().try_for_each(|f| f.sync().map_err(write_failed(f.path())))
    }
}

#[derive(Default)]
struct Grown {
    bytes: u64,
    hasher: crc32fast::Hasher,
}

impl Grown {
    fn appended(&self, index: usize) -> Appended {
        // `open_files` lets no run have more files than fit.
        let file = u16::try_from(index).unwrap_or(u16::MAX);
        Appended { file, bytes: self.bytes, crc: self.hasher.clone().finalize() }
    }
}

fn undisturbed(file: &AppendFile) -> Result<(), CommitError> {
    let what = match file.disturbance().map_err(write_failed(file.path()))? {
        None => return Ok(()),
        Some(Disturbance::Deleted) => "it was deleted".to_owned(),
        Some(Disturbance::Length(found)) => {
            format!("it has {found} bytes, the run has written {}", file.len())
        }
        Some(Disturbance::Content) => "it holds other bytes than the run has written".to_owned(),
    };
    Err(CommitError::Disturbed { path: file.path().to_owned(), what })
}

fn sorted(items: &[ItemId]) -> Vec<ItemId> {
    let mut items = items.to_vec();
    items.sort_unstable();
    items
}

fn write_failed(path: &Path) -> impl FnOnce(io::Error) -> CommitError {
    let path = path.to_owned();
    move |source| CommitError::Write { path, source }
}
