//! The list on disk, and how it is read: as a stream from any place, also while it is written.
//!
//! ```text
//! magic | record* | offset of every 1024th record, u64 each | how much was passed over for each reason, u64 each | trailer: offset of those, count, digest, magic
//! record: u32 locator length, u32 name length (high bit: the name is the end of the locator), locator, name unless it is that end
//! ```
//! A record whose name length has the second highest bit is no item, but a file whose items all stand before it, see [`ListedFile`].
//! All numbers are little-endian. The digest is SHA-256 over the records. A list whose writer was killed ends within the records, or has a
//! part of what follows them; neither names nor locators are empty, so that offsets are never taken for a record.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::growth::{Growth, ListPosition, STRIDE};
use super::listed_file::ListedFile;
use super::{ItemEntry, ListError, PassedOverCounts};

pub(super) const MAGIC: &[u8; 8] = b"orclist1";
const TRAILER_BYTES: u64 = 8 + 8 + 32 + 8;
/// Set in the name length of a record whose name is the end of its locator.
pub(super) const IS_SUFFIX: u32 = 1 << 31;
/// Set in the name length of a record that is a file.
pub(super) const IS_FILE: u32 = 1 << 30;
/// Longest locator or name that is believed: far beyond what a file system allows.
pub(super) const MAX_TEXT: u32 = 1 << 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ListingSummary {
    /// How many items.
    pub count: u64,
    /// SHA-256 over all records.
    pub digest: [u8; 32],
}

/// Reads a listing from front to back, from any item on, and no further than it has grown. After an error it gives nothing more.
#[derive(Debug)]
pub struct ListingReader {
    path: PathBuf,
    input: BufReader<File>,
    growth: Arc<Growth>,
    /// As far as it has been seen to be there.
    seen: ListPosition,
    pub(super) next: u64,
    /// Where the next record begins; after an error, behind all.
    pub(super) offset: u64,
    /// The lengths of the record that was read last, as they are written.
    head: [u8; 8],
    text: Vec<u8>,
}

/// Bytes of a file up to its first hole: a length that takes no room on the disk proves nothing, and all that a list claims is bounded by it. Moves
/// the place where the file is read.
fn written(file: &File) -> u64 {
    let size = file.metadata().map_or(0, |meta| meta.len());
    // Where the file system does not tell, there is none.
    rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(0)).unwrap_or(size).min(size)
}

/// Where locator and name lie in the text of a record: the locator from its beginning.
pub(super) struct ListRecord {
    locator_len: usize,
    name: Range<usize>,
    pub(super) is_file: bool,
}

/// The name and path of a file, all of whose items come before it.
pub(super) type FileEntry<'a> = (&'a str, &'a Path, ListedFile);

impl ListingReader {
    /// Opens a complete list at its first item.
    pub fn open(path: &Path) -> Result<Self, ListError> {
        let wrap = |error| ListError::ListFile { path: path.into(), doing: "read", error };
        let damaged = |reason| ListError::Damaged { path: path.into(), reason };
        let mut input = File::open(path).map_err(wrap)?;
        let size = input.metadata().map_err(wrap)?.len();
        if written(&input) < size {
            return Err(damaged("it has a hole, which no run has left in it"));
        }
        if size < MAGIC.len() as u64 + TRAILER_BYTES {
            return Err(damaged("it is too short"));
        }
        let mut magic = [0; 8];
        input.rewind().and_then(|()| input.read_exact(&mut magic)).map_err(wrap)?;
        input.seek(SeekFrom::Start(size - TRAILER_BYTES)).map_err(wrap)?;
        let mut trailer = [0; TRAILER_BYTES as usize];
        input.read_exact(&mut trailer).map_err(wrap)?;
        if &magic != MAGIC || &trailer[48..] != MAGIC {
            return Err(damaged("it is cut short, or no list of ours"));
        }
        let index_at = le_u64(&trailer[..8]);
        let count = le_u64(&trailer[8..16]);
        let index_end = count.div_ceil(STRIDE).checked_mul(8).and_then(|n| n.checked_add(index_at));
        // An older program counted nothing that was passed over, or knew fewer reasons.
        let counts = index_end.and_then(|end| (size - TRAILER_BYTES).checked_sub(end));
        if counts.is_none_or(|bytes| !bytes.is_multiple_of(8)) {
            return Err(damaged("its index does not fit its size"));
        }
        let mut index = vec![0; (size - TRAILER_BYTES - index_at) as usize];
        input.seek(SeekFrom::Start(index_at)).map_err(wrap)?;
        input.read_exact(&mut index).map_err(wrap)?;
        let mut index: Vec<u64> = index.chunks_exact(8).map(le_u64).collect();
        let counts = index.split_off(count.div_ceil(STRIDE) as usize);
        let passed_over = PassedOverCounts::from_list(counts.into_iter());
        let mut digest = [0; 32];
        digest.copy_from_slice(&trailer[16..48]);
        let growth = Growth::default();
        growth.publish(count, passed_over, index_at, &index, Some(digest));
        Self::follow(path, Arc::new(growth))
    }

