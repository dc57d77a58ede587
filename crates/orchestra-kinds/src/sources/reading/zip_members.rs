//! The members of a zip archive: where each lies, and its bytes. The directory is read as a stream, so that no count that it states takes
//! memory; no size is believed before it is checked, and a member gives no more bytes than its entry says.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use bincode::{Decode, Encode};
use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use orchestra_store::{PassedOver, is_hidden};

use super::archive_links::{Astray, Link, Links, MOST_LINKS, clean};
use super::input::{Input, Stream};
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
    pub fn refusal(self) -> String {
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

/// An entry of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: Vec<u8>,
    /// That of the member that it leads to, where it is a link.
    pub place: Place,
    /// Why it is no file, where its name does not say it.
    no_file: Option<PassedOver>,
}

/// An entry as the directory has it.
struct Entry {
    name: Vec<u8>,
    place: Place,
    /// It is a device, a pipe or a socket.
    is_special: bool,
    /// It is a symbolic link, whose content is its target.
    is_link: bool,
}

impl Member {
    /// Why it is no file that a source could take, if it is none.
    pub fn passed_over(&self, takes_hidden: bool) -> Option<PassedOver> {
        match () {
            () if !takes_hidden && is_hidden(&self.name) => Some(PassedOver::Hidden),
            () if self.name.ends_with(b"/") => Some(PassedOver::Folder),
            () => self.no_file,
        }
    }
}

/// Where a member lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
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
        [self.header, self.packed, self.len, u64::from(self.method.number()), u64::from(self.crc)]
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
    end: End,
    walk: Walk,
    /// Found with the first link.
    targets: Option<Targets>,
}

/// How far a directory is read.
#[derive(Debug, Clone, Copy)]
struct Walk {
    /// Entries that were read.
    n: u64,
    /// Where the next one begins.
    at: u64,
    /// Where the first member begins of those that were read.
    first_member: u64,
}

/// What the links of an archive lead to.
#[derive(Debug, Default)]
struct Targets {
    links: Links,
    /// By name: of several, the last.
    files: HashMap<Vec<u8>, Place>,
    folders: HashSet<Vec<u8>>,
}

/// What the end of an archive says of its directory.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Entries of the directory.
    entries: u64,
    /// Old programs count no further than this, and begin again.
    count_until: u64,
    size: u64,
    /// Where the directory begins.
    first: u64,
    /// Where this record begins.
    at: u64,
}

impl End {
    /// Where its directory is read from.
    fn start(&self) -> Walk {
        Walk { n: 0, at: self.first, first_member: self.first }
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
            _ => {
                return Err(
                    "it is no zip archive, or it is cut short: its directory is missing at the end".into()
                );
            }
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
                return Ok(Self {
                    entries: field(32),
                    count_until: u64::MAX,
                    size: field(40),
                    first: field(48),
                    at,
                });
            }
        }
        Err("it is no zip archive, or it is cut short: its directory is missing at the end".into())
    }
}

impl<R: Read + Seek> Directory<R> {
    /// # Errors
    /// It is no zip archive, it is cut short, or other bytes stand before or behind it.
    pub fn new(mut input: R) -> Result<Self, String> {
        let end = End::find(&mut input)?;
        let behind = end.first.checked_add(end.size).filter(|behind| *behind <= end.at);
        let behind = behind.ok_or("it is damaged: its directory reaches beyond its end")?;
        if behind < end.at {
            return Err(in_front(end.at - behind));
        }
        let mut directory = Self { input, end, walk: end.start(), targets: None };
        directory.go_to(end.start())?;
        Ok(directory)
    }

    fn go_to(&mut self, walk: Walk) -> Result<(), String> {
        self.walk = walk;
        self.input.seek(SeekFrom::Start(walk.at)).map(drop).map_err(|error| error.to_string())
    }

    /// The next member, folders included.
    ///
    /// # Errors
    /// What is wrong, and at which byte.
    pub fn next(&mut self) -> Result<Option<Member>, String> {
        let Some(Entry { name, place, is_special, is_link }) = self.entry()? else { return Ok(None) };
        if !is_link {
            return Ok(Some(Member { name, place, no_file: is_special.then_some(PassedOver::Special) }));
        }
        if self.targets.is_none() {
            self.targets = Some(self.find_targets()?);
        }
        let targets = self.targets.as_ref().ok_or("its links were not read; this is a bug")?;
        let (place, no_file) = match targets.of(&name) {
            Some(Ok(target)) => (target, None),
            Some(Err(astray)) => {
                (Place { method: Method::Other(FIRST_ASTRAY + astray as u16), ..place }, None)
            }
            None => (place, Some(PassedOver::FolderLink)),
        };
        Ok(Some(Member { name, place, no_file }))
    }

    /// Reads the whole directory twice, as for a tar archive: for the links, and for what they lead to.
    fn find_targets(&mut self) -> Result<Targets, String> {
        let here = self.walk;
        let (mut targets, mut names) = (Targets::default(), Vec::new());
        self.go_to(self.end.start())?;
        while let Some(Entry { name, place, is_link, .. }) = self.entry()? {
            let link = match is_link {
                true => Some(Link::Symbolic(self.target(&place)?)),
                false => None,
            };
            targets.links.see(&name, link);
            if is_link {
                names.push(name);
            }
            if names.len() > MOST_LINKS {
                return Err(format!(
                    "it has more than {MOST_LINKS} links, and no more are followed: write it without `zip -y`"
                ));
            }
        }
        let wanted: HashSet<Vec<u8>> =
            names.iter().filter_map(|name| targets.links.follow(name).ok()).collect();
        self.go_to(self.end.start())?;
        while let Some(Entry { name, place, is_link, is_special }) = self.entry()? {
            let is_folder = name.ends_with(b"/");
            let name = clean(&name);
            let mut above = name.as_slice();
            while let Some(slash) = above.iter().rposition(|byte| *byte == b'/') {
                above = &above[..slash];
                if wanted.contains(above) {
                    targets.folders.insert(above.to_vec());
                }
            }
            match wanted.contains(&name) {
                true if is_folder => drop(targets.folders.insert(name)),
                true if !is_link && !is_special => drop(targets.files.insert(name, place)),
                _ => {}
            }
        }
        self.go_to(here)?;
        Ok(targets)
    }

