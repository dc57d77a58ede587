//! The members of a zip archive: where each lies, and its bytes. The directory is read as a stream, so that no count that it states takes
//! memory; no size is believed before it is checked, and a member gives no more bytes than its entry says.

use std::io::{self, Read, Seek, SeekFrom};

use flate2::read::DeflateDecoder;

use super::input::{Input, Stream};
use super::read_file::or_no_memory;

/// The record at the end of an archive, without its comment.
const END: u64 = 22;
/// An entry of the directory without its name.
const ENTRY: usize = 46;
/// What stands in front of the bytes of a member, without its name.
pub const LOCAL: usize = 30;
/// Its name, and what programs put behind that, have no more as a rule.
const USUAL_NAME: u64 = 256;
/// Deflate makes no more of a byte.
pub const MOST_PER_BYTE: u64 = 1032;

/// What a member is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Stored,
    Deflated,
    /// Encrypted, or compressed by something else: its number.
    Other(u16),
}

/// In place of the number of a method: encrypted.
const ENCRYPTED: u16 = u16::MAX;

/// An entry of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: Vec<u8>,
    pub place: Place,
}

/// Where a member lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where its local header stands.
    pub header: u64,
    /// Bytes in the archive.
    pub packed: u64,
    /// Bytes of its content.
    pub len: u64,
    pub method: Method,
    /// CRC-32 of its content.
    pub crc: u32,
}

impl Place {
    /// As numbers of a locator.
    pub fn numbers(self) -> [u64; 5] {
        let method = match self.method {
            Method::Stored => 0,
            Method::Deflated => 8,
            Method::Other(n) => u64::from(n),
        };
        [self.header, self.packed, self.len, method, u64::from(self.crc)]
    }

    /// What [`Place::numbers`] gave.
    pub fn of_numbers(numbers: [u64; 5]) -> Option<Self> {
        let [header, packed, len, method, crc] = numbers;
        let (method, crc) = (u16::try_from(method).ok()?, u32::try_from(crc).ok()?);
        Some(Self { header, packed, len, method: method_of(method), crc })
    }
}

fn method_of(number: u16) -> Method {
    match number {
        0 => Method::Stored,
        8 => Method::Deflated,
        other => Method::Other(other),
    }
}

#[derive(Debug)]
pub struct Directory<R> {
    input: R,
    /// Entries that are not read yet.
    left: u64,
    /// Where the next one begins.
    at: u64,
    /// Where the directory ends.
    end: u64,
}

