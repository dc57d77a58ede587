//! The members of a zip archive: where each lies, and its bytes. The directory is read as a stream, so that no count that it states takes
//! memory; no size is believed before it is checked, and a member gives no more bytes than its entry says.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use bincode::{Decode, Encode};
use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use orchestra_store::PassedOver;

use super::archive::{ArchiveEntry, Entries, EntryContent, Members};
use super::archive_links::{ArchiveLink, Astray};
use super::input::FileLike;
use super::read_file::or_no_memory;

/// The record at the end of an archive, without its comment.
const END: u64 = 22;
/// Says where the record of a larger archive begins.
const END64_PLACE: u64 = 20;
/// An entry of the directory without its name.
const ENTRY: usize = 46;
/// What stands in front of the bytes of a member, without its name.
pub const LOCAL: usize = 30;
/// Its name, and what programs put behind that, have no more as a rule.
const USUAL_NAME: u64 = 256;
/// Bytes that are read together.
const BLOCK: usize = 256 << 10;
/// Deflate makes no more of a byte.
pub const MOST_PER_BYTE: u64 = 1032;

/// What a member is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Method {
    Stored,
    Deflated,
    /// Encrypted, a link that has no bytes, or compressed by something else: its number.
    Other(u16),
}

impl Method {
    /// Why a member of another method is not read.
    pub fn why_unreadable(self) -> String {
        match self {
            Method::Other(ENCRYPTED) => {
                "it is encrypted, which is not read: write the archive without a password".into()
            }
            Method::Stored | Method::Deflated | Method::Other(_) => {
                let n = self.number();
                match n.checked_sub(FIRST_ASTRAY).and_then(|n| Astray::ALL.get(usize::from(n))) {
                    Some(astray) => format!("it {}", astray.why()),
                    None => format!(
                        "it is compressed by method {n}; what is stored or deflated is read: unpack the archive and write it with `zip -9`"
                    ),
                }
            }
        }
    }

    fn number(self) -> u16 {
        match self {
            Method::Stored => 0,
            Method::Deflated => 8,
            Method::Other(n) => n,
        }
    }
}

/// In place of the number of a method: encrypted, and each reason for which a link has no bytes.
const ENCRYPTED: u16 = u16::MAX;
const FIRST_ASTRAY: u16 = ENCRYPTED - Astray::ALL.len() as u16;

/// No target of a link is longer, in bytes.
const LONGEST_TARGET: u64 = 4096;

/// Systems whose programs keep the type of a file as Unix has it, and where those bits are.
const UNIX: [u8; 2] = [3, 19];
const FILE_TYPE: u32 = 0o170_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct ZipPlace {
    pub header: u64,
    /// Bytes in the archive.
    pub packed: u64,
    /// Bytes of its content.
    pub len: u64,
    pub method: Method,
    pub crc: u32,
}

impl ZipPlace {
    /// In place of that of a link whose bytes cannot be found.
    pub fn astray(astray: Astray) -> Self {
        Self { header: 0, packed: 0, len: 0, method: Method::Other(FIRST_ASTRAY + astray as u16), crc: 0 }
    }

    /// As numbers of a locator.
    pub fn numbers(self) -> [u64; 5] {
        [self.header, self.packed, self.len, u64::from(self.method.number()), u64::from(self.crc)]
    }

    /// What [`ZipPlace::numbers`] gave.
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
pub struct ZipDirectory<R> {
    input: R,
    end: DirectoryEnd,
    walk: DirectoryCursor,
}

/// How far a directory is read.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryCursor {
    n: u64,
    at: u64,
    /// Where the first member begins of those that were read.
    first_member: u64,
}

/// What the end of an archive says of its directory.
#[derive(Debug, Clone, Copy)]
struct DirectoryEnd {
    entries: u64,
    /// Old programs count no further than this, and begin again.
    count_until: u64,
    size: u64,
    first: u64,
    at: u64,
}

const NO_END: &str = "it is no zip archive, or it is cut short: its directory is missing at the end";

impl DirectoryEnd {
    /// Where its directory is read from.
    fn start(&self) -> DirectoryCursor {
        DirectoryCursor { n: 0, at: self.first, first_member: self.first }
    }

