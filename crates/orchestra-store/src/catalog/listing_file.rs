//! The list on disk: written once as a stream, read as a stream from any place, also while it is written. Does not know how items are found.
//!
//! ```text
//! magic | record* | offset of every 1024th record, u64 each | how much was passed over for each reason, u64 each | trailer: offset of those, count, digest, magic
//! record: u32 locator length, u32 name length (high bit: the name is the end of the locator), locator, name unless it is that end
//! ```
//! All numbers are little-endian. The digest is SHA-256 over the records. A list whose writer was killed ends within the records, or has a
//! part of what follows them; neither names nor locators are empty, so that offsets are never taken for a record.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempPath};

use super::growth::{Growth, STRIDE};
use super::{ItemEntry, ListError, PassedOverCounts};
use crate::atomic::sync_folder_of;

const MAGIC: &[u8; 8] = b"orclist1";
const TRAILER_BYTES: u64 = 8 + 8 + 32 + 8;
/// Set in the name length of a record whose name is the end of its locator.
const IS_SUFFIX: u32 = 1 << 31;
/// Longest locator or name that is believed: far beyond what a file system allows.
const MAX_TEXT: u32 = 1 << 24;
/// A growing list is published when it has grown by as much as was published before, but by no less and no more than this: a short list
/// is seen complete or not at all, and a long one is forced to the disk about once per MiB.
const PUBLISHED_AT_ONCE: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ListingSummary {
    /// How many items.
    pub count: u64,
    /// SHA-256 over names and locators in order.
    pub digest: [u8; 32],
}

/// Writes a list. Without readers it appears under its name when it is complete; else with its first published items, and grows there.
pub(crate) struct ListingWriter {
    target: PathBuf,
    out: BufWriter<File>,
    /// The name of the file, as long as it is not the target's.
    temporary: Option<TempPath>,
    offset: u64,
    count: u64,
    /// What the source was given that is none of these.
    pub passed_over: PassedOverCounts,
    /// Offset of every `STRIDE`th record.
    index: Vec<u64>,
    digest: Sha256,
    readers: Option<Arc<Growth>>,
    published: u64,
}

impl ListingWriter {
    pub fn create(target: &Path, readers: Option<Arc<Growth>>) -> Result<Self, ListError> {
        let wrap = |error| ListError::ListFile { path: target.into(), doing: "write", error };
        let folder = folder_of(target);
        std::fs::create_dir_all(&folder).map_err(wrap)?;
        let (file, temporary) = NamedTempFile::new_in(&folder).map_err(wrap)?.into_parts();
        let mut out = BufWriter::new(file);
        out.write_all(MAGIC).map_err(wrap)?;
        let offset = MAGIC.len() as u64;
        Ok(Self {
            target: target.into(),
            out,
            temporary: Some(temporary),
            offset,
            count: 0,
            passed_over: PassedOverCounts::default(),
            index: Vec::new(),
            digest: Sha256::new(),
            readers,
            published: offset,
        })
    }

    /// Goes on with a list, complete or not: behind its last whole item.
    pub fn go_on(target: &Path, readers: Arc<Growth>) -> Result<Self, ListError> {
        let wrap = |error| ListError::ListFile { path: target.into(), doing: "write", error };
        let mut reader = ListingReader::open_unfinished(target)?;
        let (mut index, mut offset, mut digest) = (Vec::new(), MAGIC.len() as u64, Sha256::new());
        while reader.read()?.is_some() {
            if (reader.next - 1).is_multiple_of(STRIDE) {
                index.push(offset);
            }
            digest.update(reader.head);
            digest.update(&reader.text);
            offset += 8 + reader.text.len() as u64;
        }
        let mut file = File::options().write(true).open(target).map_err(wrap)?;
        file.set_len(offset).and_then(|()| file.seek(SeekFrom::End(0))).map_err(wrap)?;
        let (out, readers) = (BufWriter::new(file), Some(readers));
        let (target, count) = (target.into(), reader.next);
        let passed_over = PassedOverCounts::default();
        Ok(Self {
            target,
            out,
            temporary: None,
            offset,
            count,
            passed_over,
            index,
            digest,
            readers,
            published: offset,
        })
    }

    /// Lets readers have the list as it is, also where it is empty.
    pub fn begin(&mut self) -> Result<(), ListError> {
        self.settle().map_err(|e| self.error(e))?;
        self.published = self.offset;
        if let Some(readers) = &self.readers {
            readers.publish(self.count, self.passed_over, self.offset, &self.index, None);
        }
        Ok(())
    }

