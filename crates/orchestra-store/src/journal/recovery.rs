//! Finds out what of an earlier run survives: the longest whole part of the journal that agrees with the files. Only reads.
//!
//! The rows of a file that was sealed lie in its part from then on. A journal that ends before the seal would count rows that lie nowhere, so it
//! ends before the first of them instead. A state holds the rows of all states before it: only the last one is looked at.

mod on_disk;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use self::on_disk::Files;
use crate::catalog::written;
use crate::identity::RunIdentity;
use crate::journal::entry::{self, FORMAT, Group, Header, Retried, Sealed, kind, resolve};
use crate::journal::finished::FinishedSet;
use crate::journal::frame::FrameReader;
use crate::journal::placed::{Placed, is_below, state_path};

/// What an output folder holds.
#[derive(Debug)]
pub(crate) enum Found {
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
    overview: Overview,
}

/// The part of a run that counts.
#[derive(Debug, Clone)]
pub(crate) struct Replayed {
    pub(crate) identity: RunIdentity,
    pub(crate) journal_len: u64,
    pub(crate) crc: u32,
    pub(crate) lengths: Vec<u64>,
    /// How many parts each file was sealed into.
    pub(crate) parts: Vec<u64>,
    /// How many it had when its items were to be done again: what is left of those that do not count any more.
    pub(crate) retired_parts: Vec<u64>,
    /// Where in the journal the first rows stand that each file holds.
    begun: Vec<Option<u64>>,
    pub(crate) finished: FinishedSet,
    /// Commits in the part that counts.
    pub(crate) commits: u64,
}

impl Replayed {
    /// Those of a run that has done nothing.
    pub(crate) fn none(identity: RunIdentity, n_files: usize, crc: u32) -> Self {
        Self {
            identity,
            journal_len: 0,
            crc,
            lengths: vec![0; n_files],
            parts: vec![0; n_files],
            retired_parts: vec![0; n_files],
            begun: vec![None; n_files],
            finished: FinishedSet::default(),
            commits: 0,
        }
    }

    /// The states that rows of `files` were folded into last.
    pub(crate) fn states(&self, files: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
        files.iter().zip(&self.parts).filter_map(|(file, parts)| state_path(file, parts.checked_sub(1)?))
    }

    /// Where the journal has to end instead of `end`: before rows that count and were taken from their file by a seal that does not; else where
    /// it ends already, if a state that does not count may have replaced one that does, which was not looked at.
    fn cut_back(&self, beginnings: &[Beginning], end: u64) -> Option<u64> {
        let undone = || beginnings.iter().filter(|b| b.at >= self.journal_len);
        let rows = undone().filter_map(|b| *self.begun.get(usize::from(b.file))?).min();
        let is_state = undone().any(|b| b.is_state);
        rows.or((is_state && self.journal_len < end).then_some(self.journal_len))
    }
}

/// Where in the journal a file begins anew: it was sealed, or its items are done again.
#[derive(Debug, Clone, Copy)]
struct Beginning {
    at: u64,
    file: u16,
    is_state: bool,
    /// Its items are done again.
    is_retry: bool,
}

#[derive(Debug, Clone)]
struct Overview {
    header: Header,
    /// End of the last entry that says that all before it is durable.
    durable_to: u64,
    commits: u64,
    code: Option<i32>,
    /// In their order.
    beginnings: Vec<Beginning>,
}

/// How far a replay believes the journal.
#[derive(Debug, Clone, Copy)]
enum Check {
    /// Wholly: the run is over, and its files are the user's.
    Nothing,
    /// The files must be long enough, and beyond this place in the journal their bytes must have the recorded checksums.
    Files { checksums_from: u64 },
}

/// What the files of lists of items begin with: `items-<source>`.
const LISTS: &str = "items-";

/// So many items may have ended without a list of items that could hold them.
const ITEMS_WITHOUT_LIST: u64 = 1 << 20;

/// Bytes of a list that an item takes at least: the lengths of its path and its name.
const LISTED_BYTES: u64 = 8;

/// An upper bound of the items of any source, by the size of all lists beside the journal, up to their first hole: what a journal claims beyond that would cost memory
/// and time for nothing.
fn most_items(journal: &Path) -> io::Result<u64> {
    let Some(private) = journal.parent() else { return Ok(ITEMS_WITHOUT_LIST) };
    let entries = match fs::read_dir(private) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(ITEMS_WITHOUT_LIST),
        Err(e) => return Err(e),
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(LISTS.as_bytes()) {
            bytes += written(&File::open(entry.path())?);
        }
    }
    Ok(ITEMS_WITHOUT_LIST + bytes / LISTED_BYTES)
}