    /// Finds the end of an archive, which must be that of the file.
    fn find(input: &mut (impl Read + Seek)) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let len = input.seek(SeekFrom::End(0)).map_err(text)?;
        // A comment of up to 64 KiB may follow the record, and the place of a larger one stands before it.
        let start = len.saturating_sub(END + u64::from(u16::MAX) + END64_PLACE);
        input.seek(SeekFrom::Start(start)).map_err(text)?;
        let mut tail = Vec::new();
        input.take(len - start).read_to_end(&mut tail).map_err(text)?;
        let ends = (0..tail.len().saturating_sub(END as usize - 1))
            .filter(|at| tail[*at..].starts_with(b"PK\x05\x06"));
        let ends: Vec<(usize, usize)> =
            ends.map(|at| (at, at + END as usize + usize::from(u16_at(&tail, at + 20)))).collect();
        let mut whole = ends.iter().filter(|(_, end)| *end == tail.len());
        let (at, _) = match (whole.next(), whole.next(), ends.last()) {
            (Some(end), None, _) => *end,
            (Some(_), Some(_), _) => {
                return Err(
                    "it has two ends, so that programs differ in what it holds: unpack it and write it again"
                        .into(),
                );
            }
            (None, _, Some((_, end))) if *end < tail.len() => {
                let (at, behind) = (start + *end as u64, tail.len() - end);
                return Err(format!(
                    "{behind} bytes stand behind its end: cut them off with `head -c {at} FILE > NEW`, or unpack each of the archives that were put together"
                ));
            }
            _ => return Err(NO_END.into()),
        };
        let record = &tail[at..];
        if [4, 6].iter().any(|field| !matches!(u16_at(record, *field), 0 | u16::MAX)) {
            return Err("it is one of several volumes: join them into one archive with `zip -s 0`".into());
        }
        let before = at.checked_sub(END64_PLACE as usize).map(|before| &tail[before..at]);
        match before.filter(|place| place.starts_with(b"PK\x06\x07")) {
            Some(place) => Self::find_64(input, u64_at(place, 8), start + at as u64 - END64_PLACE),
            None => Ok(Self {
                entries: u64::from(u16_at(record, 10)),
                count_until: 1 << 16,
                size: u64::from(u32_at(record, 12)),
                first: u64::from(u32_at(record, 16)),
                at: start + at as u64,
            }),
        }
    }

    /// The larger record of an archive that needs one; `until` is where it ends.
    fn find_64(input: &mut (impl Read + Seek), stated: u64, until: u64) -> Result<Self, String> {
        let mut record = [0; 56];
        // Where bytes stand in front of the archive, it is further behind by these.
        for at in [stated, until.saturating_sub(record.len() as u64)] {
            input.seek(SeekFrom::Start(at)).map_err(|error| error.to_string())?;
            if input.read_exact(&mut record).is_ok() && record.starts_with(b"PK\x06\x06") {
                let field = |at| u64_at(&record, at);
                let (entries, size, first) = (field(32), field(40), field(48));
                return Ok(Self { entries, count_until: u64::MAX, size, first, at });
            }
        }
        Err(NO_END.into())
    }
}

/// The members of an archive.
///
/// # Errors
/// It is no zip archive, it is cut short, or other bytes stand before or behind it.
pub fn members<R: Read + Seek>(mut input: R) -> Result<Members<ZipDirectory<R>>, String> {
    let end = DirectoryEnd::find(&mut input)?;
    let behind = end.first.checked_add(end.size).filter(|behind| *behind <= end.at);
    let behind = behind.ok_or("it is damaged: its directory reaches beyond its end")?;
    if behind < end.at {
        return Err(in_front(end.at - behind));
    }
    let mut directory = ZipDirectory { input, end, walk: end.start() };
    directory.go_to(None)?;
    Ok(Members::of(directory))
}

impl<R: Read + Seek> Entries for ZipDirectory<R> {
    type Place = ZipPlace;
    /// Where its target lies.
    type Link = ZipPlace;
    type Walk = DirectoryCursor;
    const WITHOUT_LINKS: &'static str = "without `zip -y`";