    pub fn push(&mut self, name: &str, locator: &Path) -> Result<(), ListError> {
        let locator = locator.as_os_str().as_bytes();
        let wrong = |why| self.error(io::Error::new(io::ErrorKind::InvalidInput, why));
        let length = |n: usize| {
            u32::try_from(n).ok().filter(|n| *n <= MAX_TEXT).ok_or("a locator or name is too long")
        };
        let (locator_len, name_len) =
            (length(locator.len()).map_err(wrong)?, length(name.len()).map_err(wrong)?);
        if locator_len == 0 || name_len == 0 {
            return Err(wrong("an item has no name"));
        }
        let is_suffix = locator.ends_with(name.as_bytes());
        let mut record = Vec::with_capacity(8 + locator.len() + name.len());
        record.extend_from_slice(&locator_len.to_le_bytes());
        record.extend_from_slice(&(name_len | if is_suffix { IS_SUFFIX } else { 0 }).to_le_bytes());
        record.extend_from_slice(locator);
        if !is_suffix {
            record.extend_from_slice(name.as_bytes());
        }
        if self.count.is_multiple_of(STRIDE) {
            self.index.push(self.offset);
        }
        self.digest.update(&record);
        self.out.write_all(&record).map_err(|e| self.error(e))?;
        self.offset += record.len() as u64;
        self.count += 1;
        let due = self.published.clamp(*PUBLISHED_AT_ONCE.start(), *PUBLISHED_AT_ONCE.end());
        if self.offset - self.published >= due { self.publish() } else { Ok(()) }
    }

    /// Items that were written.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Where the list appears.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Lets readers have what is written. It is durable before anyone numbers results by it.
    pub fn publish(&mut self) -> Result<(), ListError> {
        if self.readers.is_none() || self.offset == self.published { Ok(()) } else { self.begin() }
    }

    /// Makes the list durable, complete and under its name.
    pub fn finish(mut self) -> Result<ListingSummary, ListError> {
        let summary =
            ListingSummary { count: self.count, digest: std::mem::take(&mut self.digest).finalize().into() };
        self.write_end(summary).and_then(|()| self.settle()).map_err(|e| self.error(e))?;
        if let Some(readers) = &self.readers {
            readers.publish(self.count, self.passed_over, self.offset, &self.index, Some(summary.digest));
        }
        Ok(summary)
    }

    fn settle(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_data()?;
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        temporary.persist(&self.target).map_err(|e| e.error)?;
        sync_folder_of(&self.target)
    }

    fn write_end(&mut self, summary: ListingSummary) -> io::Result<()> {
        for offset in &self.index {
            self.out.write_all(&offset.to_le_bytes())?;
        }
        for n in self.passed_over.to_list() {
            self.out.write_all(&n.to_le_bytes())?;
        }
        self.out.write_all(&self.offset.to_le_bytes())?;
        self.out.write_all(&summary.count.to_le_bytes())?;
        self.out.write_all(&summary.digest)?;
        self.out.write_all(MAGIC)
    }

    fn error(&self, error: io::Error) -> ListError {
        ListError::ListFile { path: self.target.clone(), doing: "write", error }
    }
}