/// Looks at the journal at `journal` of the output folder `folder`.
pub(crate) fn examine(folder: &Path, journal: &Path) -> io::Result<Found> {
    let overview = match overview(journal)? {
        Ok(overview) => overview,
        Err(found) => return Ok(found),
    };
    let files = overview.header.files();
    let code = overview.code;
    let replayed = if code.is_some() {
        replay(folder, journal, &overview, Check::Nothing)?
    } else {
        replay_checked(folder, journal, &overview)?
    };
    Ok(Found::Run(Box::new(FoundRun { files, code, replayed, overview })))
}

impl FoundRun {
    /// What survives when the run is to go on, so that its files must agree, and how many commits do not.
    pub(crate) fn resumable(&self, folder: &Path, journal: &Path) -> io::Result<(Replayed, u64)> {
        let replayed = match self.code {
            Some(_) => replay_checked(folder, journal, &self.overview)?,
            None => self.replayed.clone(),
        };
        let lost = self.overview.commits - replayed.commits;
        Ok((replayed, lost))
    }
}

fn replay_checked(folder: &Path, journal: &Path, overview: &Overview) -> io::Result<Replayed> {
    let check = Check::Files { checksums_from: overview.durable_to };
    let replayed = replay(folder, journal, overview, check)?;
    if replayed.journal_len >= overview.durable_to {
        return Ok(replayed);
    }
    // A file is shorter than it was when it was durable: something else changed it, so no byte of it is taken on trust.
    replay(folder, journal, overview, Check::Files { checksums_from: 0 })
}

fn overview(journal: &Path) -> io::Result<Result<Overview, Found>> {
    let file = match File::open(journal) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Err(Found::Nothing)),
        Err(e) => return Err(e),
    };
    let mut frames = FrameReader::new(file)?;
    let header = match frames.next()? {
        Some((kind::HEADER, body)) => entry::decode::<Header>(body),
        _ => None,
    };
    let Some(header) = header else {
        return Ok(Err(Found::Unreadable("its first entry is damaged or of another version".into())));
    };
    if header.format != FORMAT {
        let why = format!("it has format {}, this version reads format {FORMAT}", header.format);
        return Ok(Err(Found::Unreadable(why)));
    }
    if let Some(outside) = header.files().iter().find(|file| !is_below(file)) {
        let why =
            format!("it names `{}`, which is no file below the folder: no run wrote that", outside.display());
        return Ok(Err(Found::Unreadable(why)));
    }
    let most = most_items(journal)?;
    let mut overview = Overview { header, durable_to: 0, commits: 0, code: None, beginnings: Vec::new() };
    loop {
        let at = frames.end;
        let Some((kind, body)) = frames.next()? else { break };
        overview.code = None;
        match kind {
            kind::GROUP => {
                overview.commits += 1;
                let end = entry::decode::<Group>(body).map_or(Some(0), |group| group.end());
                if end.is_none_or(|end| end > most) {
                    let why = format!(
                        "it counts items as finished whose numbers are larger than the lists beside it can hold ({most} items)"
                    );
                    return Ok(Err(Found::Unreadable(why)));
                }
            }
            kind::FINISHED => overview.code = entry::decode(body),
            kind::SEALED => {
                let of = |sealed: Sealed| {
                    let (file, is_state) = (sealed.file, sealed.part.is_state());
                    Beginning { at, file, is_state, is_retry: false }
                };
                overview.beginnings.extend(entry::decode(body).map(of));
            }
            kind::RETRIED => {
                let Retried(files) = entry::decode(body).unwrap_or(Retried(Vec::new()));
                let of = |(file, _)| Beginning { at, file, is_state: false, is_retry: true };
                overview.beginnings.extend(files.into_iter().map(of));
            }
            _ => {}
        }
        if matches!(kind, kind::SYNCED | kind::FINISHED | kind::SEALED | kind::RETRIED) {
            overview.durable_to = frames.end;
        }
    }
    Ok(Ok(overview))
}

fn replay(folder: &Path, journal: &Path, overview: &Overview, check: Check) -> io::Result<Replayed> {
    let mut end = u64::MAX;
    loop {
        let state = replay_to(folder, journal, overview, check, end)?;
        // Each time it ends earlier.
        match state.cut_back(&overview.beginnings, end) {
            Some(earlier) => end = earlier,
            None => return Ok(state),
        }
    }
}

