//! Reads the directories of a TIFF, and of an EXIF block, which is one: where pages are, and numbers of tags. It decodes no pixels.

use std::collections::HashSet;

use crate::error::MediaError;
use crate::format::Format;

const NEW_SUBFILE_TYPE: u16 = 254;
const SUB_DIRECTORIES: u16 = 330;
const EXIF: u16 = 34665;
const GPS: u16 = 34853;
/// Tags of places and lengths of what lies outside of the directories: strips, tiles, a thumbnail.
const DATA: [(u16, u16); 3] = [(273, 279), (324, 325), (513, 514)];
/// Bits of that tag: a smaller copy of another page, and a mask of one.
const NO_PAGE: u64 = 0b101;

/// The bytes of a file, and how it writes numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Directories<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
    /// BigTIFF has all counts and offsets in 8 bytes.
    is_wide: bool,
}

#[derive(Debug)]
pub(crate) struct Directory<'a> {
    file: Directories<'a>,
    pub(crate) at: u64,
    entries: Vec<DirectoryEntry>,
    /// The byte behind its last one.
    end: usize,
    /// Where the next one is, 0 for none. Some EXIF blocks end before it.
    next: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectoryEntry {
    pub(crate) tag: u16,
    kind: u16,
    count: u64,
    pub(crate) at: usize,
}

impl DirectoryEntry {
    pub(crate) fn size(self) -> usize {
        match self.kind {
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16..=18 => 8,
            _ => 1,
        }
    }

    pub(crate) fn is_byte(self) -> bool {
        self.kind == 1
    }

    fn is_signed(self) -> bool {
        matches!(self.kind, 6 | 8 | 9 | 17)
    }

    fn is_integer(self) -> bool {
        self.is_signed() || matches!(self.kind, 1 | 3 | 4 | 13 | 16 | 18)
    }
}

impl<'a> Directories<'a> {
    /// `None`: the header is none of a TIFF.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Directories<'a>> {
        let (is_big_endian, is_wide) = match bytes.first_chunk()? {
            b"II*\0" => (false, false),
            b"MM\0*" => (true, false),
            b"II+\0" => (false, true),
            b"MM\0+" => (true, true),
            _ => return None,
        };
        Some(Directories { bytes, is_big_endian, is_wide })
    }

    /// The two bytes that say how numbers are written.
    pub(crate) fn start(self) -> &'a [u8] {
        &self.bytes[..2]
    }

    fn first_at(self) -> Option<u64> {
        if self.is_wide { self.number(8, 8) } else { self.number(4, 4) }
    }

    pub(crate) fn first(self) -> Option<Directory<'a>> {
        self.directory(self.first_at()?)
    }

    /// The directories of all pages, in order. Smaller copies and masks of pages are none, unless there is nothing else. A camera has a copy first, and the
    /// picture within its directory.
    pub(crate) fn pages(self) -> Result<Vec<Directory<'a>>, MediaError> {
        let mut found = self.all(&[SUB_DIRECTORIES])?;
        let is_page =
            |page: &Directory<'_>| page.number(NEW_SUBFILE_TYPE).is_none_or(|kind| kind & NO_PAGE == 0);
        if found.iter().any(is_page) {
            found.retain(is_page);
        }
        Ok(found)
    }

    /// The byte behind the last one that a directory names. `None`: one of them is not whole.
    pub(crate) fn end(self) -> Option<usize> {
        let all = self.all(&[SUB_DIRECTORIES, EXIF, GPS]).ok()?;
        all.iter().map(Directory::end_of_data).max()
    }

    /// The directories of the chain, in order, each followed by those that its tags `within` name.
    fn all(self, within: &[u16]) -> Result<Vec<Directory<'a>>, MediaError> {
        let cut = || MediaError::Truncated { format: Format::Tiff, what: "it ends inside a directory" };
        // The next one is the last.
        let mut waiting = vec![self.first_at().ok_or_else(cut)?];
        let (mut found, mut seen, mut n_read) = (Vec::new(), HashSet::new(), 0);
        while let Some(at) = waiting.pop() {
            // 0 names none, and directories that go round in a circle have been seen.
            if at == 0 || !seen.insert(at) {
                continue;
            }
            let directory = self.directory(at).ok_or_else(cut)?;
            waiting.push(directory.next.ok_or_else(cut)?);
            n_read += directory.entries.len();
            for tag in within {
                let inner = directory.numbers(*tag).unwrap_or_default();
                n_read += inner.len();
                waiting.extend(inner.iter().rev());
            }
            // A small file of directories that lie over each other would take any memory.
            if n_read > self.bytes.len() {
                let reason = "its directories lie over each other".to_owned();
                return Err(MediaError::Broken { format: Format::Tiff, reason });
            }
            found.push(directory);
        }
        if found.is_empty() { Err(cut()) } else { Ok(found) }
    }

    pub(crate) fn directory(self, at: u64) -> Option<Directory<'a>> {
        let (n_bytes, entry, wide) = if self.is_wide { (8, 20, 8) } else { (2, 12, 4) };
        let begin = usize::try_from(at).ok()?;
        let n = usize::try_from(self.number(begin, n_bytes)?).ok()?;
        let first = begin.checked_add(n_bytes)?;
        let end = first.checked_add(n.checked_mul(entry)?)?;
        let next = self.number(end, wide);
        let entries = (0..n).map(|index| {
            let at = first + index * entry;
            let mut found = DirectoryEntry {
                tag: u16::try_from(self.number(at, 2)?).ok()?,
                kind: u16::try_from(self.number(at + 2, 2)?).ok()?,
                count: self.number(at + 4, wide)?,
                at: at + 4 + wide,
            };
            // What does not fit into the entry is elsewhere.
            if found.count.saturating_mul(found.size() as u64) > wide as u64 {
                found.at = usize::try_from(self.number(found.at, wide)?).ok()?;
            }
            Some(found)
        });
        let entries = entries.collect::<Option<_>>()?;
        Some(Directory { file: self, at, entries, end: end.saturating_add(wide), next })
    }

    fn number(self, at: usize, length: usize) -> Option<u64> {
        let digits = self.bytes.get(at..at.checked_add(length)?)?;
        let one = |n: u64, byte: &u8| n << 8 | u64::from(*byte);
        Some(if self.is_big_endian { digits.iter().fold(0, one) } else { digits.iter().rev().fold(0, one) })
    }

    /// The lowest `length` bytes of a number, as the file writes them.
    pub(crate) fn bytes_of(self, number: u64, length: usize) -> Vec<u8> {
        if self.is_big_endian {
            number.to_be_bytes()[8 - length..].to_vec()
        } else {
            number.to_le_bytes()[..length].to_vec()
        }
    }
}

