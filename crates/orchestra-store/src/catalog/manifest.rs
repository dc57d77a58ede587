//! Manifests: lists of paths in CSV, JSON lines or plain lines, read as a stream. Does not look at the files they name.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::ListError;

/// Column names that hold the path, in order of preference.
const PATH_COLUMNS: [&str; 8] =
    ["file", "path", "filename", "filepath", "file_name", "file_path", "image", "image_path"];
/// Longest row that is believed. What is longer is no manifest, and would take memory without bound.
const MAX_ROW_BYTES: u64 = 1 << 20;

/// How long a silent pipe is waited for before the next question whether to go on.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Put behind a CSV file as a row of its own. A quote that is left open swallows it, and is found by that.
const END_ROW: &[u8] = b"\0end of the manifest\0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ManifestFormat {
    Csv(u8),
    JsonLines,
    Lines,
    Sniff,
}

/// Called with the line and the path of each row, until it says no.
pub(crate) type VisitRow<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<bool, ListError>;

/// What messages call the manifest.
pub(crate) fn label(path: Option<&Path>) -> String {
    path.map_or_else(|| "standard input".into(), |p| p.display().to_string())
}

/// Gives the rows of the manifest (`None`: standard input) in order, and says how many of its lines were blank. Where it is a pipe that has nothing to read now, `idle` is called after
/// the rows before, and every now and then until there is something; its error ends the reading.
pub(crate) fn rows(path: Option<&Path>, idle: Idle<'_>, visit: VisitRow<'_>) -> Result<u64, ListError> {
    let label = label(path);
    // A pipe without a writer would hold up a blocking open for ever.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let input = match path {
        Some(path) => OpenOptions::new().read(true).custom_flags(nonblocking).open(path),
        None => io::stdin().as_fd().try_clone_to_owned().map(File::from),
    };
    let input = input.map_err(|e| unreadable(&label, e))?;
    rows_in(Pipe { input, idle }, path, visit)
}

/// As [`rows`], of what `input` reads. `path` says what it is.
pub(crate) fn rows_in(input: impl Read, path: Option<&Path>, visit: VisitRow<'_>) -> Result<u64, ListError> {
    let format = match path.and_then(Path::extension).and_then(|e| e.to_str()) {
        Some("csv") => ManifestFormat::Csv(b','),
        Some("tsv") => ManifestFormat::Csv(b'\t'),
        Some("jsonl" | "ndjson") => ManifestFormat::JsonLines,
        _ => ManifestFormat::Sniff,
    };
    rows_of(BufReader::new(input), format, &label(path), visit)
}

/// Called while there is nothing to read.
pub(crate) type Idle<'a> = &'a dyn Fn() -> Result<(), ListError>;

/// A file that may be a pipe. No read of it waits, so that listing can be stopped.
struct Pipe<'a> {
    input: File,
    idle: Idle<'a>,
}

impl Read for Pipe<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut wait = Timespec::default();
            while !is_readable(&self.input, &wait)? {
                (self.idle)().map_err(io::Error::other)?;
                wait = LOOK_EVERY;
            }
            match self.input.read(buffer) {
                // Another process has read it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Whether there are bytes, an end or an error to be read.
fn is_readable(input: &File, wait: &Timespec) -> io::Result<bool> {
    match poll(&mut [PollFd::new(input, PollFlags::IN)], Some(wait)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn rows_of(
    mut input: impl BufRead,
    format: ManifestFormat,
    label: &str,
    visit: VisitRow<'_>,
) -> Result<u64, ListError> {
    let visit: VisitRow<'_> = &mut |line, path| match impossible(path) {
        Some(reason) => Err(bad_row(label, line, reason)),
        None => visit(line, path),
    };
    let mut first = Vec::new();
    read_line(&mut input, &mut first, 1, label)?;
    if first.starts_with(b"\xef\xbb\xbf") {
        first.drain(..3);
    }
    if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
        return Err(bad_row(label, 1, "it is written in UTF-16; save the file as UTF-8"));
    }
    let format = if format == ManifestFormat::Sniff { sniff(&first) } else { format };
    // The csv crate ends a row at the carriage return, and so places the next one on the line before.
    let skew = u64::from(first.ends_with(b"\r\n"));
    let input = Cursor::new(first).chain(input);
    match format {
        ManifestFormat::Csv(delimiter) => csv_rows(input, delimiter, skew, label, visit),
        ManifestFormat::JsonLines => {
            lines(input, label, &mut |line, text| visit(line, &json_row(text, line, label)?))
        }
        ManifestFormat::Lines | ManifestFormat::Sniff => lines(input, label, visit),
    }
}

/// Why these bytes can be the path of no file.
fn impossible(path: &[u8]) -> Option<&'static str> {
    if path.contains(&0) {
        return Some("its path holds a NUL byte: this is no list of paths");
    }
    let is_folder = path.split(|b| *b == b'/').all(|part| part.is_empty() || part == b".");
    is_folder.then_some("its path names a folder, expected a file")
}