    fn go_to(&mut self, walk: Option<DirectoryCursor>) -> Result<DirectoryCursor, String> {
        let here = std::mem::replace(&mut self.walk, walk.unwrap_or_else(|| self.end.start()));
        self.input.seek(SeekFrom::Start(self.walk.at)).map(|_| here).map_err(|error| error.to_string())
    }

    /// One that is not what its entry says leads nowhere.
    fn target(&mut self, place: &ZipPlace) -> Result<ArchiveLink, String> {
        let read = head_of(&mut self.input, place, LONGEST_TARGET);
        let is_whole = |target: &Vec<u8>| target.len() as u64 == place.len && checksum(target) == place.crc;
        self.go_to(Some(self.walk))?;
        Ok(ArchiveLink::Symbolic(read.ok().filter(is_whole).unwrap_or_default()))
    }

    /// Its target is not read again: the links of the whole archive are known by their names.
    fn path(name: &[u8], _: &ZipPlace) -> Result<Vec<u8>, Astray> {
        Ok(name.to_vec())
    }

    fn is_hard(_: &ZipPlace) -> bool {
        false
    }

    fn entry(&mut self) -> Result<Option<ArchiveEntry<ZipPlace, ZipPlace>>, String> {
        if self.walk.at == self.end.at {
            return self.check_whole().map(|()| None);
        }
        let at = self.walk.at;
        let wrong = || format!("it is damaged: at byte {at} stands no entry of its directory");
        let mut entry = [0; ENTRY];
        self.input.read_exact(&mut entry).map_err(|_| wrong())?;
        let lens = [28, 30, 32].map(|field| usize::from(u16_at(&entry, field)));
        let mut rest = vec![0; lens.iter().sum()];
        self.input.read_exact(&mut rest).map_err(|_| wrong())?;
        self.walk.at = at + (ENTRY + rest.len()) as u64;
        if !entry.starts_with(b"PK\x01\x02") || self.walk.at > self.end.at {
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
        if header.checked_add(packed).is_none_or(|end| end > self.end.first) {
            return Err(format!(
                "it is damaged: the entry at byte {at} of its directory lies beyond its end"
            ));
        }
        self.walk.n += 1;
        self.walk.first_member = self.walk.first_member.min(header);
        rest.truncate(lens[0]);
        let is_encrypted = entry[8] & 1 != 0;
        let file_type = if UNIX.contains(&entry[5]) { u32_at(&entry, 38) >> 16 & FILE_TYPE } else { 0 };
        let method = if is_encrypted { Method::Other(ENCRYPTED) } else { method_of(u16_at(&entry, 10)) };
        let place = ZipPlace { header, packed, len, method, crc: u32_at(&entry, 16) };
        let holds = match file_type {
            0o120_000 if !is_encrypted => EntryContent::Link(place),
            _ if rest.ends_with(b"/") => EntryContent::Nothing(PassedOver::Folder),
            0o010_000 | 0o020_000 | 0o060_000 | 0o140_000 => EntryContent::Nothing(PassedOver::Special),
            _ => EntryContent::File(Ok(place)),
        };
        Ok(Some(ArchiveEntry { name: rest, at, holds }))
    }
}

impl<R> ZipDirectory<R> {
    /// All of its entries were read: they must be as many as it says, and begin with the file.
    fn check_whole(&self) -> Result<(), String> {
        let DirectoryEnd { entries, count_until, .. } = self.end;
        let DirectoryCursor { n, first_member, .. } = self.walk;
        if n % count_until != entries {
            return Err(format!("it is damaged: its end says {entries} members, and its directory has {n}"));
        }
        match first_member {
            0 => Ok(()),
            n => Err(in_front(n)),
        }
    }
}

fn in_front(bytes: u64) -> String {
    format!(
        "its first {bytes} bytes belong to no member of it, so another archive or a program stands before it: unpack it and write its files into a new archive"
    )
}

/// Where the bytes of a member begin: behind its local header.
pub fn data_at(header: u64, local: &[u8; LOCAL]) -> Result<u64, String> {
    if !local.starts_with(b"PK\x03\x04") {
        return Err(format!("it is damaged: no member begins at byte {header}"));
    }
    Ok(header + LOCAL as u64 + u64::from(u16_at(local, 26)) + u64::from(u16_at(local, 28)))
}

/// The content of a member, as a stream.
fn content_of<'a>(
    file: &'a mut (impl Read + Seek + ?Sized),
    place: &ZipPlace,
) -> Result<Box<dyn Read + 'a>, String> {
    let text = |error: io::Error| error.to_string();
    let mut local = [0; LOCAL];
    file.seek(SeekFrom::Start(place.header)).map_err(text)?;
    file.read_exact(&mut local).map_err(text)?;
    file.seek(SeekFrom::Start(data_at(place.header, &local)?)).map_err(text)?;
    let packed = file.take(place.packed);
    match place.method {
        Method::Stored => Ok(Box::new(packed)),
        Method::Deflated => Ok(Box::new(DeflateDecoder::new(packed))),
        Method::Other(_) => Err(place.method.why_unreadable()),
    }
}

