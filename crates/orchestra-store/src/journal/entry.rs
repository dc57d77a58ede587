//! The journal's entries as data, and finished items as runs of numbers. Reads and writes nothing.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};
use orchestra_core::wire::decode_within;
use orchestra_core::{ItemId, LeftOutCount, SourceId};

use crate::identity::RunIdentity;
use crate::journal::finished::{FinishedSet, ItemEnding};
use crate::journal::placed::PlacedRecord;
use crate::layout::PRIVATE;

/// Raised with every change of an entry.
pub(crate) const FORMAT: u32 = 4;

/// What a frame holds: its first byte.
pub(crate) mod kind {
    /// `Header`; the first frame and no other.
    pub(crate) const HEADER: u8 = 1;
    pub(crate) const GROUP: u8 = 2;
    /// `()`: all before it is durable, files and journal.
    pub(crate) const SYNCED: u8 = 3;
    /// `i32`, the run's exit code: the run is over, and all before it is durable.
    pub(crate) const FINISHED: u8 = 4;
    /// `RunIdentity`: the run goes on, under this identity.
    pub(crate) const RESUMED: u8 = 5;
    /// `Vec<PlacedRecord>`: files of the group whose frame follows; those of the last such frame may never have been written.
    pub(crate) const PLACED: u8 = 6;
    /// `Sealed`: the rows of a file lie in a part file or in a state now, and all before it is durable. A `PLACED` frame that names the part stands before it.
    pub(crate) const SEALED: u8 = 7;
}

#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct JournalHeader {
    pub(crate) format: u32,
    pub(crate) identity: RunIdentity,
    /// The files as the caller named them, relative to the output folder or absolute, as the system's bytes.
    files: Vec<Vec<u8>>,
}

impl JournalHeader {
    pub(crate) fn new(identity: &RunIdentity, files: &[PathBuf]) -> Self {
        let files = files.iter().map(|f| f.as_os_str().as_bytes().to_vec()).collect();
        Self { format: FORMAT, identity: identity.clone(), files }
    }

    /// Reads the first frame; else why it is none.
    pub(crate) fn read(frame: Option<(u8, &[u8])>) -> Result<Self, String> {
        match frame.filter(|(kind, _)| *kind == kind::HEADER).and_then(|(_, body)| decode::<Self>(body)) {
            Some(header) if header.format == FORMAT => Ok(header),
            Some(Self { format, .. }) => {
                Err(format!("it has format {format}, this version reads format {FORMAT}"))
            }
            None => Err("its first entry is damaged or of another version".to_owned()),
        }
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.files.iter().map(|f| PathBuf::from(OsString::from_vec(f.clone()))).collect()
    }
}

#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct CommitGroup {
    pub(crate) appended: Vec<Appended>,
    done: Vec<ItemRange>,
    failed: Vec<ItemRange>,
    pub(crate) left_out: Vec<LeftOutCount>,
}

/// What a commit added to a file.
#[derive(Debug, Clone, Copy, Encode, Decode)]
pub(crate) struct Appended {
    /// The file, by its place in the header.
    pub(crate) file: u16,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

/// A file of rows that begins anew, because all that it held lies in a part file or a state.
#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct Sealed {
    /// The file of rows, by its place in the header.
    pub(crate) file: u16,
    /// How many bytes it held.
    pub(crate) bytes: u64,
    /// The part file, or the state.
    pub(crate) part: PlacedRecord,
    /// What the caller knows it by.
    pub(crate) note: Vec<u8>,
}

/// Consecutive items of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct ItemRange {
    source: SourceId,
    first: u64,
    count: u64,
}

impl CommitGroup {
    /// `done` and `failed` are sorted and without doubles.
    pub(crate) fn new(
        appended: Vec<Appended>,
        done: &[ItemId],
        failed: &[ItemId],
        left_out: Vec<LeftOutCount>,
    ) -> Self {
        Self { appended, done: spans(done), failed: spans(failed), left_out }
    }

    /// Whether every number in it is one that a sane journal has.
    pub(crate) fn is_sane(&self, n_files: usize) -> bool {
        let files_known = self.appended.iter().all(|a| usize::from(a.file) < n_files);
        files_known && self.done.iter().chain(&self.failed).all(ItemRange::is_sane)
    }