fn sniff(first_line: &[u8]) -> ManifestFormat {
    let text = String::from_utf8_lossy(first_line);
    let text = text.trim();
    if text.starts_with('{') || serde_json::from_str::<String>(text).is_ok() {
        return ManifestFormat::JsonLines;
    }
    let header = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(text.as_bytes())
        .into_byte_records()
        .next()
        .and_then(Result::ok);
    match header {
        Some(header) if path_column(&header).is_some() => ManifestFormat::Csv(b','),
        _ => ManifestFormat::Lines,
    }
}

/// Non-blank lines without their line ends; says how many are blank.
fn lines(mut input: impl BufRead, label: &str, visit: VisitRow<'_>) -> Result<u64, ListError> {
    let mut text = Vec::new();
    let mut n_blank = 0;
    for line in 1.. {
        text.clear();
        if read_line(&mut input, &mut text, line, label)? == 0 {
            break;
        }
        let row = text.strip_suffix(b"\n").unwrap_or(&text);
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        if row.trim_ascii().is_empty() {
            n_blank += 1;
        } else if !visit(line, row)? {
            break;
        }
    }
    Ok(n_blank)
}

fn read_line(
    input: &mut impl BufRead,
    text: &mut Vec<u8>,
    line: u64,
    label: &str,
) -> Result<usize, ListError> {
    let n = input.take(MAX_ROW_BYTES).read_until(b'\n', text).map_err(|error| unreadable(label, error))?;
    if n as u64 == MAX_ROW_BYTES && !text.ends_with(b"\n") {
        return Err(bad_row(label, line, "it is longer than 1 MiB: this is no list of paths"));
    }
    Ok(n)
}

fn json_row(text: &[u8], line: u64, label: &str) -> Result<Vec<u8>, ListError> {
    let value: serde_json::Value = serde_json::from_slice(text)
        .map_err(|_| bad_row(label, line, "it is not JSON; expected a string or an object on each line"))?;
    let path = match &value {
        serde_json::Value::String(path) => Some(path),
        serde_json::Value::Object(row) => {
            PATH_COLUMNS.iter().find_map(|key| row.get(*key)).and_then(|v| match v {
                serde_json::Value::String(path) => Some(path),
                _ => None,
            })
        }
        _ => None,
    };
    match path {
        Some(path) if !path.is_empty() => Ok(path.clone().into_bytes()),
        _ => {
            Err(bad_row(label, line, "expected a string, or an object with the path under `file` or `path`"))
        }
    }
}

fn csv_rows(
    input: impl Read,
    delimiter: u8,
    skew: u64,
    label: &str,
    visit: VisitRow<'_>,
) -> Result<u64, ListError> {
    let (since_row, ends) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(LineEnds::default())));
    let end = [b"\n", END_ROW].concat();
    let input = Counted { input, ends: Rc::clone(&ends) };
    let input = Bounded { input: input.chain(&end[..]), since_row: Rc::clone(&since_row) };
    // Lines of rows: a quoted cell may hold several. The reader passes blank ones over.
    let mut n_lines = 0;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(delimiter)
        .buffer_capacity(64 << 10)
        .from_reader(input);
    let mut row = csv::ByteRecord::new();
    let mut column = None;
    loop {
        let line = reader.position().line();
        if !reader.read_byte_record(&mut row).map_err(|e| csv_error(e, label, line))? {
            return Ok(ends.get().n_lines().saturating_sub(n_lines));
        }
        since_row.set(0);
        let line = row.position().map_or(line, csv::Position::line);
        let line = if column.is_some() { line + skew } else { line };
        match row.iter().next_back() {
            Some(last) if last == END_ROW && row.len() == 1 => {
                // A manifest may hold such a row itself.
                let is_end = !reader.read_byte_record(&mut row).map_err(|e| csv_error(e, label, line))?;
                return match is_end {
                    true => Ok(ends.get().n_lines().saturating_sub(n_lines)),
                    false => Err(bad_row(label, line, "it is no path")),
                };
            }
            Some(last) if last.ends_with(END_ROW) => {
                return Err(bad_row(label, line, "a quote is left open in this row"));
            }
            _ => {}
        }
        n_lines += 1 + newlines(row.as_slice());
        let Some(column) = column else {
            let header = path_column(&row);
            column = Some(header.unwrap_or(0));
            if header.is_none() && !visit(line, cell(&row, 0, line, label)?)? {
                return Ok(0);
            }
            continue;
        };
        if !visit(line, cell(&row, column, line, label)?)? {
            return Ok(0);
        }
    }
}

