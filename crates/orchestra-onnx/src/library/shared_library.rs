//! Judges a shared library by its file: whether it is for this processor, and what it is linked against. Loads nothing.

use std::fs::File;
use std::path::Path;

use object::elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, ET_DYN, FileHeader64};
use object::read::Error;
use object::read::elf::{Dyn as _, FileHeader as _};
use object::{Endianness, ReadCache};

/// The names of the libraries that the file is linked against, as `readelf -d` lists them. The error completes "it cannot be used: ".
pub(crate) fn needed(path: &Path) -> Result<Vec<String>, String> {
    if !path.is_file() {
        return Err("it is not a file".into());
    }
    let file = File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    // Only what is asked for is read: some of these files have hundreds of megabytes.
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data)
        .map_err(|error| format!("it is not a shared library of 64 bits ({error})"))?;
    let damaged = |error: Error| format!("the file is damaged: {error}");
    let endian = header.endian().map_err(damaged)?;
    if header.e_type(endian) != ET_DYN {
        return Err("it is an ELF file, but not a shared library".into());
    }
    let expected = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
    if header.e_machine(endian) != expected {
        return Err(format!("it is built for another processor than `{}`", std::env::consts::ARCH));
    }
    names(header, endian, &data).map_err(damaged)
}

fn names(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: &ReadCache<File>,
) -> Result<Vec<String>, Error> {
    let sections = header.sections(endian, data)?;
    let Some((entries, link)) = sections.dynamic(endian, data)? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, data, link)?;
    let needed = entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED);
    needed.map(|entry| Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bytes: &[u8]) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        needed(file.path())
    }

    #[test]
    fn a_program_of_this_machine_needs_the_c_library_and_is_damaged_wherever_it_is_cut() {
        let program = std::env::current_exe().unwrap();
        let names = needed(&program).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        let whole = std::fs::read(&program).unwrap();
        for end in [0, 40, 63, 64, 4096, whole.len() / 2, whole.len() - 1] {
            assert!(judged(&whole[..end]).is_err(), "{end} of {} bytes", whole.len());
        }
    }

    #[test]
    fn files_that_are_no_library_of_this_processor_are_refused() {
        let with = |class: u8, kind: u8, machine: u8| {
            let mut header = b"\x7fELF\0\x01\x01".to_vec();
            header.resize(64, 0);
            (header[4], header[16], header[18]) = (class, kind, machine);
            judged(&header)
        };
        let own = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        assert_eq!(with(2, 3, own), Ok(Vec::new()));
        assert!(with(2, 2, own).unwrap_err().contains("not a shared library"));
        assert!(with(2, 3, 3).unwrap_err().contains("processor"));
        assert!(with(1, 3, 3).unwrap_err().contains("64 bits"));
        assert!(judged(b"version https://git-lfs").unwrap_err().contains("not a shared library"));
        assert!(needed(Path::new("/")).unwrap_err().contains("not a file"));
    }
}
