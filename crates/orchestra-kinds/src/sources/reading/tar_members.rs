//! The members of an uncompressed tar archive: where each lies and what it is called. It reads headers alone, believes no size before it is
//! checked, and knows the ways to write a long name: ustar's prefix, GNU's `L` and the `path` of pax.

use std::io::{self, Read, Seek, SeekFrom};

/// Bytes of a header, and what all sizes are rounded up to.
const BLOCK: u64 = 512;

/// No name and no extended header is longer, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: Vec<u8>,
    /// Where its bytes begin.
    pub at: u64,
    pub len: u64,
}

/// Reads an archive from its beginning.
#[derive(Debug)]
pub struct Members<R> {
    input: R,
    /// Bytes of the whole file.
    len: u64,
    /// Where the next header stands.
    next: u64,
}

impl<R: Read + Seek> Members<R> {
    pub fn new(mut input: R) -> io::Result<Self> {
        let len = input.seek(SeekFrom::End(0))?;
        input.rewind()?;
        Ok(Self { input, len, next: 0 })
    }

    /// The next file; `None` at the end of the archive. Folders, links and the like are passed over.
    ///
    /// # Errors
    /// What is wrong, and at which byte.
    pub fn next(&mut self) -> Result<Option<Member>, String> {
        let mut name: Option<Vec<u8>> = None;
        let mut size: Option<u64> = None;
        loop {
            let at = self.next;
            if self.len < at + BLOCK {
                let what = if at == 0 { "it is no tar archive" } else { "it is cut short" };
                return Err(format!(
                    "{what}: it ends at byte {}, where a header or the end of the archive is expected",
                    self.len
                ));
            }
            let mut header = [0; BLOCK as usize];
            self.input.read_exact(&mut header).map_err(|error| format!("at byte {at}: {error}"))?;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            if at == 0 && header.starts_with(b"\x1f\x8b") {
                return Err("it is compressed by gzip, and single samples can only be read of an uncompressed archive: use `gunzip`".into());
            }
            let stated = number(&header[124..136]);
            if !has_its_sum(&header) {
                let what = if at == 0 { "it is no tar archive" } else { "it is damaged" };
                return Err(format!("{what}: at byte {at} stands no header of a member"));
            }
            let kind = header[156];
            let is_extension = matches!(kind, b'L' | b'K' | b'x' | b'g');
            // A size that pax states is that of the file behind its header.
            let bytes = if is_extension { stated } else { size.or(stated) };
            let bytes =
                bytes.ok_or_else(|| format!("it is damaged: the header at byte {at} states no size"))?;
            let data = at + BLOCK;
            let end = bytes.checked_next_multiple_of(BLOCK).and_then(|len| data.checked_add(len));
            // The last block may lack what fills it up.
            if data.checked_add(bytes).is_none_or(|end| end > self.len) {
                return Err(format!(
                    "it is cut short: it ends at byte {}, within the member of {bytes} bytes whose header stands at byte {at}",
                    self.len
                ));
            }
            self.next = end.ok_or("it is damaged")?;
            match kind {
                b'L' => {
                    let mut text = self.extension(at, bytes)?;
                    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
                    name = Some(text);
                }
                b'x' => {
                    let text = self.extension(at, bytes)?;
                    let records = pax(&text).ok_or_else(|| {
                        format!("it is damaged: the pax header at byte {at} cannot be read")
                    })?;
                    for (key, value) in records {
                        match key {
                            b"path" => name = Some(value.to_vec()),
                            b"size" => {
                                let bytes =
                                    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                                size = Some(bytes.ok_or_else(|| {
                                    format!("it is damaged: the pax header at byte {at} has no size")
                                })?);
                            }
                            _ if key.starts_with(b"GNU.sparse.") => return Err(sparse(at)),
                            _ => {}
                        }
                    }
                }
                b'S' => return Err(sparse(at)),
                b'0' | 0 | b'7' => {
                    self.skip()?;
                    let name = name.take().unwrap_or_else(|| short_name(&header));
                    return Ok(Some(Member { name, at: data, len: bytes }));
                }
                b'K' | b'g' => {}
                _ => (name, size) = (None, None),
            }
            self.skip()?;
        }
    }

    /// The content of an extension, whose header was just read.
    fn extension(&mut self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        if len > LONGEST_HEADER {
            return Err(format!("it is damaged: the header at byte {at} says that a name has {len} bytes"));
        }
        let mut bytes = vec![0; len as usize];
        self.input.read_exact(&mut bytes).map_err(|error| format!("at byte {at}: {error}"))?;
        Ok(bytes)
    }

