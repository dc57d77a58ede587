//! The files of a run as they are on the disk, beside what its journal says of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Beginning, Check};
use crate::folder::{Foreign, is_foreign};
use crate::journal::append_file::length_of;
use crate::journal::entry::{Group, is_of_rows, resolve};
use crate::journal::placed::Placed;

/// The files as they are on the disk.
pub(super) struct Files {
    folder: PathBuf,
    files: Vec<OnDisk>,
    check: Check,
}

struct OnDisk {
    path: PathBuf,
    len: u64,
    /// It may begin anew, so that its length says nothing of its beginning, and is always read.
    begins_anew: bool,
    /// Where in the journal it does for the last time.
    last_beginning: Option<u64>,
    file: Option<File>,
}

impl Files {
    pub fn look(
        folder: &Path,
        files: &[PathBuf],
        beginnings: &[Beginning],
        check: Check,
    ) -> io::Result<Self> {
        let files = (0u16..)
            .zip(files)
            .map(|(number, f)| {
                let path = resolve(folder, f);
                let len = match check {
                    Check::Nothing => u64::MAX,
                    Check::Files { .. } => length_of(&path).map_err(|e| named(&path, e))?,
                };
                let last_beginning = beginnings.iter().rfind(|b| b.file == number).map(|b| b.at);
                let begins_anew = is_of_rows(f) || last_beginning.is_some();
                Ok(OnDisk { path, len, begins_anew, last_beginning, file: None })
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self { folder: folder.to_owned(), files, check })
    }

    /// Whether the files hold what `group`, which starts at `start` in the journal, appended; if so, `lengths` grow. Rows that were sealed since
    /// lie in a part: the seal is checked in its turn, and where it does not hold, they do not count either. Records of items that are done again
    /// are gone.
    pub fn hold(&mut self, group: &Group, start: u64, lengths: &mut [u64]) -> io::Result<bool> {
        let mut grown = lengths.to_vec();
        for a in &group.appended {
            let on_disk = &mut self.files[usize::from(a.file)];
            if on_disk.last_beginning.is_some_and(|beginning| beginning > start) {
                let len = &mut grown[usize::from(a.file)];
                let Some(longer) = len.checked_add(a.bytes) else { return Ok(false) };
                *len = longer;
                continue;
            }
            let len = &mut grown[usize::from(a.file)];
            let from = *len;
            match from.checked_add(a.bytes) {
                Some(to) if to <= on_disk.len => *len = to,
                _ => return Ok(false),
            }
            let verify = matches!(self.check, Check::Files { checksums_from } if start >= checksums_from || on_disk.begins_anew);
            if verify && on_disk.checksum(from, a.bytes)? != a.crc {
                return Ok(false);
            }
        }
        lengths.copy_from_slice(&grown);
        Ok(true)
    }

    /// Whether the files that a group, which starts at `start` in the journal, has placed are there. Those that were durable are taken on
    /// trust: what became of them since is the user's business.
    pub fn hold_placed(&self, placed: &[Placed], start: u64) -> io::Result<bool> {
        match self.check {
            Check::Files { checksums_from } if start >= checksums_from => {
                for file in placed {
                    if !file.is_there(&self.folder)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => Ok(true),
        }
    }
}

impl OnDisk {
    fn checksum(&mut self, from: u64, bytes: u64) -> io::Result<u32> {
        if bytes == 0 {
            return Ok(0); // There need not be a file.
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path).map_err(|e| named(&self.path, e))?),
        };
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; usize::try_from(bytes.min(1 << 18)).unwrap_or(1 << 18)];
        let (mut at, end) = (from, from + bytes);
        while at < end {
            let part = (end - at).min(buffer.len() as u64);
            let part = &mut buffer[..usize::try_from(part).unwrap_or(0)];
            file.read_exact_at(part, at).map_err(|e| named(&self.path, e))?;
            hasher.update(part);
            at += part.len() as u64;
        }
        Ok(hasher.finalize())
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    let text = format!("`{}`: {error}", path.display());
    match is_foreign(&error) {
        true => io::Error::other(Foreign(text)),
        false => io::Error::new(error.kind(), text),
    }
}
