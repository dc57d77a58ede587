//! A log that is written: frames in a file of its own. It knows no meaning of a body, and reads none.

use std::io;
use std::path::Path;

use bincode::Encode;

use super::append_file::AppendFile;
use super::frame::{LogEnd, encode};
use crate::atomic::write_atomic;

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) file: AppendFile,
    end: LogEnd,
}

impl Log {
    /// Begins a log with its first frame: it is there as a whole, durably, or not at all.
    pub(crate) fn begin(path: &Path, kind: u8, body: &impl Encode) -> io::Result<Self> {
        let (bytes, end) = encode(kind, body, LogEnd::START)?;
        write_atomic(path, &bytes)?;
        Ok(Self { file: AppendFile::open(path)?, end })
    }

    /// Goes on with a log, or makes the file. What lies behind its end is cut off.
    pub(crate) fn go_on(path: &Path, end: LogEnd) -> io::Result<Self> {
        let mut file = AppendFile::open(path)?;
        file.cut(end.len)?;
        Ok(Self { file, end })
    }

    pub(crate) fn end(&self) -> LogEnd {
        self.end
    }

    /// Writes a frame, which then counts; on an error the log counts as before, with a torn frame behind it that the next one replaces.
    pub(crate) fn append(&mut self, kind: u8, body: &impl Encode) -> io::Result<()> {
        let (bytes, end) = encode(kind, body, self.end)?;
        self.file.write_at(&bytes, self.end.len)?;
        self.end_at(end);
        Ok(())
    }

    /// The log ends here from now on.
    pub(crate) fn end_at(&mut self, end: LogEnd) {
        self.file.accept(end.len);
        self.end = end;
    }
}
