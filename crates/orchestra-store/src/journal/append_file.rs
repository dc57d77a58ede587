//! A file that only grows, with the length that counts. Decides nothing about when it grows.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;

use crate::journal::frame::crc_of;
use crate::layout::foreign;

/// What takes its place since it was looked at is no link either.
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// An open file and how much of it counts. What lies beyond that is not committed.
#[derive(Debug)]
pub(crate) struct AppendFile {
    path: PathBuf,
    file: File,
    len: u64,
    dirty: bool,
    /// What counts from `own` on was appended by this process, and has this checksum.
    own: u64,
    crc: Hasher,
    /// When this process has changed it last.
    changed: Cell<(i64, i64)>,
}

/// Something other than this run changed a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    Deleted,
    Length(u64),
    /// What this process has appended is there no more.
    Content,
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
        let meta = file.metadata()?;
        let (len, changed) = (meta.len(), Cell::new((meta.mtime(), meta.mtime_nsec())));
        Ok(Self { path: path.to_owned(), file, len, dirty: true, own: len, crc: Hasher::new(), changed })
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

    /// Whether the file is as this run left it. Its content is read only where the time of its last change is another one: some file systems set that
    /// on their own.
    pub(crate) fn disturbance(&self) -> io::Result<Option<Disturbance>> {
        let m = self.file.metadata()?;
        if m.nlink() == 0 {
            return Ok(Some(Disturbance::Deleted));
        }
        if m.len() != self.len {
            return Ok(Some(Disturbance::Length(m.len())));
        }
        let changed = (m.mtime(), m.mtime_nsec());
        if changed != self.changed.get() {
            if crc_of(&self.file, self.own, self.len - self.own)? != self.crc.clone().finalize() {
                // Shorter than the journal says: so the next start takes no byte of it on trust.
                self.file.set_len(self.len.saturating_sub(1))?;
                return Ok(Some(Disturbance::Content));
            }
            self.changed.set(changed);
        }
        Ok(None)
    }

    fn note_change(&self) -> io::Result<()> {
        let m = self.file.metadata()?;
        self.changed.set((m.mtime(), m.mtime_nsec()));
        Ok(())
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
        self.file.write_all_at(bytes, offset)?;
        self.note_change()
    }

    /// From now on `len` bytes count. Their content is of no interest, or has checksums of its own.
    pub(crate) fn accept(&mut self, len: u64) {
        (self.len, self.own, self.crc) = (len, len, Hasher::new());
    }

    /// From now on so many more bytes count, with this checksum.
    pub(crate) fn accept_more(&mut self, bytes: u64, crc: &Hasher) {
        self.len += bytes;
        self.crc.combine(crc);
    }

    /// Cuts the file back to `len` bytes, which then count.
    pub(crate) fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        (self.len, self.own, self.crc) = (len, len, Hasher::new());
        self.dirty = true;
        self.note_change()
    }

    /// Cuts off what does not count.
    pub(crate) fn roll_back(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.len {
            self.file.set_len(self.len)?;
            self.note_change()?;
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