/// Reads a listing from front to back, from any item on, and no further than it has grown. After an error it gives nothing more.
#[derive(Debug)]
pub struct ListingReader {
    path: PathBuf,
    input: BufReader<File>,
    growth: Arc<Growth>,
    /// Items that have been seen to be there.
    count: u64,
    next: u64,
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
struct Record {
    locator_len: usize,
    name: Range<usize>,
}

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
        let (mut index, mut offset) = (Vec::new(), MAGIC.len() as u64);
        reader.count = u64::MAX;
        while let Ok(Some(_)) = reader.read() {
            if (reader.next - 1).is_multiple_of(STRIDE) {
                index.push(offset);
            }
            offset += 8 + reader.text.len() as u64;
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
        let mut reader =
            Self { path: path.into(), input, growth, count: 0, next: 0, head: [0; 8], text: Vec::new() };
        reader.input.seek(SeekFrom::Start(MAGIC.len() as u64)).map_err(|e| reader.error(e))?;
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

    /// The index of the item that `next` gives.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Goes to item `index`, reading at most 1023 records to get there. Beyond the last item: to the end.
    pub fn skip_to(&mut self, index: u64) -> Result<(), ListError> {
        let mark = self.growth.mark(index);
        if self.next < mark.first || index < self.next {
            self.input.seek(SeekFrom::Start(mark.offset)).map_err(|e| self.error(e))?;
            self.next = mark.first;
        }
        while self.next < index && self.read()?.is_some() {}
        Ok(())
    }

    /// The next item, without memory of its own: its name and its locator. `None` behind the last, as long as there is no further one.
    pub fn read(&mut self) -> Result<Option<(&str, &[u8])>, ListError> {
        if self.next >= self.count {
            self.count = self.count.max(self.growth.count());
            if self.next >= self.count {
                return Ok(None);
            }
        }
        let next = std::mem::replace(&mut self.next, u64::MAX) + 1;
        let Record { locator_len, name } = self.read_record()?;
        // None of ours has a NUL, and where lists are joined it ends a name.
        if self.text.contains(&0) {
            return Err(self.damaged("a locator or name holds a NUL byte"));
        }
        let (locator, name) = (&self.text[..locator_len], &self.text[name]);
        let Ok(name) = str::from_utf8(name) else {
            return Err(self.damaged("a name is no text"));
        };
        self.next = next;
        Ok(Some((name, locator)))
    }

    fn read_record(&mut self) -> Result<Record, ListError> {
        let mut head = [0; 8];
        self.input.read_exact(&mut head).map_err(|e| self.error(e))?;
        let locator_len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let name_word = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let name_len = name_word & !IS_SUFFIX;
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
        Ok(Record { locator_len, name: text_len - name_len..text_len })
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

/// The folder in which a file lies or will lie.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.into(),
        _ => ".".into(),
    }
}

fn le_u64(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(target: &Path, names: impl Iterator<Item = String>) -> ListingSummary {
        let mut writer = ListingWriter::create(target, None).unwrap();
        for name in names {
            writer.push(&name, &Path::new("/data").join(&name)).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn any_place_can_be_reached_without_reading_what_comes_before() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("items");
        let summary = write(&list, (0..5000).map(|n| format!("{n}.png")));
        for at in [0u64, 1, 1023, 1024, 1025, 4095, 4999] {
            let mut reader = ListingReader::open(&list).unwrap();
            assert_eq!(reader.summary(), Some(summary));
            reader.skip_to(at).unwrap();
            let item = reader.next().unwrap().unwrap();
            assert_eq!(item.name, format!("{at}.png"));
            assert_eq!(item.locator, PathBuf::from(format!("/data/{at}.png")));
            assert_eq!(reader.n_items() - reader.next_index(), 4999 - at);
        }
        let mut reader = ListingReader::open(&list).unwrap();
        reader.skip_to(5000).unwrap();
        assert!(reader.next().is_none());
    }

    #[test]
    fn a_name_that_is_not_the_end_of_its_locator_survives() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("items");
        let mut writer = ListingWriter::create(&list, None).unwrap();
        writer.push(r"a\xFF", Path::new("/elsewhere/b")).unwrap();
        writer.finish().unwrap();
        let item = ListingReader::open(&list).unwrap().next().unwrap().unwrap();
        assert_eq!(item, ItemEntry { name: r"a\xFF".into(), locator: "/elsewhere/b".into() });
    }

    #[test]
    fn every_truncation_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("items");
        write(&list, (0..3).map(|n| format!("{n}.png")));
        let bytes = std::fs::read(&list).unwrap();
        for len in 0..bytes.len() {
            std::fs::write(&list, &bytes[..len]).unwrap();
            assert!(ListingReader::open(&list).is_err(), "{len} of {} bytes were accepted", bytes.len());
        }
    }

    #[test]
    fn a_name_or_locator_with_a_nul_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("items");
        for (name, locator) in [("a\0b", "/p/ab"), ("ab", "/p\0/ab")] {
            let mut writer = ListingWriter::create(&list, None).unwrap();
            writer.push(name, Path::new(locator)).unwrap();
            writer.finish().unwrap();
            assert!(matches!(
                ListingReader::open(&list).unwrap().next(),
                Some(Err(ListError::Damaged { .. }))
            ));
        }
    }

    #[test]
    fn an_empty_list_reads_as_empty() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("items");
        assert_eq!(write(&list, std::iter::empty()).count, 0);
        assert!(ListingReader::open(&list).unwrap().next().is_none());
    }
}