/// The first bytes of the content of a member, `n` at most.
///
/// # Errors
/// It is stored in a way that is not read, or its header is damaged.
pub fn head_of(file: &mut (impl Read + Seek + ?Sized), place: &ZipPlace, n: u64) -> Result<Vec<u8>, String> {
    let mut head = Vec::new();
    let read = content_of(file, place)?.take(n).read_to_end(&mut head);
    read.map(|_| head).map_err(|error| error.to_string())
}

/// Reads a whole member, and keeps nothing of it.
///
/// # Errors
/// It is not what its entry says, in words that follow its name.
pub fn check_content(file: &mut (impl Read + Seek + ?Sized), place: &ZipPlace) -> Result<(), String> {
    let content = content_of(file, place)?.take(place.len.saturating_add(1));
    let mut content = CrcReader::new(BufReader::with_capacity(BLOCK, content));
    let n = io::copy(&mut content, &mut io::sink()).map_err(|error| format!("is damaged: {error}"))?;
    match (n == place.len, content.crc().sum() == place.crc) {
        (false, _) => {
            Err(format!("is damaged: it does not have the {} bytes that its entry says", place.len))
        }
        (true, false) => Err("is damaged: its checksum is wrong".into()),
        (true, true) => Ok(()),
    }
}

/// The content of a member of a file, as a stream.
pub type ZipContent = Box<dyn Read + Send>;

/// # Errors
/// It is stored in a way that is not read, claims what it cannot hold, or its header is damaged.
pub fn open_content(input: &FileLike, place: &ZipPlace) -> Result<ZipContent, String> {
    let text = |error: io::Error| error.to_string();
    input.expect(place.header, place.packed.saturating_add(LOCAL as u64 + USUAL_NAME)).map_err(text)?;
    let mut local = [0; LOCAL];
    input.read_exact_at(&mut local, place.header).map_err(text)?;
    let part = input.from(data_at(place.header, &local)?).take(place.packed);
    match place.method {
        Method::Stored if place.packed == place.len => Ok(Box::new(part)),
        Method::Deflated if place.len <= place.packed.saturating_mul(MOST_PER_BYTE) => {
            Ok(Box::new(DeflateDecoder::new(part)))
        }
        Method::Stored | Method::Deflated => Err(format!(
            "it is damaged: it claims {} bytes, which its {} in the archive cannot hold",
            place.len, place.packed
        )),
        Method::Other(_) => Err(place.method.why_unreadable()),
    }
}

/// Reads a whole member, of a length that the caller has checked, and compares its checksum.
pub fn read_member(input: &FileLike, place: &ZipPlace, buffer: &mut Vec<u8>) -> Result<(), String> {
    let content = open_content(input, place)?;
    buffer.clear();
    // One more than it may have, so that more is noticed. Nothing is reserved for a length that is only claimed.
    let read = content.take(place.len + 1).read_to_end(buffer);
    read.map_err(|error| format!("it is damaged: {}", or_no_memory(error, place.len)))?;
    if buffer.len() as u64 != place.len {
        return Err(format!("it is damaged: it does not have the {} bytes that its entry says", place.len));
    }
    if checksum(buffer) == place.crc { Ok(()) } else { Err("it is damaged: its checksum is wrong".into()) }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
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
#[path = "zip_members_tests.rs"]
pub mod tests;
