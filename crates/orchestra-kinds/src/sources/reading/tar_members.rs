//! The members of an uncompressed tar archive: where each lies and what it is called, links followed. It reads headers alone, believes no size before it is
//! checked, and accounts for every block: archives that stand one behind the other are read on, and what is no member is told by name or by reason.
//!
//! Fields of a header are read by the crate `tar`. Its walk over an archive is not used: it reads names of any length into memory, takes a file that is cut
//! for one that has ended, and loses the name that pax gives where another value holds a line feed.

use std::io::{self, Read, Seek, SeekFrom};

use orchestra_store::PassedOver;
use tar::{EntryType, Header};

use super::archive::{ArchiveEntry, Entries, EntryContent, Members};
use super::archive_links::{ArchiveLink, Astray};

/// Bytes of a header, and what all sizes are rounded up to.
const BLOCK: u64 = 512;

/// First bytes of what archives are compressed to, by what, and what undoes it.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
];

/// No name and no extended header is longer, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// Where the bytes of a member begin, and how many they are.
pub type TarPlace = [u64; 2];

/// What headers in front of an entry say of it.
#[derive(Debug, Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    is_pax: bool,
    is_sparse: bool,
}

/// A whole file of them, as far as it is read.
#[derive(Debug)]
pub struct Archive<R> {
    input: R,
    len: u64,
    place: TarCursor,
}

/// How far an archive is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct TarCursor {
    next: u64,
    /// A block of zeros, which ends an archive, stood behind the last member.
    has_ended: bool,
}

pub fn members<R: Read + Seek>(mut input: R) -> io::Result<Members<Archive<R>>> {
    let len = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    Ok(Members::of(Archive { input, len, place: TarCursor::default() }))
}

impl<R: Read + Seek> Entries for Archive<R> {
    type Place = TarPlace;
    type Link = ArchiveLink;
    type Walk = TarCursor;
    const WITHOUT_LINKS: &'static str = "with `tar -h --hard-dereference`";

    /// The next entry that is no extension of another one.
    fn entry(&mut self) -> Result<Option<ArchiveEntry<TarPlace, ArchiveLink>>, String> {
        let mut extensions = Extensions::default();
        loop {
            let at = self.place.next;
            let Some(header) = self.header()? else {
                return match extensions.is_pax || extensions.name.is_some() || extensions.target.is_some() {
                    true => {
                        Err(format!("it is damaged: no member follows the extended header before byte {at}"))
                    }
                    false => Ok(None),
                };
            };
            let at = self.place.next;
            let kind = header.as_bytes()[156];
            let is_extension = matches!(kind, b'L' | b'K' | b'x' | b'X' | b'g');
            // GNU tar leaves the size of the label of a volume empty.
            let stated = header.entry_size().ok().or((kind == b'V').then_some(0));
            // A size that pax states is that of the file behind its header.
            let bytes = if is_extension { stated } else { extensions.size.or(stated) };
            let bytes =
                bytes.ok_or_else(|| format!("it is damaged: the header at byte {at} states no size"))?;
            if is_extension {
                let text = self.extension(at, bytes)?;
                extensions.take(kind, text, at)?;
                continue;
            }
            let name = extensions.name.take().unwrap_or_else(|| header.path_bytes().into_owned());
            if name.contains(&0) {
                return Err(format!("it is damaged: the name of the member at byte {at} holds a NUL"));
            }
            let holds = self.holds(at, &header, &name, bytes, extensions)?;
            return Ok(Some(ArchiveEntry { name, at, holds }));
        }
    }

    fn go_to(&mut self, walk: Option<TarCursor>) -> Result<TarCursor, String> {
        let here = std::mem::replace(&mut self.place, walk.unwrap_or_default());
        self.seek(self.place.next).map(|()| here)
    }

    fn target(&mut self, link: &ArchiveLink) -> Result<ArchiveLink, String> {
        Ok(link.clone())
    }

    fn path(name: &[u8], link: &ArchiveLink) -> Result<Vec<u8>, Astray> {
        link.path(name)
    }

    fn is_hard(link: &ArchiveLink) -> bool {
        matches!(link, ArchiveLink::Hard(_))
    }
}