/// Replays the part of the journal that ends before `end`.
fn replay_to(
    folder: &Path,
    journal: &Path,
    overview: &Overview,
    check: Check,
    end: u64,
) -> io::Result<Replayed> {
    let mut frames = FrameReader::new(File::open(journal)?)?;
    let named = overview.header.files();
    let mut files = Files::look(folder, &named, &overview.beginnings, check)?;
    let mut state = Replayed::none(overview.header.identity.clone(), named.len(), 0);
    // Files that belong to the next group.
    let mut placed: Vec<Placed> = Vec::new();
    loop {
        // `end` before `next`: the entry's own start decides whether it lies in the durable part.
        let start = frames.end;
        let Some((kind, body)) = frames.next()?.filter(|_| start < end) else { break };
        match kind {
            kind::GROUP => {
                let group = entry::decode::<Group>(body).filter(|g| g.is_sane(state.lengths.len()));
                let Some(group) = group else { break };
                let placed = std::mem::take(&mut placed);
                if !files.hold_placed(&placed, start)? || !files.hold(&group, start, &mut state.lengths)? {
                    break;
                }
                for appended in &group.appended {
                    state.begun[usize::from(appended.file)].get_or_insert(start);
                }
                group.add_to(&mut state.finished);
                state.commits += 1;
            }
            kind::SEALED => {
                let sealed = entry::decode::<Sealed>(body).filter(|sealed| sealed.is_sane(&state.lengths));
                let Some(sealed) = sealed else { break };
                placed.clear(); // It is the part.
                let file = usize::from(sealed.file);
                let of_file = |b: &&Beginning| b.file == sealed.file && b.at > start;
                let mut retries = overview.beginnings.iter().filter(|b| of_file(b) && b.is_retry);
                let holds = match sealed.part.is_state() {
                    // The part is removed, or about to be.
                    false if retries.any(|b| b.at < end) => true,
                    true if overview.beginnings.iter().filter(of_file).any(|b| b.at < end) => true,
                    // The only copy of its rows, and small: it is always read.
                    true => sealed.part.is_there(folder)? || matches!(check, Check::Nothing),
                    false => files.hold_placed(&[sealed.part], start)?,
                };
                if !holds {
                    break;
                }
                (state.lengths[file], state.begun[file]) = (0, None);
                state.parts[file] += 1;
            }
            kind::RETRIED => {
                let retried =
                    entry::decode::<Retried>(body).filter(|retried| retried.is_sane(&state.lengths));
                let Some(retried) = retried else { break };
                for (file, _) in retried.0 {
                    let file = usize::from(file);
                    (state.lengths[file], state.begun[file]) = (0, None);
                    let parts = std::mem::take(&mut state.parts[file]);
                    state.retired_parts[file] = state.retired_parts[file].max(parts);
                }
                state.finished.forget_failed();
            }
            kind::PLACED => match entry::decode(body) {
                Some(files) => {
                    placed = files;
                    continue; // It counts with its group.
                }
                None => break,
            },
            kind::RESUMED => match entry::decode(body) {
                Some(identity) => state.identity = identity,
                None => break,
            },
            _ => {}
        }
        state.journal_len = frames.end;
        state.crc = frames.crc;
    }
    Ok(state)
}

/// Calls `each` with the path of every file that was placed, or was about to be, by the part of the journal from `from` on.
pub(crate) fn placed_files<E: From<io::Error>>(
    folder: &Path,
    journal: &Path,
    from: u64,
    mut each: impl FnMut(PathBuf) -> Result<(), E>,
) -> Result<(), E> {
    let file = match File::open(journal) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut frames = FrameReader::new(file)?;
    // Whatever a journal says: the files that grow are no placed ones.
    let mut growing: Vec<PathBuf> = Vec::new();
    loop {
        let start = frames.end;
        let Some((kind, body)) = frames.next()? else { return Ok(()) };
        if kind == kind::HEADER {
            let files = entry::decode::<Header>(body).map(|header| header.files()).unwrap_or_default();
            growing.extend(files.iter().map(|file| resolve(folder, file)));
        }
        if kind == kind::PLACED && start >= from {
            let files = entry::decode::<Vec<Placed>>(body).unwrap_or_default();
            let paths = files.iter().filter_map(|placed| placed.path(folder));
            paths.filter(|path| !growing.contains(path)).try_for_each(&mut each)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::{ItemId, SourceId};

    use super::*;
    use crate::journal::entry::Appended;
    use crate::journal::frame::{SEED, encode};

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
        let header = Header::new(&identity, &["failures.jsonl".into()]);
        let (mut bytes, crc) = encode(kind::HEADER, &header, SEED).unwrap();
        let item = ItemId { source: SourceId(0), index: 3 };
        let group = Group::new(vec![Appended { file: 0, bytes: 0, crc: 0 }], &[item], &[]);
        bytes.extend(encode(kind::GROUP, &group, crc).unwrap().0);
        std::fs::write(&journal, bytes).unwrap();
        match examine(dir.path(), &journal).unwrap() {
            Found::Run(run) => assert!(run.replayed.finished.contains(item)),
            other => panic!("{other:?}"),
        }
    }
}