impl<R: Read + Seek> Directory<R> {
    /// # Errors
    /// It is no zip archive, or it is cut short.
    pub fn new(mut input: R) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let len = input.seek(SeekFrom::End(0)).map_err(text)?;
        // A comment of up to 64 KiB may follow the record.
        let start = len.saturating_sub(END + u64::from(u16::MAX));
        input.seek(SeekFrom::Start(start)).map_err(text)?;
        let mut tail = Vec::new();
        (&mut input).take(len - start).read_to_end(&mut tail).map_err(text)?;
        let none = "it is no zip archive, or it is cut short: its directory is missing at the end";
        let is_end = |at: &usize| {
            tail[*at..].starts_with(b"PK\x05\x06")
                && tail
                    .get(at + 20..at + 22)
                    .is_some_and(|n| at + 22 + usize::from(u16_at(n, 0)) == tail.len())
        };
        let at = (0..tail.len().saturating_sub(END as usize - 1)).rev().find(is_end).ok_or(none)?;
        let record = &tail[at..];
        let mut left = u64::from(u16_at(record, 10));
        let (mut size, mut first) = (u64::from(u32_at(record, 12)), u64::from(u32_at(record, 16)));
        let before = at.checked_sub(20).map(|at| &tail[at..at + 20]);
        if let Some(locator) = before.filter(|locator| locator.starts_with(b"PK\x06\x07")) {
            let mut record = [0; 56];
            input.seek(SeekFrom::Start(u64_at(locator, 8))).map_err(text)?;
            input.read_exact(&mut record).map_err(|_| none)?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(none.into());
            }
            (left, size, first) = (u64_at(&record, 32), u64_at(&record, 40), u64_at(&record, 48));
        }
        let end = first.checked_add(size).filter(|end| *end <= len);
        let end = end.ok_or("it is damaged: its directory reaches beyond its end")?;
        input.seek(SeekFrom::Start(first)).map_err(text)?;
        Ok(Self { input, left, at: first, end })
    }

    /// The next entry, folders included.
    ///
    /// # Errors
    /// What is wrong, and at which byte.
    pub fn next(&mut self) -> Result<Option<Member>, String> {
        if self.left == 0 {
            return Ok(None);
        }
        let at = self.at;
        let wrong = || format!("it is damaged: at byte {at} stands no entry of its directory");
        let mut entry = [0; ENTRY];
        self.input.read_exact(&mut entry).map_err(|_| wrong())?;
        let lens = [28, 30, 32].map(|field| usize::from(u16_at(&entry, field)));
        let mut rest = vec![0; lens.iter().sum()];
        self.input.read_exact(&mut rest).map_err(|_| wrong())?;
        self.at = at + (ENTRY + rest.len()) as u64;
        if !entry.starts_with(b"PK\x01\x02") || self.at > self.end {
            return Err(wrong());
        }
        let wide = |field: usize| u64::from(u32_at(&entry, field));
        let (mut len, mut packed, mut header) = (wide(24), wide(20), wide(42));
        let mut extra = &rest[lens[0]..lens[0] + lens[1]];
        while let Some((head, after)) = extra.split_first_chunk::<4>() {
            let (id, size) = (u16_at(head, 0), usize::from(u16_at(head, 2)));
            let Some((field, after)) = after.split_at_checked(size) else { break };
            extra = after;
            if id == 1 {
                let mut numbers = field.chunks_exact(8).map(|bytes| u64_at(bytes, 0));
                for value in [&mut len, &mut packed, &mut header] {
                    if *value == u64::from(u32::MAX) {
                        *value = numbers.next().ok_or_else(wrong)?;
                    }
                }
            }
        }
        if header.checked_add(packed).is_none_or(|end| end > self.end) {
            return Err(format!(
                "it is damaged: the entry at byte {at} of its directory lies beyond its end"
            ));
        }
        self.left -= 1;
        rest.truncate(lens[0]);
        let is_encrypted = entry[8] & 1 != 0;
        let method = if is_encrypted { Method::Other(ENCRYPTED) } else { method_of(u16_at(&entry, 10)) };
        let place = Place { header, packed, len, method, crc: u32_at(&entry, 16) };
        Ok(Some(Member { name: rest, place }))
    }
}

/// Where the bytes of a member begin: behind its local header.
pub fn data_at(header: u64, local: &[u8; LOCAL]) -> Result<u64, String> {
    if !local.starts_with(b"PK\x03\x04") {
        return Err(format!("it is damaged: no member begins at byte {header}"));
    }
    Ok(header + LOCAL as u64 + u64::from(u16_at(local, 26)) + u64::from(u16_at(local, 28)))
}

/// A member of a file, opened to be read from its beginning.
#[derive(Debug)]
pub enum Content {
    Stored(io::Take<Stream>),
    Deflated(Box<DeflateDecoder<io::Take<Stream>>>),
}

impl Content {
    /// # Errors
    /// It is stored in a way that is not read, claims what it cannot hold, or its header is damaged.
    pub fn open(input: &Input, place: &Place) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        input.expect(place.header, place.packed.saturating_add(LOCAL as u64 + USUAL_NAME)).map_err(text)?;
        let mut local = [0; LOCAL];
        input.read_exact_at(&mut local, place.header).map_err(text)?;
        let part = input.from(data_at(place.header, &local)?).take(place.packed);
        match place.method {
            Method::Stored if place.packed == place.len => Ok(Content::Stored(part)),
            Method::Deflated if place.len <= place.packed.saturating_mul(MOST_PER_BYTE) => {
                Ok(Content::Deflated(Box::new(DeflateDecoder::new(part))))
            }
            Method::Stored | Method::Deflated => Err(format!(
                "it is damaged: it claims {} bytes, which its {} in the archive cannot hold",
                place.len, place.packed
            )),
            Method::Other(ENCRYPTED) => Err("it is encrypted, which is not read".into()),
            Method::Other(n) => {
                Err(format!("it is compressed by method {n}; what is stored or deflated is read"))
            }
        }
    }
}

