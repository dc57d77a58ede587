//! Records of text files that are listed by where they lie: lines of JSON, and of CSV, where a line feed in quotes ends no record. It finds
//! their ends, and reads nothing into memory but a block.

use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::slice;

use crc32fast::Hasher;
use memchr::memchr;
use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;
use orchestra_plan::ReadOptions;
use orchestra_store::{Found, ListError, PassedOver, PushFound};

use super::file_version::FileVersion;
use super::input::{FileLike, Last, Opener, ReadSeek, cannot_read, changed, head, open_to_list};
use super::limits::LARGEST_TEXT;
use super::locator::{locator, parts, stamp_of};

/// Bytes that are looked at together.
const BLOCK: usize = 256 << 10;

/// UTF-8's byte order mark, which some programs put in front.
const MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSpan {
    /// Where it begins, in bytes.
    pub at: u64,
    /// Its bytes, with the line feed at its end.
    pub len: u64,
    /// The line in which it begins, from 1.
    pub line: u64,
    /// The checksum of its bytes, without the line feed: the last record of a file may get one when it grows.
    pub crc: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordEnds {
    /// With each line.
    Line,
    /// With each line, but for line feeds in quotes. A quote opens at the beginning of a field.
    Quoted {
        /// What stands between two fields.
        delimiter: u8,
    },
}

/// Where the next byte stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    FieldStart,
    Field,
    Quotes,
    /// Behind a quote within quotes: their end, or the first of a pair.
    Quote,
}

impl QuoteState {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (QuoteState::FieldStart | QuoteState::Quote, b'"') => QuoteState::Quotes,
            (QuoteState::Quotes, b'"') => QuoteState::Quote,
            (QuoteState::Quotes, _) => QuoteState::Quotes,
            (_, b'\n') => QuoteState::FieldStart,
            (_, byte) if byte == delimiter => QuoteState::FieldStart,
            _ => QuoteState::Field,
        }
    }

    /// Where the byte behind this piece stands. Most pieces have no quote, and then their last byte says it.
    fn behind(self, piece: &[u8], delimiter: u8) -> Self {
        match memchr(b'"', piece) {
            None if self == QuoteState::Quotes => self,
            None => piece.last().map_or(self, |last| QuoteState::Field.after(*last, delimiter)),
            Some(_) => piece.iter().fold(self, |place, byte| place.after(*byte, delimiter)),
        }
    }
}

/// Where in a record a quote opens that is never closed: it takes all that follows it in the file for a part of its record.
pub fn open_quote(record: &[u8], delimiter: u8) -> Option<usize> {
    memchr(b'"', record)?;
    let (mut place, mut opened) = (QuoteState::FieldStart, 0);
    for (at, byte) in record.iter().enumerate() {
        if place == QuoteState::FieldStart {
            opened = at;
        }
        place = place.after(*byte, delimiter);
    }
    (place == QuoteState::Quotes).then_some(opened)
}

/// Calls `push` with every record, and with `None` for each blank line. A quote that is never closed makes a record of all that follows it.
pub fn records<E: From<io::Error>>(
    mut input: impl Read,
    ends: RecordEnds,
    mut push: impl FnMut(Option<RecordSpan>) -> Result<(), E>,
) -> Result<(), E> {
    let mut block = vec![0; BLOCK];
    let (mut at, mut line) = (0_u64, 1_u64);
    let mut span = RecordSpan { at, len: 0, line, crc: 0 };
    let mut crc = Hasher::new();
    let (mut is_blank, mut place) = (true, QuoteState::FieldStart);
    loop {
        let n = match input.read(&mut block) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let mut bytes = &block[..n];
        if at == 0 && bytes.starts_with(MARK) {
            bytes = &bytes[MARK.len()..];
            at = MARK.len() as u64;
            span.at = at;
        }
        // What is not in the checksum yet.
        let mut open = bytes;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(memchr(b'\n', rest).map_or(rest.len(), |end| end + 1));
            rest = behind;
            at += piece.len() as u64;
            is_blank &= piece.trim_ascii().is_empty();
            if let RecordEnds::Quoted { delimiter } = ends {
                place = place.behind(piece, delimiter);
            }
            if !piece.ends_with(b"\n") {
                continue;
            }
            line += 1;
            if place != QuoteState::Quotes {
                crc.update(&open[..open.len() - rest.len() - 1]);
                open = rest;
                let crc = std::mem::take(&mut crc).finalize();
                push((!is_blank).then_some(RecordSpan { len: at - span.at, crc, ..span }))?;
                (span, is_blank) = (RecordSpan { at, len: 0, line, crc: 0 }, true);
            }
        }
        crc.update(open);
    }
    match at - span.at {
        0 => Ok(()),
        len => push((!is_blank).then_some(RecordSpan { len, crc: crc.finalize(), ..span })),
    }
}

