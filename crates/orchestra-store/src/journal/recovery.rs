//! Finds out what of an earlier run survives: the longest whole part of the journal that agrees with the files. Only reads.
//!
//! The journal is read once, into what it says of each file, and then the files are looked at. Where one does not hold what is said of it, the journal
//! counts up to that entry, and is read again up to there. Bytes that are known to be durable are taken on trust, unless some of them are gone. The rows
//! of a file that was sealed lie in its part: where that is wrong, the journal ends before the first of them. A state holds the rows of all states
//! before it, so only the last one is looked at.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_core::LeftOutCount;

use super::append_file::length_of;
use super::entry::{self, Appended, CommitGroup, JournalHeader, Sealed, is_of_rows, kind, resolve};
use super::finished::FinishedSet;
use super::frame::{LogEnd, LogFrames, crc_of};
use super::placed::{PlacedRecord, is_below, state_path};
use crate::identity::RunIdentity;
use crate::layout::{ForeignFile, JOURNAL, PRIVATE, is_foreign};

/// What an output folder holds.
#[derive(Debug)]
pub(crate) enum FoundJournal {
    Nothing,
    /// A journal that cannot be used, and why.
    Unreadable(String),
    Run(Box<FoundRun>),
}

#[derive(Debug)]
pub(crate) struct FoundRun {
    /// Its files, as they were named.
    pub(crate) files: Vec<PathBuf>,
    /// Its exit code, if its end was recorded.
    pub(crate) code: Option<i32>,
    /// What it achieved: for a finished run as the journal says, else as far as the files agree.
    pub(crate) replayed: Replayed,
    /// Commits in all of the journal.
    commits: u64,
}

/// The part of a run that counts.
#[derive(Debug, Clone)]
pub(crate) struct Replayed {
    pub(crate) identity: RunIdentity,
    pub(crate) end: LogEnd,
    pub(crate) files: Vec<FileState>,
    pub(crate) finished: FinishedSet,
    /// What was passed over in items that are done.
    pub(crate) left_out: Vec<LeftOutCount>,
    /// Commits in the part that counts.
    pub(crate) commits: u64,
    /// Files of groups that are not known to be durable, and where in the journal these stand.
    placed: Vec<(u64, PlacedRecord)>,
    /// End of the last entry that says that all before it is durable.
    durable_to: u64,
    trust: Trust,
}

/// What the journal says of a file of the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileState {
    pub(crate) len: u64,
    /// What is noted of each part, or state, that it was sealed into.
    pub(crate) parts: Vec<Vec<u8>>,
    /// Where in the journal the first rows stand that it holds.
    begun: Option<u64>,
    /// It is at least so long, and so much of it is taken on trust.
    durable: u64,
    /// What lies behind that, with the places of its entries in the journal.
    appended: Vec<(u64, Appended)>,
    /// What is to be there of its parts or states, with the place of the first row in each.
    sealed: Vec<(u64, PlacedRecord)>,
}

/// What is taken on trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// What was durable before something happened.
    Durable,
    Nothing,
}

impl Replayed {
    /// Those of a run that has done nothing.
    pub(crate) fn none(identity: RunIdentity, n_files: usize, end: LogEnd) -> Self {
        Self {
            identity,
            end,
            files: vec![FileState::default(); n_files],
            finished: FinishedSet::default(),
            left_out: Vec::new(),
            commits: 0,
            placed: Vec::new(),
            durable_to: 0,
            trust: Trust::Durable,
        }
    }

    /// The states that rows of `files` were folded into last.
    pub(crate) fn states(&self, files: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
        let states = files.iter().zip(&self.files);
        states.filter_map(|(name, file)| state_path(name, (file.parts.len() as u64).checked_sub(1)?))
    }