impl Read for Content {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Content::Stored(part) => part.read(to),
            Content::Deflated(decoder) => decoder.read(to),
        }
    }
}

/// Reads a whole member, of a length that the caller has checked, and compares its checksum.
///
/// # Errors
/// It cannot be read, or is not what its entry says.
pub fn read_member(input: &Input, place: &Place, buffer: &mut Vec<u8>) -> Result<(), String> {
    let content = Content::open(input, place)?;
    buffer.clear();
    // One more than it may have, so that more is noticed. Nothing is reserved for a length that is only claimed.
    let read = content.take(place.len + 1).read_to_end(buffer);
    read.map_err(|error| format!("it is damaged: {}", or_no_memory(error, place.len)))?;
    if buffer.len() as u64 != place.len {
        return Err(format!("it is damaged: it does not have the {} bytes that its entry says", place.len));
    }
    let mut crc = flate2::Crc::new();
    crc.update(buffer);
    if crc.sum() == place.crc { Ok(()) } else { Err("it is damaged: its checksum is wrong".into()) }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
pub mod tests {
    use std::io::{Cursor, Write};

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::super::input::Opener;
    use super::*;

    type Named = Vec<(Vec<u8>, Vec<u8>)>;

    pub fn archive(members: &[(&str, &[u8])], method: zip::CompressionMethod, large: bool) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(method).large_file(large);
        for (name, content) in members {
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn read(bytes: &[u8]) -> Result<Named, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.zip");
        std::fs::write(&path, bytes).unwrap();
        let input = Opener::new(&[]).open(&path).unwrap();
        let mut directory = Directory::new(Cursor::new(bytes))?;
        let mut all = Vec::new();
        while let Some(member) = directory.next()? {
            let mut content = Vec::new();
            read_member(&input, &member.place, &mut content)?;
            assert_eq!(Place::of_numbers(member.place.numbers()), Some(member.place));
            all.push((member.name, content));
        }
        Ok(all)
    }

    #[test]
    fn members_are_read_as_they_were_written_and_no_damage_goes_unseen() {
        let long = b"abc".repeat(1000);
        let members: [(&str, &[u8]); 3] = [("a", b""), ("d/b", &long), ("c", b"x")];
        let expected: Vec<_> = members.iter().map(|(n, c)| (n.as_bytes().to_vec(), c.to_vec())).collect();
        for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
            for large in [false, true] {
                let bytes = archive(&members, method, large);
                assert_eq!(read(&bytes).unwrap(), expected);
                for len in (0..bytes.len()).step_by(7) {
                    assert!(read(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
                }
                for at in 0..bytes.len() {
                    let mut bent = bytes.clone();
                    bent[at] ^= 0x41;
                    // Bytes that mean nothing to a reader of contents (dates, versions, names of local headers) may change.
                    let found = read(&bent)
                        .map(|all| all.into_iter().map(|(_, content)| content).collect::<Vec<_>>());
                    let contents: Vec<_> = expected.iter().map(|(_, content)| content.clone()).collect();
                    assert!(found.is_err() || found.as_ref() == Ok(&contents), "byte {at}");
                }
            }
        }
    }

    #[test]
    fn a_member_gives_no_more_than_its_entry_says_and_claims_no_more_than_it_can_hold() {
        let mut bytes = archive(&[("a", &[0; 100_000])], zip::CompressionMethod::Deflated, false);
        let entry = bytes.windows(4).rposition(|at| at == b"PK\x01\x02").unwrap();
        for (claimed, why) in [(99_u32, "does not have the 99 bytes"), (u32::MAX - 1, "cannot hold")] {
            bytes[entry + 24..entry + 28].copy_from_slice(&claimed.to_le_bytes());
            assert!(read(&bytes).unwrap_err().contains(why));
        }
    }
}
