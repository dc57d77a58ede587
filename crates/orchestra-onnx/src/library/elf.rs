//! The libraries that a shared library is linked against (its `DT_NEEDED` entries), read from its file. Loads nothing, believes no number of
//! the file, and reads little whatever that says.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

// Sizes, offsets and values from the ELF-64 specification.
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const DYNAMIC_ENTRY_BYTES: usize = 16;
const LITTLE_ENDIAN: u8 = 1;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Real libraries have some dozens of each.
const MAX_PROGRAM_HEADERS: usize = 1024;
const MAX_DYNAMIC_ENTRIES: usize = 4096;
const MAX_NAME_BYTES: usize = 256;

/// The names, in the order of the file. None where the file has no dynamic section. The error completes "it cannot be used: ".
pub(crate) fn needed(path: &Path) -> Result<Vec<String>, String> {
    let mut file = File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    names(&mut file)
}

struct Segment {
    kind: u32,
    file_offset: u64,
    memory_address: u64,
    file_bytes: u64,
}

pub(crate) fn names(file: &mut (impl Read + Seek)) -> Result<Vec<String>, String> {
    let segments = segments(file)?;
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
        return Ok(Vec::new());
    };
    let entries = dynamic_entries(file, dynamic)?;
    let needed: Vec<u64> = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, at)| *at).collect();
    if needed.is_empty() {
        return Ok(Vec::new());
    }
    let table = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).and_then(|(_, address)| {
        let of = segments.iter().find(|s| s.kind == PT_LOAD && s.holds(*address))?;
        of.file_offset.checked_add(address - of.memory_address)
    });
    let table = table.ok_or_else(|| damaged("its table of names lies outside the file"))?;
    needed.iter().map(|at| name(file, table.checked_add(*at))).collect()
}

impl Segment {
    fn holds(&self, address: u64) -> bool {
        address.checked_sub(self.memory_address).is_some_and(|at| at < self.file_bytes)
    }
}

fn segments(file: &mut (impl Read + Seek)) -> Result<Vec<Segment>, String> {
    let header = read(file, 0, HEADER_BYTES)?;
    if !header.starts_with(b"\x7fELF") || header[4] != 2 || header[5] != LITTLE_ENDIAN {
        return Err("it is not a shared library of 64 bits".into());
    }
    let (start, size, count) = (u64_at(&header, 32), u16_at(&header, 54), usize::from(u16_at(&header, 56)));
    if count == 0 {
        return Ok(Vec::new());
    }
    if usize::from(size) != PROGRAM_HEADER_BYTES || count > MAX_PROGRAM_HEADERS {
        return Err(damaged("its list of segments is of another form"));
    }
    let bytes = read(file, start, count * PROGRAM_HEADER_BYTES)?;
    let segment = |header: &[u8]| Segment {
        kind: u32_at(header, 0),
        file_offset: u64_at(header, 8),
        memory_address: u64_at(header, 16),
        file_bytes: u64_at(header, 32),
    };
    Ok(bytes.chunks_exact(PROGRAM_HEADER_BYTES).map(segment).collect())
}

/// Tags and values, up to the entry that ends them.
fn dynamic_entries(file: &mut (impl Read + Seek), dynamic: &Segment) -> Result<Vec<(u64, u64)>, String> {
    let count = usize::try_from(dynamic.file_bytes).unwrap_or(usize::MAX) / DYNAMIC_ENTRY_BYTES;
    let bytes = read(file, dynamic.file_offset, count.min(MAX_DYNAMIC_ENTRIES) * DYNAMIC_ENTRY_BYTES)?;
    let entries = bytes.chunks_exact(DYNAMIC_ENTRY_BYTES).map(|entry| (u64_at(entry, 0), u64_at(entry, 8)));
    Ok(entries.take_while(|(tag, _)| *tag != DT_NULL).collect())
}

fn name(file: &mut (impl Read + Seek), at: Option<u64>) -> Result<String, String> {
    let at = at.ok_or_else(|| damaged("a name lies outside the file"))?;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
    file.take(MAX_NAME_BYTES as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    let end = bytes.iter().position(|b| *b == 0).ok_or_else(|| damaged("a name has no end"))?;
    String::from_utf8(bytes[..end].to_vec()).map_err(|_| damaged("a name is no text"))
}

fn read(file: &mut (impl Read + Seek), at: u64, count: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; count];
    file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
    file.read_exact(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn unreadable(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged("it is cut short"),
        _ => format!("it cannot be read: {error}"),
    }
}

fn damaged(how: &str) -> String {
    format!("the file is damaged: {how}")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Only asked for what `read` has read whole.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A library with one segment that holds all of it, at the address 0x1000, and these names.
    fn library(needed: &[&str]) -> Vec<u8> {
        const AT: u64 = 0x1000;
        let dynamic_at = (HEADER_BYTES + 2 * PROGRAM_HEADER_BYTES) as u64;
        let dynamic_bytes = ((needed.len() + 2) * DYNAMIC_ENTRY_BYTES) as u64;
        let table_at = dynamic_at + dynamic_bytes;
        let (mut table, mut dynamic) = (vec![0], Vec::new());
        for name in needed {
            dynamic.extend([DT_NEEDED, table.len() as u64]);
            table.extend(name.as_bytes());
            table.push(0);
        }
        dynamic.extend([DT_STRTAB, AT + table_at, DT_NULL, 0]);
        let total = table_at + table.len() as u64;

        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(HEADER_BYTES, 0);
        bytes[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&(PROGRAM_HEADER_BYTES as u16).to_le_bytes());
        bytes[56..58].copy_from_slice(&2u16.to_le_bytes());
        for (kind, offset, size) in [(PT_LOAD, 0, total), (PT_DYNAMIC, dynamic_at, dynamic_bytes)] {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 4]);
            for value in [offset, AT + offset, 0, size, size, 0] {
                bytes.extend(value.to_le_bytes());
            }
        }
        bytes.extend(dynamic.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(table);
        bytes
    }

    fn of(bytes: &[u8]) -> Result<Vec<String>, String> {
        names(&mut Cursor::new(bytes))
    }

    #[test]
    fn names_are_read_in_order_and_a_library_may_have_none() {
        let names = ["libcublasLt.so.13", "libc.so.6"];
        assert_eq!(of(&library(&names)).unwrap(), names);
        assert_eq!(of(&library(&[])).unwrap(), [] as [&str; 0]);
        let mut without_segments = b"\x7fELF\x02\x01".to_vec();
        without_segments.resize(HEADER_BYTES, 0);
        assert_eq!(of(&without_segments).unwrap(), [] as [&str; 0]);
    }

    #[test]
    fn a_program_of_this_machine_needs_the_c_library() {
        let program = std::env::current_exe().unwrap();
        let names = needed(&program).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error_wherever_it_ends() {
        let whole = library(&["libcublas.so.12", "libcudart.so.12"]);
        for end in 0..whole.len() {
            assert!(of(&whole[..end]).is_err(), "{end} of {} bytes", whole.len());
        }
    }

    #[test]
    fn no_number_of_the_file_is_believed() {
        let whole = library(&["libcublas.so.12"]);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                // Whatever comes out: no panic, no endless read, nothing huge.
                let names = of(&bytes).unwrap_or_default();
                assert!(names.iter().all(|name| name.len() <= MAX_NAME_BYTES));
            }
        }
    }
}