    /// Opens a list that may be incomplete, because its writer was killed: at its first item, and with all that are whole.
    pub fn open_unfinished(path: &Path) -> Result<Self, ListError> {
        match Self::open(path) {
            Err(ListError::Damaged { .. }) => {}
            other => return other,
        }
        let growth = Arc::new(Growth::default());
        let mut reader = Self::follow(path, Arc::clone(&growth))?;
        let mut magic = [0; 8];
        if reader.input.rewind().and_then(|()| reader.input.read_exact(&mut magic)).is_err()
            || &magic != MAGIC
        {
            return Err(reader.damaged("it is no list of ours"));
        }
        let (mut index, mut offset) = (Vec::new(), reader.offset);
        reader.seen = ListPosition { first: u64::MAX, offset: u64::MAX };
        while let Ok(Some(record)) = reader.read_record() {
            if !record.is_file && (reader.next - 1).is_multiple_of(STRIDE) {
                index.push(offset);
            }
            offset = reader.offset;
            growth.publish(reader.next, PassedOverCounts::default(), offset, &index, None);
        }
        Self::follow(path, growth)
    }

    /// Opens a list at its first item, as far as it has grown and will grow.
    pub(crate) fn follow(path: &Path, growth: Arc<Growth>) -> Result<Self, ListError> {
        let input = File::open(path).map_err(|error| ListError::ListFile {
            path: path.into(),
            doing: "read",
            error,
        })?;
        let input = BufReader::new(input);
        let offset = MAGIC.len() as u64;
        let mut reader = Self {
            path: path.into(),
            input,
            growth,
            seen: ListPosition { first: 0, offset },
            next: 0,
            offset,
            head: [0; 8],
            text: Vec::new(),
        };
        reader.input.seek(SeekFrom::Start(offset)).map_err(|e| reader.error(e))?;
        Ok(reader)
    }

    pub(crate) fn growth(&self) -> &Arc<Growth> {
        &self.growth
    }

    /// What the list holds, once it is complete.
    pub fn summary(&self) -> Option<ListingSummary> {
        self.growth.digest().map(|digest| ListingSummary { count: self.n_items(), digest })
    }

    /// How many items the list holds up to now.
    pub fn n_items(&self) -> u64 {
        self.growth.count()
    }

    /// Goes to the first record.
    pub(crate) fn rewind(&mut self) -> Result<(), ListError> {
        (self.next, self.offset) = (0, MAGIC.len() as u64);
        self.input.seek(SeekFrom::Start(self.offset)).map(drop).map_err(|e| self.error(e))
    }

    /// The index of the item that `next` gives.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Goes to item `index`, reading at most 1023 records to get there. Beyond the last item: to the end.
    pub fn skip_to(&mut self, index: u64) -> Result<(), ListError> {
        let mark = self.growth.mark(index);
        if self.next < mark.first || index < self.next {
            self.input.seek(SeekFrom::Start(mark.offset)).map_err(|e| self.error(e))?;
            (self.next, self.offset) = (mark.first, mark.offset);
        }
        while self.next < index && self.read()?.is_some() {}
        Ok(())
    }