impl<R: Read + Seek> Archive<R> {
    /// What the entry holds whose header was just read; goes behind it.
    fn holds(
        &mut self,
        at: u64,
        header: &Header,
        name: &[u8],
        bytes: u64,
        extensions: Extensions,
    ) -> Result<EntryContent<TarPlace, ArchiveLink>, String> {
        let data = at + BLOCK;
        let target = || extensions.target.clone().or_else(|| Some(header.link_name_bytes()?.into_owned()));
        let target = || target().unwrap_or_default();
        // What has no bytes may state a size all the same.
        let (holds, bytes) = match header.entry_type() {
            EntryType::Regular if header.as_bytes()[156] == 0 && name.ends_with(b"/") => {
                (EntryContent::Nothing(PassedOver::Folder), 0)
            }
            EntryType::Regular | EntryType::Continuous => match extensions.is_sparse {
                true => (EntryContent::File(Err(Astray::Sparse)), bytes),
                false => (EntryContent::File(Ok([data, bytes])), bytes),
            },
            EntryType::GNUSparse => {
                (EntryContent::File(Err(Astray::Sparse)), bytes + self.sparse_headers(at, header)? * BLOCK)
            }
            EntryType::Link => {
                let has_bytes = bytes > 0 && (extensions.is_pax || !self.is_header_next(data)?);
                (EntryContent::Link(ArchiveLink::Hard(target())), if has_bytes { bytes } else { 0 })
            }
            EntryType::Symlink => (EntryContent::Link(ArchiveLink::Symbolic(target())), 0),
            EntryType::Directory => (EntryContent::Nothing(PassedOver::Folder), 0),
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                (EntryContent::Nothing(PassedOver::Special), 0)
            }
            _ => match header.as_bytes()[156] {
                // A folder with the list of its files, of an incremental backup.
                b'D' => (EntryContent::Nothing(PassedOver::Folder), bytes),
                b'M' => {
                    return Err(format!(
                        "it is one of several volumes: at byte {at} a member goes on that begins in another one; join them into one archive"
                    ));
                }
                _ => (EntryContent::Nothing(PassedOver::OtherEntry), bytes),
            },
        };
        // The last block may lack what fills it up.
        if data.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(format!(
                "it is cut short: it ends at byte {}, within the member of {bytes} bytes whose header stands at byte {at}",
                self.len
            ));
        }
        let end = bytes.checked_next_multiple_of(BLOCK).and_then(|len| data.checked_add(len));
        self.seek(end.ok_or("it is damaged")?)?;
        Ok(holds)
    }

    /// The next header that is none of zeros, in front of which the place of the walk stands then; `None` at the end of the file.
    fn header(&mut self) -> Result<Option<Header>, String> {
        loop {
            let TarCursor { next: at, has_ended } = self.place;
            let mut header = Header::new_old();
            let left = self.len.saturating_sub(at).min(BLOCK) as usize;
            let block = &mut header.as_mut_bytes()[..left];
            self.input.read_exact(block).map_err(|error| format!("at byte {at}: {error}"))?;
            let is_zero = block.iter().all(|byte| *byte == 0);
            if is_zero && left == BLOCK as usize {
                self.place = TarCursor { next: at + BLOCK, has_ended: true };
                continue;
            }
            if let Some((_, what, command)) =
                COMPRESSED.iter().find(|(magic, ..)| at == 0 && block.starts_with(magic))
            {
                return Err(format!(
                    "it is compressed by {what}, and single samples can only be read of an uncompressed archive: use `{command}`"
                ));
            }
            if left < BLOCK as usize && !has_ended {
                let what = if at == 0 { "it is no tar archive" } else { "it is cut short" };
                return Err(format!(
                    "{what}: it ends at byte {}, where a header or the end of the archive is expected",
                    self.len
                ));
            }
            if is_zero {
                return Ok(None);
            }
            if left < BLOCK as usize || !has_its_sum(&header) {
                return Err(match has_ended {
                    true => format!(
                        "behind the end of the archive, from byte {at} on, stand bytes that are no archive: cut them off with `head -c {at} FILE > NEW`"
                    ),
                    false if at == 0 => "it is no tar archive: at byte 0 stands no header of a member".into(),
                    false => format!("it is damaged: at byte {at} stands no header of a member"),
                });
            }
            self.place.has_ended = false;
            return Ok(Some(header));
        }
    }

    /// The content of an extension, whose header at `at` was just read; goes behind it.
    fn extension(&mut self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        if len > LONGEST_HEADER {
            return Err(format!("it is damaged: the header at byte {at} says that a name has {len} bytes"));
        }
        let end = at + BLOCK + len;
        if end > self.len {
            return Err(format!(
                "it is cut short: it ends at byte {}, within the header of {len} bytes at byte {at}",
                self.len
            ));
        }
        let mut bytes = vec![0; len as usize];
        self.input.read_exact(&mut bytes).map_err(|error| format!("at byte {at}: {error}"))?;
        self.seek(end.next_multiple_of(BLOCK))?;
        Ok(bytes)
    }

    /// How many more headers of a sparse member follow its first one.
    fn sparse_headers(&mut self, at: u64, header: &Header) -> Result<u64, String> {
        let mut more = header.as_gnu().is_some_and(tar::GnuHeader::is_extended);
        let mut n = 0;
        while more {
            let mut block = [0; BLOCK as usize];
            self.input.read_exact(&mut block).map_err(|error| format!("at byte {at}: {error}"))?;
            more = block[504] != 0;
            n += 1;
        }
        Ok(n)
    }

    /// Whether a header, or the end of the archive, stands at `at`: old programs state the size of a file for a link to it, whose bytes do not follow.
    fn is_header_next(&mut self, at: u64) -> Result<bool, String> {
        let mut header = Header::new_old();
        match self.input.read_exact(header.as_mut_bytes()) {
            Ok(()) => Ok(header.as_bytes().iter().all(|byte| *byte == 0) || has_its_sum(&header)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(format!("at byte {at}: {error}")),
        }
    }

    fn seek(&mut self, to: u64) -> Result<(), String> {
        self.place.next = to;
        self.input.seek(SeekFrom::Start(to)).map(drop).map_err(|error| error.to_string())
    }
}