fn cell<'a>(row: &'a csv::ByteRecord, column: usize, line: u64, label: &str) -> Result<&'a [u8], ListError> {
    match row.get(column) {
        Some(path) if !path.is_empty() => Ok(path),
        _ => Err(bad_row(label, line, &format!("column {} holds no path", column + 1))),
    }
}

fn path_column(row: &csv::ByteRecord) -> Option<usize> {
    PATH_COLUMNS
        .iter()
        .find_map(|name| row.iter().position(|cell| cell.trim_ascii().eq_ignore_ascii_case(name.as_bytes())))
}

fn csv_error(error: csv::Error, label: &str, line: u64) -> ListError {
    match error.into_kind() {
        csv::ErrorKind::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
            bad_row(label, line, &e.to_string())
        }
        csv::ErrorKind::Io(error) => unreadable(label, error),
        other => bad_row(label, line, &format!("{other:?}")),
    }
}

/// What failed: the reading, or what was done while there was nothing to read.
fn unreadable(label: &str, error: io::Error) -> ListError {
    error.downcast().unwrap_or_else(|error| ListError::ManifestUnreadable { manifest: label.into(), error })
}

pub(crate) fn bad_row(label: &str, line: u64, reason: &str) -> ListError {
    ListError::BadRow { manifest: label.into(), line, reason: reason.into() }
}

/// Stops a CSV row that never ends (an open quote in a large file) before it fills the memory.
struct Bounded<R> {
    input: R,
    /// Bytes read since the last complete row.
    since_row: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since_row.get() > MAX_ROW_BYTES {
            let message = "the row is longer than 1 MiB: is a quote left open?";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let n = self.input.read(buffer)?;
        self.since_row.set(self.since_row.get() + n as u64);
        Ok(n)
    }
}

/// The ends of lines that were read.
#[derive(Debug, Clone, Copy, Default)]
struct LineEnds {
    count: u64,
    /// Bytes lie behind the last one.
    is_open: bool,
}