    /// The target of a link; one that is not what its entry says leads nowhere.
    fn target(&mut self, place: &Place) -> Result<Vec<u8>, String> {
        let read = head_of(&mut self.input, place, LONGEST_TARGET);
        let is_whole = |target: &Vec<u8>| target.len() as u64 == place.len && checksum(target) == place.crc;
        let target = read.ok().filter(is_whole).unwrap_or_default();
        self.go_to(self.walk)?;
        Ok(target)
    }

    fn entry(&mut self) -> Result<Option<Entry>, String> {
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
        let place = Place { header, packed, len, method, crc: u32_at(&entry, 16) };
        let is_special = matches!(file_type, 0o010_000 | 0o020_000 | 0o060_000 | 0o140_000);
        let is_link = file_type == 0o120_000 && !is_encrypted;
        Ok(Some(Entry { name: rest, place, is_special, is_link }))
    }

    /// All of its entries were read: they must be as many as it says, and begin with the file.
    fn check_whole(&self) -> Result<(), String> {
        let End { entries, count_until, .. } = self.end;
        let Walk { n, first_member, .. } = self.walk;
        if n % count_until != entries {
            return Err(format!("it is damaged: its end says {entries} members, and its directory has {n}"));
        }
        match first_member {
            0 => Ok(()),
            n => Err(in_front(n)),
        }
    }
}

impl Targets {
    /// Where the bytes lie that a link of this name has; `None`: it leads to a folder.
    fn of(&self, name: &[u8]) -> Option<Result<Place, Astray>> {
        match self.links.follow(name) {
            Err(astray) => Some(Err(astray)),
            Ok(target) => match self.files.get(&target) {
                Some(place) => Some(Ok(*place)),
                None => (!self.folders.contains(&target)).then_some(Err(Astray::Nowhere)),
            },
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
    place: &Place,
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
        Method::Other(_) => Err(place.method.refusal()),
    }
}

/// The first bytes of the content of a member, `n` at most.
///
/// # Errors
/// It is stored in a way that is not read, or its header is damaged.
pub fn head_of(file: &mut (impl Read + Seek + ?Sized), place: &Place, n: u64) -> Result<Vec<u8>, String> {
    let mut head = Vec::new();
    let read = content_of(file, place)?.take(n).read_to_end(&mut head);
    read.map(|_| head).map_err(|error| error.to_string())
}

/// Reads a whole member, and keeps nothing of it.
///
/// # Errors
/// It is not what its entry says, in words that follow its name.
pub fn check_content(file: &mut (impl Read + Seek + ?Sized), place: &Place) -> Result<(), String> {
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
            Method::Other(_) => Err(place.method.refusal()),
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
    fn every_byte_of_the_file_belongs_to_the_archive_or_it_is_refused_with_what_to_do() {
        for large in [false, true] {
            let bytes = archive(&[("a", b"1"), ("b", b"2")], zip::CompressionMethod::Stored, large);
            let refused = |bytes: &[u8]| read(bytes).unwrap_err();
            for other in [&b"#!/bin/sh\n"[..], &bytes] {
                let error = refused(&[other, &bytes].concat());
                assert!(
                    error.contains(&format!("its first {} bytes belong to no member", other.len())),
                    "{error}"
                );
                let error = refused(&[&bytes[..], b"x"].concat());
                assert!(error.contains(&format!("`head -c {} ", bytes.len())), "{error}");
            }
            // An end within the comment of another one.
            let end = bytes.len() - 22;
            let mut two = [&bytes[..], &bytes[end..]].concat();
            two[end + 20] = 22;
            assert!(refused(&two).contains("two ends"));
            let mut fewer = bytes.clone();
            fewer[end + 10] = 1;
            fewer[end + 8] = 1;
            assert!(refused(&fewer).contains("its end says 1 members, and its directory has 2"));
        }
    }

    #[test]
    fn a_comment_is_no_member_and_links_and_passwords_fail_by_name() {
        let bytes = archive(&[("a", b"target")], zip::CompressionMethod::Stored, false);
        let mut commented = [&bytes[..], b"PK\x05\x06 comment"].concat();
        commented[bytes.len() - 2] = 12;
        assert_eq!(read(&commented).unwrap().len(), 1);
        let entry = bytes.windows(4).rposition(|at| at == b"PK\x01\x02").unwrap();
        let changed = |at: usize, value: &[u8]| {
            let mut changed = bytes.clone();
            changed[entry + at..][..value.len()].copy_from_slice(value);
            read(&changed)
        };
        assert!(changed(8, &[1]).unwrap_err().contains("without a password"));
        assert!(changed(10, &[93]).unwrap_err().contains("method 93"));
        assert!(changed(41, &[0o240]).unwrap_err().contains("a link to no member"));
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