impl Extensions {
    fn take(&mut self, kind: u8, mut text: Vec<u8>, at: u64) -> Result<(), String> {
        if matches!(kind, b'L' | b'K') {
            text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
            let which = if kind == b'L' { &mut self.name } else { &mut self.target };
            *which = Some(text);
            return Ok(());
        }
        let damaged = |what: &str| format!("it is damaged: the pax header at byte {at} {what}");
        for (key, value) in pax(&text).ok_or_else(|| damaged("cannot be read"))? {
            let is_of_member =
                matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.");
            if kind == b'g' && is_of_member {
                return Err(format!(
                    "the pax header at byte {at} gives one `{}` to all members, which is not read: write the archive again without it",
                    String::from_utf8_lossy(key)
                ));
            }
            match key {
                b"path" if !self.is_sparse => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => {
                    let bytes = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(bytes.ok_or_else(|| damaged("has no size"))?);
                }
                b"GNU.sparse.name" => (self.name, self.is_sparse) = (Some(value.to_vec()), true),
                _ if key.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
        }
        self.is_pax |= kind != b'g';
        Ok(())
    }
}

/// The checksum of a header, which counts itself as blanks; old programs added bytes with a sign.
fn has_its_sum(header: &Header) -> bool {
    let sum = |value: fn(u8) -> i64| -> i64 {
        let bytes = header.as_bytes().iter().enumerate();
        bytes.map(|(at, byte)| value(if (148..156).contains(&at) { b' ' } else { *byte })).sum()
    };
    let stated = header.cksum().ok().map(i64::from);
    stated.is_some_and(|stated| [sum(i64::from), sum(|byte| i64::from(byte.cast_signed()))].contains(&stated))
}

/// The records `length key=value\n` of a pax header.
fn pax(mut text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !text.is_empty() {
        let blank = text.iter().position(|byte| *byte == b' ')?;
        let len: usize = std::str::from_utf8(&text[..blank]).ok()?.parse().ok()?;
        let record = text.get(blank + 1..len)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        text = &text[len..];
    }
    Some(records)
}

#[cfg(test)]
#[path = "tar_members_tests.rs"]
pub mod tests;