/// The first bytes of a file, with its first `n` records; as many as one of them may have, at most.
pub fn head_of(file: &mut dyn ReadSeek, ends: RecordEnds, n: usize) -> io::Result<Vec<u8>> {
    head(file, LARGEST_TEXT, |head| {
        let mut n_whole = 0;
        let counted: io::Result<()> = records(head, ends, |span| {
            let last = span.and_then(|span| head.get((span.at + span.len) as usize - 1));
            n_whole += usize::from(last == Some(&b'\n'));
            Ok(())
        });
        counted.is_ok() && n_whole >= n
    })
}

/// The first record of a file whose head these bytes are, see [`head_of`]; without its line feed.
///
/// # Errors
/// There is none, or it is longer than an item may be.
pub fn first_record(head: &[u8], ends: RecordEnds) -> Result<(RecordSpan, &[u8]), String> {
    let mut found = None;
    let _: Result<(), io::Error> = records(head, ends, |span| {
        found = span;
        if span.is_some() { Err(io::Error::other("one is enough")) } else { Ok(()) }
    });
    let span = found.ok_or("it holds no record")?;
    let is_whole = (head.len() as u64) < LARGEST_TEXT || span.at + span.len < head.len() as u64;
    if !is_whole || span.len > LARGEST_TEXT {
        return Err(format!("its first record is longer than {} MiB", LARGEST_TEXT >> 20));
    }
    let bytes = &head[span.at as usize..][..span.len as usize];
    Ok((span, bytes.strip_suffix(b"\n").unwrap_or(bytes)))
}

/// Judges the first record of a file, which is no item.
pub type CheckHeader<'a> = &'a dyn Fn(&mut dyn ReadSeek) -> Result<(), ListError>;

/// Names the records of a file: `:17` for the one that begins in line 17; but for the first one, where that is a `header`.
pub fn list(
    path: &Path,
    ends: RecordEnds,
    header: Option<CheckHeader<'_>>,
    push: PushFound<'_>,
) -> Result<(), ListError> {
    open_to_list(path, |file, seen| {
        FileVersion::say(slice::from_ref(seen), push)?;
        let mut skip = u64::from(header.is_some());
        if let Some(check) = header {
            check(file)?;
            file.rewind().map_err(|error| ListError::bad_file(path, error))?;
        }
        let listed = records(file, ends, |span| match span {
            None => push(Found::PassedOver(PassedOver::BlankLine, 1)).map_err(Stop::Push),
            Some(_) if skip > 0 => {
                skip -= 1;
                Ok(())
            }
            Some(span) => {
                let (name, locator) =
                    (format!(":{}", span.line), locator(path, &[span.at, span.len, span.crc.into()]));
                push(Found::Item(&name, &locator)).map_err(Stop::Push)
            }
        });
        listed.map_err(|stop| match stop {
            Stop::Read(error) => ListError::bad_file(path, error),
            Stop::Push(error) => error,
        })
    })
}

/// Whether the record that two locators name is another one now.
pub fn has_changed(before: &Path, now: &Path) -> bool {
    matches!((stamp_of(before, 3), stamp_of(now, 3)), (Some(before), Some(now)) if before != now)
}

/// Why a file is not read to its end.
enum Stop {
    Read(io::Error),
    Push(ListError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Read(error)
    }
}

/// Bytes that are read at once where records are read one behind the other: a system call takes longer than to take a short record apart.
const AHEAD: u64 = 32 << 10;

/// Reads records where they lie.
pub struct RecordReader {
    opener: Opener,
    open: Last<RecordFile>,
}

/// A file, and what was read of it last.
struct RecordFile {
    input: FileLike,
    bytes: Vec<u8>,
    /// Where they begin.
    at: u64,
}

impl RecordFile {
    /// Reads `len` bytes from `at` on, and says where they are among `bytes`.
    fn read(&mut self, at: u64, len: u64) -> io::Result<Range<usize>> {
        let read = self.at..=self.at + self.bytes.len() as u64;
        if !read.contains(&at) || !read.contains(&at.saturating_add(len)) {
            let ahead = if read.contains(&at) { len.max(AHEAD) } else { len };
            self.bytes.clear();
            self.bytes.reserve(ahead as usize);
            self.at = at;
            self.input.from(at).take(ahead).read_to_end(&mut self.bytes)?;
        }
        let from = (at - self.at) as usize;
        let range = from..from + len as usize;
        if range.end > self.bytes.len() {
            return Err(io::Error::other("it is shorter by now"));
        }
        Ok(range)
    }
}

impl RecordReader {
    pub fn new(options: &ReadOptions) -> Self {
        Self { opener: Opener::new(options), open: Last::default() }
    }