impl Directory<'_> {
    /// Checks that no entry claims more values than the file has bytes: the decoder takes memory for what is claimed before it reads it.
    pub(crate) fn check_claims(&self) -> Result<(), MediaError> {
        for entry in &self.entries {
            if entry.count.saturating_mul(entry.size() as u64) > self.file.bytes.len() as u64 {
                let reason = format!(
                    "its entry {} claims {} values, more than the file can hold",
                    entry.tag, entry.count
                );
                return Err(MediaError::Broken { format: Format::Tiff, reason });
            }
        }
        Ok(())
    }

    /// The byte behind the last one that it names.
    fn end_of_data(&self) -> usize {
        let end = |at: u64, length: u64| usize::try_from(at.saturating_add(length)).unwrap_or(usize::MAX);
        let values = self
            .entries
            .iter()
            .map(|entry| end(entry.at as u64, entry.count.saturating_mul(entry.size() as u64)));
        let data = DATA.iter().flat_map(|(places, lengths)| {
            let all = |tag| self.numbers(tag).unwrap_or_default();
            all(*places).into_iter().zip(all(*lengths)).map(|(at, length)| end(at, length))
        });
        values.chain(data).fold(self.end, usize::max)
    }

    pub(crate) fn entry(&self, tag: u16) -> Option<DirectoryEntry> {
        self.entries.iter().find(|entry| entry.tag == tag).copied()
    }

    /// All values of a tag, which are whole numbers of any type. `None`: there is no such tag, or its values are others or are not all there.
    pub(crate) fn numbers(&self, tag: u16) -> Option<Vec<u64>> {
        let entry = self.entry(tag).filter(|entry| entry.is_integer())?;
        let count = usize::try_from(entry.count).ok()?;
        // So that nothing is taken for what is not there.
        let end = entry.at.checked_add(count.checked_mul(entry.size())?)?;
        self.file.bytes.get(entry.at..end)?;
        (0..count).map(|index| self.value(entry, index)).collect()
    }

    /// The values of a tag of single bytes.
    pub(crate) fn bytes(&self, tag: u16) -> Option<&[u8]> {
        let entry = self.entry(tag).filter(|entry| entry.size() == 1)?;
        let count = usize::try_from(entry.count).ok()?;
        self.file.bytes.get(entry.at..entry.at.checked_add(count)?)
    }

    /// The first value of a tag.
    pub(crate) fn number(&self, tag: u16) -> Option<u64> {
        let entry = self.entry(tag).filter(|entry| entry.is_integer() && entry.count > 0)?;
        self.value(entry, 0)
    }

    /// `None` for what lies behind the end, and for a number below 0.
    fn value(&self, entry: DirectoryEntry, index: usize) -> Option<u64> {
        let value = self.file.number(entry.at.checked_add(index * entry.size())?, entry.size())?;
        let is_negative = entry.is_signed() && value >> (entry.size() * 8 - 1) != 0;
        (!is_negative).then_some(value)
    }
}