    /// The next item, without memory of its own: its name and its locator. `None` behind the last, as long as there is no further one.
    pub fn read(&mut self) -> Result<Option<(&str, &[u8])>, ListError> {
        while let Some(ListRecord { locator_len, name, is_file }) = self.read_record()? {
            if !is_file {
                // A record was read, so that its name is text.
                let name = str::from_utf8(&self.text[name]).unwrap_or_default();
                return Ok(Some((name, &self.text[..locator_len])));
            }
        }
        Ok(None)
    }

    /// The file that the record is that was read last, if it is one.
    pub(super) fn file(&self, record: &ListRecord) -> Result<Option<FileEntry<'_>>, ListError> {
        if !record.is_file {
            return Ok(None);
        }
        let name = str::from_utf8(&self.text[record.name.clone()]).unwrap_or_default();
        match ListedFile::read(&self.text[..record.locator_len]) {
            Some((path, file)) => Ok(Some((name, path, file))),
            None => Err(self.damaged("a file has no version")),
        }
    }

    pub(super) fn record(&self) -> [&[u8]; 2] {
        [&self.head, &self.text]
    }

    pub(super) fn read_record(&mut self) -> Result<Option<ListRecord>, ListError> {
        if self.offset >= self.seen.offset {
            if self.offset == u64::MAX {
                return Ok(None);
            }
            self.seen = self.growth.mark(u64::MAX);
            if self.offset >= self.seen.offset {
                let is_short = self.next < self.seen.first;
                return if is_short {
                    Err(self.damaged("it has fewer items than it says"))
                } else {
                    Ok(None)
                };
            }
        }
        let at = std::mem::replace(&mut self.offset, u64::MAX);
        let record = self.next_record()?;
        if !record.is_file {
            if self.next >= self.seen.first {
                return Err(self.damaged("it has more items than it says"));
            }
            self.next += 1;
        }
        self.offset = at + 8 + self.text.len() as u64;
        Ok(Some(record))
    }

    fn next_record(&mut self) -> Result<ListRecord, ListError> {
        let mut head = [0; 8];
        self.input.read_exact(&mut head).map_err(|e| self.error(e))?;
        let locator_len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let name_word = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let name_len = name_word & !(IS_SUFFIX | IS_FILE);
        if !(1..=MAX_TEXT).contains(&locator_len) || !(1..=MAX_TEXT).contains(&name_len) {
            return Err(self.damaged("a record has an impossible length"));
        }
        let is_suffix = name_word & IS_SUFFIX != 0;
        if is_suffix && name_len > locator_len {
            return Err(self.damaged("a name is longer than its locator"));
        }
        let (locator_len, name_len) = (locator_len as usize, name_len as usize);
        let text_len = if is_suffix { locator_len } else { locator_len + name_len };
        self.text.resize(text_len, 0);
        self.input.read_exact(&mut self.text).map_err(|e| self.error(e))?;
        self.head = head;
        // None of ours has a NUL, and where lists are joined it ends a name.
        if self.text.contains(&0) {
            return Err(self.damaged("a locator or name holds a NUL byte"));
        }
        let name = text_len - name_len..text_len;
        if str::from_utf8(&self.text[name.clone()]).is_err() {
            return Err(self.damaged("a name is no text"));
        }
        Ok(ListRecord { locator_len, name, is_file: name_word & IS_FILE != 0 })
    }

    fn error(&self, error: io::Error) -> ListError {
        ListError::ListFile { path: self.path.clone(), doing: "read", error }
    }

    fn damaged(&self, reason: &'static str) -> ListError {
        ListError::Damaged { path: self.path.clone(), reason }
    }
}

impl Iterator for ListingReader {
    type Item = Result<ItemEntry, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read().transpose()?;
        Some(item.map(|(name, locator)| ItemEntry {
            name: name.to_owned(),
            locator: OsStr::from_bytes(locator).into(),
        }))
    }
}

fn le_u64(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
