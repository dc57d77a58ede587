//! A file that only grows, with the length that counts. Decides nothing about when it grows.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::folder::foreign;

/// What takes its place since it was looked at is no link either.
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// An open file and how much of it counts. What lies beyond that is not committed.
#[derive(Debug)]
pub(crate) struct AppendFile {
    path: PathBuf,
    file: File,
    len: u64,
    dirty: bool,
}

/// Something other than this run changed a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    Deleted,
    Length(u64),
}

impl AppendFile {
    /// Opens or makes the file at `path`; all of it counts.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // A journal that others made must not lead to a file of theirs, which is then written and cut.
        if path.is_symlink() {
            return Err(foreign("a link"));
        }
        // A fifo would block the open, and a device cannot be cut back: only a regular file can hold exact records.
        if path.metadata().is_ok_and(|m| !m.is_file()) {
            return Err(foreign("not a regular file"));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(NO_FOLLOW)
            .open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, dirty: true })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that count.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Device and inode, to tell whether two paths name one file.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        let m = self.file.metadata()?;
        Ok((m.dev(), m.ino()))
    }

    /// Whether the file is as this run left it.
    pub(crate) fn disturbance(&self) -> io::Result<Option<Disturbance>> {
        let m = self.file.metadata()?;
        Ok(if m.nlink() == 0 {
            Some(Disturbance::Deleted)
        } else if m.len() != self.len {
            Some(Disturbance::Length(m.len()))
        } else {
            None
        })
    }

    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.len).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Reads all that counts now. Nothing else may use the position of the file meanwhile, which no other method here does.
    pub(crate) fn reader(&self) -> io::Result<impl Read + use<>> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        Ok(BufReader::with_capacity(1 << 18, file.take(self.len)))
    }

    /// Writes beyond what counts; it counts only after `accept`.
    pub(crate) fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.dirty = true;
        self.file.write_all_at(bytes, offset)
    }

    /// From now on `len` bytes count.
    pub(crate) fn accept(&mut self, len: u64) {
        self.len = len;
    }

    /// Cuts the file back to `len` bytes, which then count.
    pub(crate) fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len = len;
        self.dirty = true;
        Ok(())
    }

    /// Cuts off what does not count.
    pub(crate) fn roll_back(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.len {
            self.file.set_len(self.len)?;
        }
        Ok(())
    }

    /// Makes the file durable if it changed since the last time.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.sync_data()?;
            self.dirty = false;
        }
        Ok(())
    }
}

/// Length of the file at `path`, 0 if there is none.
pub(crate) fn length_of(path: &Path) -> io::Result<u64> {
    match path.metadata() {
        Ok(m) if m.is_file() => Ok(m.len()),
        Ok(_) => Err(foreign("not a regular file")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}