    /// The path of the file and the record, without its line feed; and what opens files beside it.
    ///
    /// # Errors
    /// It cannot be read, or is longer than an item may be.
    pub fn read<'a>(&'a mut self, locator: &'a [u8]) -> Result<(&'a Path, &'a [u8], &'a Opener), ItemError> {
        let (path, numbers) = parts(locator, 3)?;
        let (at, len, crc) = (numbers[0], numbers[1], numbers[2]);
        if len > LARGEST_TEXT {
            let error =
                format!("the record has {len} bytes, and at most {} MiB are read", LARGEST_TEXT >> 20);
            return Err(ItemError { kind: FailureKind::TooLarge, error });
        }
        let open = || self.opener.open(path).map(|input| RecordFile { input, bytes: Vec::new(), at: 0 });
        let file = self.open.get(path, open)?;
        let read = file.read(at, len);
        let read = read.map_err(|error| file.input.item_error(cannot_read(path, &error.to_string())))?;
        let bytes = &file.bytes[read];
        let record = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        // A quote that is never closed has the line feed at the end of the file in its checksum.
        if [record, bytes].iter().all(|bytes| u64::from(crc32fast::hash(bytes)) != crc) {
            return Err(changed(path));
        }
        Ok((path, record, &self.opener))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    /// Gives three bytes at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = buffer.len().min(3);
            self.0.read(&mut buffer[..n])
        }
    }

    fn found(text: &[u8], ends: RecordEnds) -> Vec<(u64, Vec<u8>)> {
        let listed = |input: &mut dyn Read| {
            let mut spans = Vec::new();
            let listed: Result<(), io::Error> = records(input, ends, |span| {
                spans.extend(span);
                Ok(())
            });
            listed.unwrap();
            spans
        };
        let spans = listed(&mut &*text);
        assert_eq!(spans, listed(&mut Slow(text)), "whatever pieces it is read in");
        let record = |span: RecordSpan| (span.line, text[span.at as usize..][..span.len as usize].to_vec());
        spans.into_iter().map(record).collect()
    }

    #[test]
    fn a_quote_that_is_never_closed_is_found_where_it_opens() {
        for (record, at) in [
            ("1,\"a\nb\",\"c\nd", Some(8)),
            ("\"", Some(0)),
            ("1,\"a\"\",2\n3", Some(2)),
            ("1,\"a\"\"\"", None),
            ("1,a\"b", None),
            ("", None),
        ] {
            assert_eq!(open_quote(record.as_bytes(), b','), at, "{record}");
        }
    }

    #[test]
    fn a_line_feed_in_quotes_ends_no_record_and_blank_lines_are_none() {
        let csv = b"\xef\xbb\xbfa,b\r\n\n\"x\ny \"\"z\"\"\",1\n \n2,it\"s\n3,\"open\n4";
        let records = found(csv, RecordEnds::Quoted { delimiter: b',' });
        let expected: [(u64, &[u8]); 4] =
            [(1, b"a,b\r\n"), (3, b"\"x\ny \"\"z\"\"\",1\n"), (6, b"2,it\"s\n"), (7, b"3,\"open\n4")];
        assert_eq!(records, expected.map(|(line, text)| (line, text.to_vec())));
        assert_eq!(found(b"{}\n\n[\n", RecordEnds::Line), [(1, b"{}\n".to_vec()), (3, b"[\n".to_vec())]);
    }

    proptest! {
        #[test]
        fn records_are_where_the_reader_of_csv_finds_them(
            rows in proptest::collection::vec(proptest::collection::vec("[a \"\n,']{1,8}x", 2), 1..8),
        ) {
            let mut writer = csv::Writer::from_writer(Vec::new());
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let text = writer.into_inner().unwrap();
            let found = found(&text, RecordEnds::Quoted { delimiter: b',' });
            prop_assert_eq!(found.len(), rows.len());
            for ((_, record), row) in found.iter().zip(&rows) {
                let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&record[..]);
                let read: Vec<String> = reader.records().next().unwrap().unwrap().iter().map(str::to_owned).collect();
                prop_assert_eq!(&read, row);
            }
        }

        #[test]
        fn bytes_of_a_file_are_read_in_any_order_and_none_behind_its_end(
            // A record has a byte at least.
            steps in proptest::collection::vec((any::<bool>(), 0..110_000_u64, 1..9_000_u64), 1..60),
        ) {
            let text: Vec<u8> = (0..100_000_u32).flat_map(|n| (n as u16).to_le_bytes()).take(100_000).collect();
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, &text).unwrap();
            let input = FileLike::File(Arc::new(file));
            let mut file = RecordFile { input, bytes: Vec::new(), at: 0 };
            let mut behind = 0;
            for (follows, at, len) in steps {
                let at = if follows { behind } else { at };
                behind = at + len;
                let read = file.read(at, len).ok();
                prop_assert_eq!(read.map(|range| &file.bytes[range]), text.get(at as usize..behind as usize));
            }
        }
    }
}