    fn skip(&mut self) -> Result<(), String> {
        self.input.seek(SeekFrom::Start(self.next)).map(drop).map_err(|error| error.to_string())
    }
}

fn sparse(at: u64) -> String {
    format!("the member at byte {at} is sparse, which is not read: write the archive without `--sparse`")
}

/// The checksum of a header, which counts itself as blanks; old programs added bytes with a sign.
fn has_its_sum(header: &[u8; BLOCK as usize]) -> bool {
    let sum = |value: fn(u8) -> i64| -> i64 {
        header
            .iter()
            .enumerate()
            .map(|(at, byte)| value(if (148..156).contains(&at) { b' ' } else { *byte }))
            .sum()
    };
    let stated = number(&header[148..156]).and_then(|sum| i64::try_from(sum).ok());
    stated.is_some_and(|stated| [sum(i64::from), sum(|byte| i64::from(byte.cast_signed()))].contains(&stated))
}

/// A number of a header: octal text, or where the highest bit is set, big-endian.
fn number(field: &[u8]) -> Option<u64> {
    if let Some((first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let high = u64::from(first & 0x7f);
        return rest.iter().try_fold(high, |n, byte| (n >> 55 == 0).then_some(n << 8 | u64::from(*byte)));
    }
    let text = field.split(|byte| *byte == 0).next()?.trim_ascii();
    let digit = |n: u64, byte: &u8| (b'0'..=b'7').contains(byte).then(|| n * 8 + u64::from(byte - b'0'));
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

fn short_name(header: &[u8; BLOCK as usize]) -> Vec<u8> {
    let text = |field: &[u8]| field.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    let name = text(&header[..100]);
    // GNU's own format has other things in place of the prefix.
    let prefix = if &header[257..263] == b"ustar\0" { text(&header[345..500]) } else { Vec::new() };
    if prefix.is_empty() { name } else { [prefix, name].join(&b'/') }
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
pub mod tests {
    use std::io::Cursor;

    use super::*;

    /// A header and the content behind it.
    pub fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = kind;
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            members.iter().flat_map(|(name, content)| member(name, b'0', content)).collect();
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Member>, String> {
        let mut members = Members::new(Cursor::new(bytes)).unwrap();
        let mut all = Vec::new();
        while let Some(member) = members.next()? {
            all.push(member);
        }
        Ok(all)
    }

    #[test]
    fn long_names_are_read_in_each_form_and_what_is_no_file_is_passed_over() {
        let long = "d/".repeat(90) + "x.txt";
        let record = format!("path={long}\n");
        let pax = format!("{} {record}", record.len() + 4);
        let mut bytes = member("folder/", b'5', b"");
        bytes.extend(member("././@LongLink", b'L', format!("{long}\0").as_bytes()));
        bytes.extend(member("cut", b'0', b"gnu"));
        bytes.extend(member("pax", b'x', pax.as_bytes()));
        bytes.extend(member("cut", b'0', b"pax!"));
        bytes.extend(member("short", 0, b""));
        bytes.resize(bytes.len() + 512, 0);
        let members = read(&bytes).unwrap();
        let found: Vec<_> =
            members.iter().map(|m| (m.name.clone(), &bytes[m.at as usize..][..m.len as usize])).collect();
        let long = long.into_bytes();
        assert_eq!(found, [(long.clone(), &b"gnu"[..]), (long, b"pax!"), (b"short".to_vec(), b"")]);
    }

    #[test]
    fn no_piece_of_an_archive_is_taken_for_a_whole_one_and_no_size_is_believed() {
        let bytes = archive(&[("a.txt", &[7; 700]), ("b.txt", b"b")]);
        assert_eq!(read(&bytes).unwrap().len(), 2);
        for len in 0..bytes.len() - 1024 {
            let error = read(&bytes[..len]).unwrap_err();
            assert!(error.contains(&format!("ends at byte {len}")), "{error}");
        }
        let mut huge = member("././@LongLink", b'L', b"");
        huge[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(read(&huge).unwrap_err().contains("no header"), "its sum is wrong by now");
        for at in [0, 100, 130, 150, 300] {
            let mut bent = bytes.clone();
            bent[1536 + at] ^= 0x55;
            let error = read(&bent).unwrap_err();
            assert!(error.contains("byte 1536"), "{error}");
        }
        assert!(read(b"\x1f\x8b").unwrap_err().contains("no tar"));
        assert!(read(&[b"\x1f\x8b".repeat(300)].concat()).unwrap_err().contains("gunzip"));
        assert_eq!(number(&[0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]), Some(1 << 56));
        assert_eq!(number(&[0xff; 12]), None);
    }
}