    /// Takes up an entry; `None`: it is none that a run writes here. `placed` are the files that belong to it.
    fn take_up(&mut self, kind: u8, body: &[u8], at: u64, placed: Vec<PlacedRecord>) -> Option<()> {
        match kind {
            kind::GROUP => {
                let group =
                    entry::decode::<CommitGroup>(body).filter(|group| group.is_sane(self.files.len()))?;
                for appended in &group.appended {
                    let file = &mut self.files[usize::from(appended.file)];
                    // A length that no file has is found out with the file.
                    file.len = file.len.saturating_add(appended.bytes);
                    file.begun.get_or_insert(at);
                    file.appended.push((at, *appended));
                }
                self.placed.extend(placed.into_iter().map(|file| (at, file)));
                group.add_to(&mut self.finished);
                group.left_out.into_iter().for_each(|count| count.add_to(&mut self.left_out));
                self.commits += 1;
            }
            kind::SEALED => {
                let Sealed { file, bytes, part, note } = entry::decode::<Sealed>(body)?;
                let trust = self.trust;
                let file = self.files.get_mut(usize::from(file)).filter(|file| file.len == bytes)?;
                if !part.is_part() && !part.is_state() {
                    return None;
                }
                let begun = file.begun.unwrap_or(at);
                let FileState { mut parts, mut sealed, .. } = std::mem::take(file);
                parts.push(note);
                // What became of a durable part is the user's business. A state is the only copy of its rows.
                if part.is_state() || trust == Trust::Nothing {
                    sealed.push((begun, part));
                }
                *file = FileState { parts, sealed, ..FileState::default() };
            }
            kind::RESUMED => self.identity = entry::decode(body)?,
            _ => {}
        }
        Some(())
    }

    /// All so far is durable.
    fn settle(&mut self, names: &[PathBuf]) {
        self.durable_to = self.end.len;
        self.placed.clear();
        if self.trust == Trust::Nothing {
            return;
        }
        // Files of rows are always read: what lies in one may be of later rows, where the journal lost the seal of these.
        for (file, _) in self.files.iter_mut().zip(names).filter(|(_, name)| !is_of_rows(name)) {
            file.durable = file.len;
            file.appended.clear();
        }
    }

    /// Where in the journal the first entry stands that the files disagree with.
    fn first_wrong(&self, folder: &Path, names: &[PathBuf]) -> io::Result<Option<u64>> {
        let mut wrong = Vec::new();
        for (file, name) in self.files.iter().zip(names) {
            wrong.extend(file.first_wrong(&resolve(folder, name))?);
            wrong.extend(file.first_wrong_seal(folder)?);
        }
        for (at, file) in &self.placed {
            if !file.is_there(folder)? {
                wrong.push(*at);
                break;
            }
        }
        Ok(wrong.into_iter().min())
    }
}

impl FileState {
    /// The place of the first entry whose bytes `path` does not hold.
    fn first_wrong(&self, path: &Path) -> io::Result<Option<u64>> {
        let named = |error: io::Error| {
            let text = format!("`{}`: {error}", path.display());
            match is_foreign(&error) {
                true => io::Error::other(ForeignFile(text)),
                false => io::Error::new(error.kind(), text),
            }
        };
        let len = length_of(path).map_err(named)?;
        if len < self.durable {
            return Ok(Some(0));
        }
        let (mut from, mut file) = (self.durable, None);
        for (at, appended) in &self.appended {
            // Without bytes there need not be a file.
            if appended.bytes == 0 && appended.crc == crc32fast::hash(&[]) {
                continue;
            }
            if appended.bytes == 0 || len - from < appended.bytes {
                return Ok(Some(*at));
            }
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(File::open(path).map_err(named)?),
            };
            if crc_of(file, from, appended.bytes).map_err(named)? != appended.crc {
                return Ok(Some(*at));
            }
            from += appended.bytes;
        }
        Ok(None)
    }

    /// The place of the first row that lies in no part or state that is there.
    fn first_wrong_seal(&self, folder: &Path) -> io::Result<Option<u64>> {
        let mut wrong = None;
        for (begun, part) in self.sealed.iter().rev() {
            match part.is_there(folder)? {
                true if part.is_state() => break,
                true => {}
                false => wrong = Some(*begun),
            }
        }
        Ok(wrong)
    }
}