    /// Takes failures back, with all that it appended to files that begin anew; `false` where nothing is left.
    pub(crate) fn without_failures(&mut self, begins_anew: impl Fn(u16) -> bool) -> bool {
        self.appended.retain(|appended| !begins_anew(appended.file));
        self.failed.clear();
        !self.appended.is_empty() || !self.done.is_empty()
    }

    /// Marks its items as finished.
    pub(crate) fn add_to(&self, finished: &mut FinishedSet) {
        for (spans, ended) in [(&self.done, ItemEnding::Done), (&self.failed, ItemEnding::Failed)] {
            for s in spans {
                finished.insert(s.source, s.first, s.count, ended);
            }
        }
    }
}

impl ItemRange {
    fn is_sane(&self) -> bool {
        self.first.checked_add(self.count).is_some()
    }
}

/// Whether a file of the header gathers rows for parts: those in the private folder do.
pub(crate) fn is_of_rows(file: &Path) -> bool {
    file.starts_with(PRIVATE)
}

/// Where a file of the header lies.
pub(crate) fn resolve(folder: &Path, file: &Path) -> PathBuf {
    folder.join(file)
}

/// Reads the body of a frame; `None` if it is not that.
pub(crate) fn decode<T: Decode<()>>(body: &[u8]) -> Option<T> {
    // bincode allocates what a list claims to hold before it reads it, up to a limit that has to be a constant. No entry needs more than
    // 24 times its length: an empty string is one byte of it.
    match body.len() {
        n if n <= 1 << 16 => decode_within::<T, { 1 << 22 }>(body).ok(),
        n if n <= 1 << 22 => decode_within::<T, { 1 << 28 }>(body).ok(),
        n if n <= 1 << 28 => decode_within::<T, { 1 << 34 }>(body).ok(),
        _ => decode_within::<T, { 1 << 38 }>(body).ok(),
    }
}

fn spans(items: &[ItemId]) -> Vec<ItemRange> {
    let mut spans: Vec<ItemRange> = Vec::new();
    for item in items {
        match spans.last_mut() {
            Some(s) if s.source == item.source && s.first + s.count == item.index => s.count += 1,
            _ => spans.push(ItemRange { source: item.source, first: item.index, count: 1 }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(source: u16, index: u64) -> ItemId {
        ItemId { source: SourceId(source), index }
    }

    #[test]
    fn neighbours_of_one_source_share_a_span() {
        let spans = spans(&[item(0, 3), item(0, 4), item(0, 6), item(1, 7), item(1, 8)]);
        let plain: Vec<_> = spans.iter().map(|s| (s.source.0, s.first, s.count)).collect();
        assert_eq!(plain, [(0, 3, 2), (0, 6, 1), (1, 7, 2)]);
    }

    #[test]
    fn an_entry_that_claims_to_hold_more_than_there_is_costs_nothing() {
        // 2^62 spans, of which there is none.
        let claim = [&[0, 253][..], &(1_u64 << 62).to_le_bytes()].concat();
        assert!(decode::<CommitGroup>(&claim).is_none());
        let spans = vec![ItemRange { source: SourceId(0), first: 0, count: 1 }; 100_000];
        let group =
            CommitGroup { appended: Vec::new(), done: spans, failed: Vec::new(), left_out: Vec::new() };
        let body = orchestra_core::wire::encode(&group).unwrap();
        assert_eq!(decode::<CommitGroup>(&body).map(|g| g.done.len()), Some(100_000));
    }

    #[test]
    fn an_entry_with_numbers_out_of_range_is_not_sane() {
        assert!(CommitGroup::new(vec![], &[item(0, u64::MAX - 1)], &[], vec![]).is_sane(0));
        assert!(!CommitGroup::new(vec![], &[], &[item(0, u64::MAX)], vec![]).is_sane(0));
        let appended = vec![Appended { file: 1, bytes: 0, crc: 0 }];
        assert!(!CommitGroup::new(appended, &[], &[], vec![]).is_sane(1));
    }
}
