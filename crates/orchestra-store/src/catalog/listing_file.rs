//! Writes a list on disk as a stream. Does not know how items are found.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempPath};

use super::growth::{Growth, STRIDE};
use super::listed_file::ListedFile;
use super::listing_reader::{IS_FILE, IS_SUFFIX, ListingSummary, MAGIC, MAX_TEXT};
use super::{ListError, PassedOverCounts};
use crate::atomic::sync_folder_of;

/// A growing list is published when it has grown by as much as was published before, but by no less and no more than this: a short list
/// is seen complete or not at all, and a long one is forced to the disk about once per MiB.
const PUBLISHED_AT_ONCE: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;

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

    pub fn push(&mut self, name: &str, locator: &Path) -> Result<(), ListError> {
        let record = self.record(name, locator.as_os_str().as_bytes(), 0)?;
        if self.count.is_multiple_of(STRIDE) {
            self.index.push(self.offset);
        }
        self.count += 1;
        self.write(&record)
    }

    /// All items of a file of this name are written. Its digest is made here.
    pub fn push_file(&mut self, name: &str, path: &Path, file: ListedFile) -> Result<(), ListError> {
        let file = ListedFile { digest: file.digest(self.digest.clone(), name, path), ..file };
        let record = self.record(name, &file.locator(path), IS_FILE)?;
        self.write(&record)
    }

    fn record(&self, name: &str, locator: &[u8], flags: u32) -> Result<Vec<u8>, ListError> {
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
        record.extend_from_slice(&(name_len | flags | if is_suffix { IS_SUFFIX } else { 0 }).to_le_bytes());
        record.extend_from_slice(locator);
        if !is_suffix {
            record.extend_from_slice(name.as_bytes());
        }
        Ok(record)
    }

    fn write(&mut self, record: &[u8]) -> Result<(), ListError> {
        self.digest.update(record);
        self.out.write_all(record).map_err(|e| self.error(e))?;
        self.offset += record.len() as u64;
        let due = self.published.clamp(*PUBLISHED_AT_ONCE.start(), *PUBLISHED_AT_ONCE.end());
        if self.offset - self.published >= due { self.publish() } else { Ok(()) }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Lets readers have what is written. It is durable before anyone numbers results by it.
    pub fn publish(&mut self) -> Result<(), ListError> {
        if self.readers.is_none() || self.offset == self.published {
            return Ok(());
        }
        self.settle().map_err(|e| self.error(e))?;
        self.published = self.offset;
        if let Some(readers) = &self.readers {
            readers.publish(self.count, self.passed_over, self.offset, &self.index, None);
        }
        Ok(())
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

/// The folder in which a file lies or will lie.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.into(),
        _ => ".".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ItemEntry;
    use super::*;
    use crate::catalog::ListingReader;

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