/// Looks at the journal at `journal` of the output folder `folder`.
pub(crate) fn examine(folder: &Path, journal: &Path) -> io::Result<FoundJournal> {
    let all = match read(journal, u64::MAX, Trust::Durable)? {
        Ok(all) => all,
        Err(found) => return Ok(found),
    };
    let (files, code, commits) = (all.names.clone(), all.code, all.commits);
    let replayed = match code {
        Some(_) => all.replayed,
        None => agreeing(folder, journal, all)?,
    };
    Ok(FoundJournal::Run(Box::new(FoundRun { files, code, replayed, commits })))
}

impl FoundRun {
    /// What survives when the run is to go on, so that its files must agree, and how many commits do not.
    pub(crate) fn resumable(&self, folder: &Path, journal: &Path) -> io::Result<(Replayed, u64)> {
        let replayed = match (self.code, read(journal, u64::MAX, Trust::Durable)?) {
            (Some(_), Ok(all)) => agreeing(folder, journal, all)?,
            _ => self.replayed.clone(),
        };
        let lost = self.commits - replayed.commits;
        Ok((replayed, lost))
    }
}

/// The longest part that the files agree with.
fn agreeing(folder: &Path, journal: &Path, all: Read) -> io::Result<Replayed> {
    let mut read_so_far = all;
    loop {
        let Read { names, replayed, .. } = read_so_far;
        let Some(wrong) = replayed.first_wrong(folder, &names)? else { return Ok(replayed) };
        // Something else has changed what was durable, so no byte is taken on trust.
        let (end, trust) = match replayed.trust {
            Trust::Durable if wrong < replayed.durable_to => (u64::MAX, Trust::Nothing),
            trust => (wrong, trust),
        };
        let Ok(earlier) = read(journal, end, trust)? else {
            return Err(io::Error::other("the journal changed while it was read"));
        };
        read_so_far = earlier;
    }
}

/// The result files of an ended run that hold other bytes than it has written, or are not there, relative to its folder. Parts and files of items may
/// have been moved away by the user, or to a store.
pub fn altered_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let journal = folder.join(PRIVATE).join(JOURNAL);
    let Ok(Read { names, replayed, .. }) = read(&journal, u64::MAX, Trust::Nothing)? else {
        return Ok(Vec::new());
    };
    let mut altered = Vec::new();
    for (name, file) in names.into_iter().zip(&replayed.files).filter(|(name, _)| !is_of_rows(name)) {
        let path = resolve(folder, &name);
        // What stands in its place is told by what reads it.
        if (path.is_file() || !path.exists()) && file.first_wrong(&path)?.is_some() {
            altered.push(name);
        }
    }
    // The result of more items is written over that of fewer: what was written last counts.
    let mut placed_wrong = BTreeSet::new();
    placed_files(folder, &journal, 0, |placed, path| {
        if placed.is_state() || (path.exists() && !path.is_file()) {
            return Ok(());
        }
        match placed.is_there(folder)? {
            true => _ = placed_wrong.remove(&path),
            false => _ = placed_wrong.insert(path),
        }
        Ok::<(), io::Error>(())
    })?;
    altered.extend(placed_wrong.iter().filter_map(|path| path.strip_prefix(folder).ok()).map(Path::to_owned));
    Ok(altered)
}

struct Read {
    names: Vec<PathBuf>,
    /// The exit code, where that is its last entry.
    code: Option<i32>,
    /// In all of it.
    commits: u64,
    /// Up to `end`, or the first entry that no run writes.
    replayed: Replayed,
}

