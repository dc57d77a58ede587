//! The fields of one record of a CSV file.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::encoding::NO_UTF8;
use super::lines::open_quote;

/// Takes records apart, one after the other. It is kept from one to the next: to make the state machine of a delimiter takes ten times as long as a
/// short record.
pub struct RecordParser {
    delimiter: u8,
    reader: Reader,
    /// The fields without quotes, one behind the other.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl RecordParser {
    pub fn new(delimiter: u8) -> Self {
        let reader = ReaderBuilder::new().delimiter(delimiter).build();
        Self { delimiter, reader, text: Vec::new(), ends: Vec::new() }
    }

    /// The fields of `record`, as many as there are. A quote that is never closed ends with it.
    ///
    /// # Errors
    /// What is wrong with it, to be put behind "the record".
    pub fn fields(&mut self, record: &[u8]) -> Result<CsvFields<'_>, String> {
        let Self { reader, text, ends, .. } = self;
        reader.reset();
        // Only a file may begin with the mark of UTF-8, which the first read takes away: a line end stands in for it.
        reader.read_record(b"\n", &mut [0; 1], &mut [0; 1]);
        // Fields are no longer than they are written. A byte more, because a full buffer is asked to grow.
        if text.len() <= record.len() {
            text.resize(record.len() + 1, 0);
        }
        let (mut read, mut written, mut n_fields) = (0, 0, 0);
        loop {
            let (found, more_read, more_written, more_fields) =
                reader.read_record(&record[read..], &mut text[written..], &mut ends[n_fields..]);
            (read, written, n_fields) = (read + more_read, written + more_written, n_fields + more_fields);
            match found {
                // The next call gets no bytes, which end the record.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => text.resize(text.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => ends.resize((ends.len() * 2).max(16), 0),
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return Err("is empty".into()),
            }
        }
        // Line ends may follow, and nothing else.
        if record[read..].iter().any(|byte| !matches!(byte, b'\r' | b'\n')) {
            return Err("is more than one".into());
        }
        let text = std::str::from_utf8(&text[..written]).map_err(|_| NO_UTF8)?;
        let ends = &ends[..n_fields];
        let is_whole = ends.iter().all(|end| text.is_char_boundary(*end));
        if is_whole { Ok(CsvFields { text, ends }) } else { Err(NO_UTF8.into()) }
    }

    /// The fields of `record`, which has `n`.
    ///
    /// # Errors
    /// What is wrong with it, to be put behind "the record".
    pub fn n_fields(&mut self, record: &[u8], n: usize) -> Result<CsvFields<'_>, String> {
        if let Some(why) = never_closed(record, self.delimiter) {
            return Err(why);
        }
        let fields = self.fields(record)?;
        if fields.ends.len() == n {
            return Ok(fields);
        }
        Err(format!("has {} fields, and the header {n}", fields.ends.len()))
    }
}

/// Those of a record, without the quotes around them.
#[derive(Clone, Copy)]
pub struct CsvFields<'a> {
    text: &'a str,
    /// On borders of characters, in order.
    ends: &'a [usize],
}

impl<'a> CsvFields<'a> {
    pub fn get(self, at: usize) -> Option<&'a str> {
        let end = *self.ends.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        (0..self.ends.len()).filter_map(move |at| self.get(at))
    }
}

/// Where a quote opens that is never closed, in words.
pub fn never_closed(record: &[u8], delimiter: u8) -> Option<String> {
    const SHOWN: usize = 20;
    let at = open_quote(record, delimiter)?;
    let n_lines = record[..at].iter().filter(|byte| **byte == b'\n').count();
    let line = match n_lines {
        0 => "in its first line".to_owned(),
        n => format!("{n} {} below its first one", if n == 1 { "line" } else { "lines" }),
    };
    let quoted = String::from_utf8_lossy(&record[at..]);
    let quoted: String = quoted.lines().next().unwrap_or_default().chars().take(SHOWN).collect();
    Some(format!(
        "has a quote that is never closed, up to the end of the file: it opens {line}, at `{quoted}`; close it, or double it where it is a part of the text"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_keeps_a_mark_of_utf_8_since_it_is_no_file() {
        let mut parser = RecordParser::new(b',');
        for (record, fields) in [("\u{feff},5", ["\u{feff}", "5"]), ("\u{feff}\"q\",", ["\u{feff}\"q\"", ""])]
        {
            assert_eq!(parser.fields(record.as_bytes()).unwrap().iter().collect::<Vec<_>>(), fields);
        }
    }

    proptest! {
        /// As the reader of the crate `csv` has it, whatever the parser has read before.
        #[test]
        fn a_record_has_the_fields_that_another_reader_finds(
            records in prop::collection::vec(
                prop::collection::vec(prop_oneof![Just(b','), Just(b'"'), Just(b'a'), Just(b'\r'), Just(b'\n'), any::<u8>()], 0..40),
                1..4,
            )
        ) {
            let mut parser = RecordParser::new(b',');
            for record in records {
                let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(&record[..]);
                let expected: Vec<_> = reader.records().collect();
                let found = parser.fields(&record).map(|fields| fields.iter().map(str::to_owned).collect::<Vec<_>>());
                match &expected[..] {
                    [Ok(one)] => prop_assert_eq!(found.unwrap(), one.iter().collect::<Vec<_>>()),
                    _ => prop_assert!(found.is_err(), "{found:?} instead of {expected:?}"),
                }
            }
        }
    }
}