impl LineEnds {
    fn n_lines(self) -> u64 {
        self.count + u64::from(self.is_open)
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Counts the lines of what it reads.
struct Counted<R> {
    input: R,
    ends: Rc<Cell<LineEnds>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        if let Some(last) = buffer[..n].last() {
            let count = self.ends.get().count + newlines(&buffer[..n]);
            self.ends.set(LineEnds { count, is_open: *last != b'\n' });
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], format: ManifestFormat) -> Result<Vec<String>, String> {
        let mut rows = Vec::new();
        rows_of(text, format, "list", &mut |line, path| {
            rows.push(format!("{line}:{}", String::from_utf8_lossy(path)));
            Ok(true)
        })
        .map_err(|e| e.to_string())?;
        Ok(rows)
    }

    #[test]
    fn csv_takes_the_named_column_or_the_first() {
        let csv = ManifestFormat::Csv(b',');
        assert_eq!(read(b"label,File\n7,a.png\n1,\"b,c.png\"\n", csv).unwrap(), ["2:a.png", "3:b,c.png"]);
        assert_eq!(read(b"a.png,7\nb.png\n", csv).unwrap(), ["1:a.png", "2:b.png"]);
        assert_eq!(read(b"\xef\xbb\xbfpath\r\na.png\r\n", csv).unwrap(), ["2:a.png"]);
        assert_eq!(read(b"", csv).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn blank_lines_are_counted_in_every_format() {
        let blank =
            |text: &str, format| rows_of(text.as_bytes(), format, "list", &mut |_, _| Ok(true)).unwrap();
        for end in ["\n", "\r\n"] {
            for (format, rows) in [
                (ManifestFormat::Csv(b','), ["file,n", "a.png,1", "\"b\n\n.png\",2"]),
                (ManifestFormat::Csv(b'\t'), ["a.png", "b.png", "c.png"]),
                (ManifestFormat::JsonLines, ["\"a.png\"", "\"b.png\"", "{\"file\": \"c.png\"}"]),
                (ManifestFormat::Sniff, ["a.png", "b.png", "c.png"]),
            ] {
                let [a, b, c] = rows;
                for (text, n) in [
                    (format!("{a}{end}{b}{end}{c}"), 0),
                    (format!("{a}{end}{b}{end}{c}{end}"), 0),
                    (format!("{a}{end}{end}{b}{end}{end}{end}{c}{end}{end}"), 4),
                ] {
                    assert_eq!(blank(&text, format), n, "{format:?}: {text:?}");
                }
            }
        }
        assert_eq!((blank("", ManifestFormat::Csv(b',')), blank("", ManifestFormat::Lines)), (0, 0));
        assert_eq!((blank("\n\n", ManifestFormat::Csv(b',')), blank(" \n\n", ManifestFormat::Lines)), (2, 2));
    }

    #[test]
    fn a_csv_row_without_a_path_is_named_by_line() {
        let error = read(b"label,file\n7,a.png\n1\n", ManifestFormat::Csv(b',')).unwrap_err();
        assert_eq!(error, "manifest `list`, line 3: column 2 holds no path");
    }

    #[test]
    fn an_open_quote_does_not_swallow_a_large_file() {
        let mut text = b"file\n\"".to_vec();
        text.resize(4 << 20, b'x');
        let error = read(&text, ManifestFormat::Csv(b',')).unwrap_err();
        assert!(error.contains("line 2") && error.contains("is a quote left open?"), "{error}");
    }

    #[test]
    fn an_open_quote_is_an_error_and_no_item() {
        for text in [&b"file,n\n\"a.png,1\nb.png,2\n"[..], b"file\r\n\"a.png\r\nb.png", b"file\n\""] {
            let error = read(text, ManifestFormat::Csv(b',')).unwrap_err();
            assert_eq!(error, "manifest `list`, line 2: a quote is left open in this row");
        }
        let closed =
            read(b"file,n\n\"a\nb.png\",1\nc\".png,2\n\"d.png\n\"", ManifestFormat::Csv(b',')).unwrap();
        assert_eq!(closed, ["2:a\nb.png", "4:c\".png", "5:d.png\n"]);
    }

    #[test]
    fn a_path_that_no_file_can_have_is_refused() {
        for format in [ManifestFormat::Csv(b','), ManifestFormat::Lines] {
            let error = read(b"a.png\nb\0.png\n", format).unwrap_err();
            assert_eq!(error, "manifest `list`, line 2: its path holds a NUL byte: this is no list of paths");
            let error = read(b"a.png\n././\n", format).unwrap_err();
            assert_eq!(error, "manifest `list`, line 2: its path names a folder, expected a file");
        }
        assert!(read(b"\"a\\u0000\"", ManifestFormat::JsonLines).unwrap_err().contains("NUL byte"));
        // What was found by a fuzzer: the marks that this reader puts behind a manifest, in a manifest.
        assert!(
            read(b"\0end of the manifest\0\xff\xfe\xba", ManifestFormat::Csv(b','))
                .unwrap_err()
                .contains("NUL byte")
        );
        assert!(read(b"a.png\n\0end of the manifest\0\nb.png\n", ManifestFormat::Csv(b',')).is_err());
        assert!(read(b"a.png\n\0end of the manifest\0\n", ManifestFormat::Csv(b',')).is_err());
    }

    #[test]
    fn a_list_in_utf_16_is_refused_with_what_to_do() {
        for (text, format) in
            [(&b"\xff\xfea\0"[..], ManifestFormat::Sniff), (b"\xfe\xff\0a", ManifestFormat::Csv(b','))]
        {
            assert!(read(text, format).unwrap_err().contains("UTF-16; save the file as UTF-8"));
        }
    }

    #[test]
    fn json_lines_hold_strings_or_objects() {
        let rows =
            read(b"\"a.png\"\n\n{\"path\": \"b.png\", \"x\": 1}\n", ManifestFormat::JsonLines).unwrap();
        assert_eq!(rows, ["1:a.png", "3:b.png"]);
        for (bad, reason) in [
            (&b"{\"name\": \"a\"}"[..], "expected a string, or an object"),
            (b"{", "not JSON"),
            (b"7", "expected a string, or an object"),
        ] {
            assert!(read(bad, ManifestFormat::JsonLines).unwrap_err().contains(reason));
        }
    }

    #[test]
    fn the_format_of_standard_input_is_recognised() {
        let sniff = |text: &[u8]| read(text, ManifestFormat::Sniff).unwrap();
        assert_eq!(sniff(b"a, b.png\nc.png"), ["1:a, b.png", "2:c.png"]);
        assert_eq!(sniff(b"{\"file\": \"a.png\"}\n"), ["1:a.png"]);
        assert_eq!(sniff(b"id,path\n1,a.png\n"), ["2:a.png"]);
        assert_eq!(sniff(b"a\xff.png\n"), ["1:a\u{fffd}.png"]);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let error = read(&vec![b'x'; 2 << 20], ManifestFormat::Lines).unwrap_err();
        assert!(error.contains("longer than 1 MiB"), "{error}");
    }
}
