//! The log of a command: each line with the time at which it came. Keeps the last lines for messages, and has the others read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::time::SystemTime;

use crate::keeper::curves::created;
use crate::keeper::metrics::MetricReader;

/// A longer line is cut into several.
const MAX_LINE: usize = 64 << 10;
/// What is kept of the last lines: how many, and bytes of all. In these a command is expected to have said why it failed: what has started it, such as
/// `torchrun`, may say a page of its own behind that.
const LAST_LINES: usize = 200;
const LAST_BYTES: usize = 64 << 10;

/// Bytes of a log. One that grows beyond them keeps its first half, and begins the second anew.
const MOST_BYTES: u64 = 1 << 30;

pub(crate) struct CommandLog {
    file: File,
    /// Bytes that it has, and may have.
    written: u64,
    most: u64,
    line: Vec<u8>,
    /// A line feed now belongs to the carriage return before it.
    after_return: bool,
    last: VecDeque<String>,
    last_bytes: usize,
    pub metrics: MetricReader,
    pub error: Option<String>,
}

impl CommandLog {
    pub fn create(path: &str, metrics: MetricReader) -> io::Result<Self> {
        Ok(Self {
            file: created(path)?,
            written: 0,
            most: MOST_BYTES,
            line: Vec::new(),
            after_return: false,
            last: VecDeque::new(),
            last_bytes: 0,
            metrics,
            error: None,
        })
    }

    /// Takes what the command has written. A carriage return ends a line, too: so the states of a progress bar are lines.
    pub fn push(&mut self, bytes: &[u8]) {
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let mut lines = Vec::with_capacity(bytes.len() + 64);
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => {}
                b'\n' => self.end_line(&now, &mut lines),
                b'\r' if self.line.is_empty() => {}
                b'\r' => self.end_line(&now, &mut lines),
                _ => self.line.push(byte),
            }
            self.after_return = byte == b'\r';
            if self.line.len() >= MAX_LINE {
                self.end_line(&now, &mut lines);
            }
        }
        self.write(&lines);
        if let Some(curves) = &mut self.metrics.curves {
            curves.write();
        }
    }

    /// Ends the last line, and gives the last lines.
    pub fn finish(&mut self) -> String {
        let mut lines = Vec::new();
        if !self.line.is_empty() {
            let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            self.end_line(&now, &mut lines);
        }
        self.write(&lines);
        if let Some(curves) = &mut self.metrics.curves {
            curves.finish();
            self.error = self.error.take().or(curves.error.take());
        }
        Vec::from(std::mem::take(&mut self.last)).join("\n")
    }

    fn end_line(&mut self, now: &str, lines: &mut Vec<u8>) {
        lines.extend(now.bytes().chain([b' ']));
        lines.extend_from_slice(&self.line);
        lines.push(b'\n');
        let mut line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        self.metrics.line(&text);
        if !text.trim().is_empty() {
            self.keep(&text[..text.floor_char_boundary(LAST_BYTES)]);
        }
        // Its memory is kept.
        line.clear();
        self.line = line;
    }

    fn keep(&mut self, line: &str) {
        self.last_bytes += line.len();
        self.last.push_back(line.to_owned());
        while self.last.len() > LAST_LINES || self.last_bytes > LAST_BYTES {
            self.last_bytes -= self.last.pop_front().map_or(0, |first| first.len());
        }
    }

    /// A full disk is no reason to end a command: it is told at the end.
    fn write(&mut self, lines: &[u8]) {
        let written = self.make_room(lines.len() as u64).and_then(|()| self.file.write_all(lines));
        if let Err(error) = written {
            self.error.get_or_insert(error.to_string());
        }
        self.written += lines.len() as u64;
    }

    /// How a command has begun and how it ends says most, so what is left out stands between.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        if self.written.saturating_add(bytes) <= self.most {
            return Ok(());
        }
        let notice =
            format!("\n[a log has at most {} MiB: lines that stood here are left out]\n", self.most >> 20);
        self.file.set_len(self.most / 2)?;
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(notice.as_bytes())?;
        self.written = self.most / 2 + notice.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_stamped_once_and_the_last_are_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = MetricReader::new(&[], None).unwrap();
        let mut log = CommandLog::create(file.path().to_str().unwrap(), reader).unwrap();
        for piece in [&b"a\nb"[..], b"c\r10%\r\n", b"\n\xc3", b"end"] {
            log.push(piece);
        }
        assert_eq!(log.last, ["a", "bc", "10%"]);
        log.push(&vec![b'x'; MAX_LINE]);
        assert_eq!(log.finish(), "xxxx", "what it is cut to fills all the room for last lines");
        let text = String::from_utf8_lossy(&std::fs::read(file.path()).unwrap()).into_owned();
        let bare: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(bare[..4], ["a", "bc", "10%", ""]);
        assert!(
            text.lines().all(|line| line.as_bytes()[10] == b'T' && line.as_bytes()[23] == b'Z'),
            "{text}"
        );
        assert_eq!(bare.len(), 6, "a line that is too long is two");
    }

    #[test]
    fn a_log_has_a_size_and_keeps_its_beginning_and_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log =
            CommandLog::create(file.path().to_str().unwrap(), MetricReader::new(&[], None).unwrap()).unwrap();
        log.most = 64 << 10;
        for n in 0..100_000 {
            log.push(format!("line {n}\n").as_bytes());
            assert!(file.path().metadata().unwrap().len() <= log.most);
        }
        log.finish();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.lines().next().unwrap().ends_with(" line 0") && text.ends_with(" line 99999\n"));
        assert!(text.contains("lines that stood here are left out") && log.error.is_none());
    }

    #[test]
    fn of_the_last_lines_so_many_are_kept_whole_and_so_many_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = || MetricReader::new(&[], None).unwrap();
        let last = |text: &str| {
            let mut log = CommandLog::create(file.path().to_str().unwrap(), reader()).unwrap();
            log.push(text.as_bytes());
            log.finish()
        };
        let short: Vec<String> = (0..=LAST_LINES).map(|n| n.to_string()).collect();
        assert_eq!(last(&short.join("\n")), short[1..].join("\n"));
        // The middle of a long line counts, and of several as many as there is room for.
        let long = [b'a', b'b', b'c'].map(|letter| String::from_utf8(vec![letter; LAST_BYTES / 2]).unwrap());
        assert_eq!(last(&long.join("\n")), long[1..].join("\n"));
        // What is no UTF-8 takes more room as text.
        let mut log = CommandLog::create(file.path().to_str().unwrap(), reader()).unwrap();
        log.push(&vec![0xff; MAX_LINE]);
        let kept = log.finish();
        assert!((LAST_BYTES - 2..=LAST_BYTES).contains(&kept.len()), "{}", kept.len());
    }
}