fn read(journal: &Path, end: u64, trust: Trust) -> io::Result<Result<Read, FoundJournal>> {
    let unreadable = |why: String| Ok(Err(FoundJournal::Unreadable(why)));
    let file = match File::open(journal) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Err(FoundJournal::Nothing)),
        Err(e) => return Err(e),
    };
    let mut frames = LogFrames::new(file)?;
    let header = match JournalHeader::read(frames.next()?) {
        Ok(header) => header,
        Err(why) => return unreadable(why),
    };
    let names = header.files();
    if let Some(outside) = names.iter().find(|file| !is_below(file)) {
        return unreadable(format!(
            "it names `{}`, which is no file below the folder: no run wrote that",
            outside.display()
        ));
    }
    let replayed = Replayed { trust, ..Replayed::none(header.identity, names.len(), frames.end) };
    let mut read = Read { names, code: None, commits: 0, replayed };
    let (mut is_over, mut placed) = (false, Vec::new());
    loop {
        let at = frames.end.len;
        let Some((kind, body)) = frames.next()? else { return Ok(Ok(read)) };
        read.code = None;
        match kind {
            kind::GROUP => read.commits += 1,
            kind::FINISHED => read.code = entry::decode(body),
            _ => {}
        }
        is_over |= at >= end;
        if is_over {
            continue;
        }
        if kind == kind::PLACED {
            // It counts with the entry that follows.
            match entry::decode(body) {
                Some(files) => placed = files,
                None => is_over = true,
            }
            continue;
        }
        if read.replayed.take_up(kind, body, at, std::mem::take(&mut placed)).is_none() {
            is_over = true;
            continue;
        }
        read.replayed.end = frames.end;
        if matches!(kind, kind::SYNCED | kind::FINISHED | kind::SEALED) {
            read.replayed.settle(&read.names);
        }
    }
}

/// Calls `each` with every file that was placed, or was about to be, by the part of the journal from `from` on, and where it lies.
pub(crate) fn placed_files<E: From<io::Error>>(
    folder: &Path,
    journal: &Path,
    from: u64,
    mut each: impl FnMut(&PlacedRecord, PathBuf) -> Result<(), E>,
) -> Result<(), E> {
    let file = match File::open(journal) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut frames = LogFrames::new(file)?;
    // Whatever a journal says: the files that grow are no placed ones.
    let mut growing: Vec<PathBuf> = Vec::new();
    loop {
        let start = frames.end.len;
        let Some((kind, body)) = frames.next()? else { return Ok(()) };
        if kind == kind::HEADER {
            let files =
                JournalHeader::read(Some((kind, body))).map(|header| header.files()).unwrap_or_default();
            growing.extend(files.iter().map(|file| resolve(folder, file)));
        }
        if kind == kind::PLACED && start >= from {
            for placed in entry::decode::<Vec<PlacedRecord>>(body).unwrap_or_default() {
                if let Some(path) = placed.path(folder).filter(|path| !growing.contains(path)) {
                    each(&placed, path)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::{ItemId, SourceId};

    use super::*;
    use crate::journal::frame::{LogEnd, encode};

    #[test]
    fn a_commit_that_added_nothing_to_a_file_needs_no_file() {
        let identity = RunIdentity {
            run_id: "r".into(),
            workflow: "w".into(),
            fingerprint: Vec::new(),
            started_unix_ms: 0,
        };
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal");
        let header = JournalHeader::new(&identity, &["failures.jsonl".into()]);
        let (mut bytes, end) = encode(kind::HEADER, &header, LogEnd::START).unwrap();
        let item = ItemId { source: SourceId(0), index: 3 };
        let group = CommitGroup::new(vec![Appended { file: 0, bytes: 0, crc: 0 }], &[item], &[], vec![]);
        bytes.extend(encode(kind::GROUP, &group, end).unwrap().0);
        std::fs::write(&journal, bytes).unwrap();
        match examine(dir.path(), &journal).unwrap() {
            FoundJournal::Run(run) => assert!(run.replayed.finished.contains(item)),
            other => panic!("{other:?}"),
        }
    }
}
