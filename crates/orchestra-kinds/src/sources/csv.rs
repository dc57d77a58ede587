//! `kind = "csv"`: the records of CSV files, one item each.

use std::collections::HashSet;
use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;
use orchestra_core::shapes::{FetchRun, FileAccess, KindSettings};
use orchestra_plan::{
    Fields, ItemSchema, Items, Json, ObjectAccess, ReadOptions, Reported, Setting, SourceContext,
    TypedSource, settings,
};
use orchestra_store::{ListError, PushFound};
use serde_json::value::RawValue;

use super::reading::columns::{
    DeclaredColumns, DeclaresColumns, FoundColumns, columns_of_first, found_type, inferred, item_schema,
    opens_of, or_foreign,
};
use super::reading::csv_record::{RecordParser, never_closed};
use super::reading::encoding::ForeignEncoding;
use super::reading::fetch::fetch_into;
use super::reading::field_type::{Field, FieldType};
use super::reading::input::{ReadSeek, describe};
use super::reading::lines::{RecordEnds, RecordReader, first_record, has_changed, head_of, list, open_quote};
use super::reading::number::no_number;
use super::reading::row::{FieldRow, Taken};
use crate::objects;

settings! {
    pub struct CsvSource {
        /// names of columns with their types: `text`, `picture` (a path, relative to the file), or a tensor: `i64`, `f64`, `f32[8]` (written `[1, 2.5, ..]`), ..; `f64?` or `text?` has rows without it, whose field is empty; without `columns`, all of them: numbers as f64, `true` and `false` as bool, else text
        columns: Option<DeclaredColumns<CsvSource>> => "all, typed by the first record",
        /// what stands between two fields, one ASCII character; `"\t"` is a tab
        delimiter: Delimiter = ",",
    }
}

impl DeclaresColumns for CsvSource {
    const TYPES: &'static [&'static str] = &["text", "picture"];
}

/// What stands between two fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delimiter(u8);

impl Setting for Delimiter {
    const TYPE: &'static str = "text";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let text = fields.string_with_blanks(key)?;
        let delimiter = Self::of(&text.value);
        if delimiter.is_none() {
            fields.bad(key, text.span, "must be one ASCII character, and no quote or line feed");
        }
        delimiter
    }

    fn of_default(text: &str, _: &Fields<'_, '_>) -> Option<Self> {
        Self::of(text)
    }

    fn json(&self) -> Json {
        char::from(self.0).to_string().into()
    }
}

impl Delimiter {
    fn of(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => Some(Self(*byte)),
            _ => None,
        }
    }
}

impl TypedSource for CsvSource {
    const NAME: &'static str = "csv";
    const ABOUT: &'static str = "The records of CSV files, of at most 16 MiB each, which all have the same header in their first line. An item is called `file.csv:line`, \
         after the line in which it begins.";
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = CsvItems;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, CsvItems), Reported> {
        let Delimiter(delimiter) = self.delimiter;
        let is_named = source.fields.entry("delimiter").is_some();
        let name = source.first.map(|first| first.name.clone()).unwrap_or_default();
        let question = FirstRecord { delimiter, is_named, name };
        let texts = [
            "is no CSV that can be read",
            "its first line must name the columns, each once",
            "name the files with `paths`, or with a manifest that is a file",
        ];
        let (name, record) = columns_of_first::<Self>(source, &question, texts)?;
        let fields = match self.columns {
            Some(declared) => declared.0,
            None => inferred(source, &name, &record)?,
        };
        let header: Vec<String> = record.into_iter().map(|(name, _)| name).collect();
        let known: HashSet<&String> = header.iter().collect();
        if let Some(unknown) = fields.iter().find(|field| !known.contains(&field.name)) {
            let span = source.fields.entry("columns").map_or(source.fields.span, |entry| entry.key_span);
            let reason = format!("names `{}`, and `{name}` has no such column", unknown.name);
            let help = format!("its columns are `{}`", header.join("`, `"));
            return source.fields.bad("columns", span, &reason).help(help).fail();
        }
        let mut schema = item_schema::<Self>(&fields);
        if delimiter != b',' {
            schema.settings["delimiter"] = self.delimiter.json();
        }
        Ok((schema, CsvItems { delimiter, header, fields }))
    }

    fn describe(question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        describe(file, |file| question.read::<FirstRecord>().ok_or("it was asked for nothing")?.of(file))
    }
}

/// Asks for the columns of a file.
#[derive(Encode, Decode)]
struct FirstRecord {
    delimiter: u8,
    /// The workflow file names it.
    is_named: bool,
    name: String,
}

impl FirstRecord {
    fn of(&self, file: &mut dyn ReadSeek) -> Result<FoundColumns, String> {
        let ends = RecordEnds::Quoted { delimiter: self.delimiter };
        let head = head_of(file, ends, 2).map_err(|error| error.to_string())?;
        let found = first_records(&head, self.delimiter);
        let is_hint = |(_, line): (_, &[u8])| delimiter_hint(line).is_some();
        let tells = first_record(&head, RecordEnds::Line).is_ok_and(is_hint);
        if let Some(other) = other_delimiter(&head, self.delimiter).filter(|_| !self.is_named && !tells) {
            let why = format!("its header is one column, in which {other} stands");
            let own = in_quotes(self.delimiter);
            let help =
                format!("write delimiter = {other}; or delimiter = {own} where that is the name of a column");
            return Ok(Err((why, Some(help))));
        }
        let typed = found.map(|(header, record)| {
            header.into_iter().zip(record.iter().map(|text| found_type(&guess(text)))).collect()
        });
        Ok(or_foreign(typed, &head, &self.name))
    }
}

/// What seems to stand between the columns of a file whose header is one with this delimiter.
fn other_delimiter(head: &[u8], delimiter: u8) -> Option<String> {
    let (_, header) = first_record(head, RecordEnds::Quoted { delimiter }).ok()?;
    let n_columns = |delimiter: u8| {
        RecordParser::new(delimiter).fields(header).map_or(1, |columns| columns.iter().count())
    };
    let others = [b';', b'\t', b'|'].into_iter();
    let mut others = others.filter(|other| n_columns(delimiter) == 1 && n_columns(*other) > 1);
    others.next().map(in_quotes)
}

/// As a workflow file names it: strings of TOML are written as those of JSON.
fn in_quotes(delimiter: u8) -> String {
    serde_json::Value::from(char::from(delimiter).to_string()).to_string()
}

/// The header and the first record of a file of which these are the first bytes.
fn first_records(head: &[u8], delimiter: u8) -> Result<(Vec<String>, Vec<String>), String> {
    let header = header_of(head, delimiter)?;
    let (at, _) = first_record(head, RecordEnds::Quoted { delimiter })?;
    let rest = &head[(at.at + at.len) as usize..];
    if rest.iter().all(u8::is_ascii_whitespace) {
        return Ok((header.clone(), vec![String::new(); header.len()]));
    }
    let (_, record) = first_record(rest, RecordEnds::Quoted { delimiter })?;
    let mut parser = RecordParser::new(delimiter);
    let record = parser.n_fields(record, header.len()).map_err(|why| format!("its first record {why}"))?;
    Ok((header, record.iter().map(str::to_owned).collect()))
}

/// The names of the columns of a file of which these are the first bytes.
fn header_of(head: &[u8], delimiter: u8) -> Result<Vec<String>, String> {
    let (_, header) = first_record(head, RecordEnds::Quoted { delimiter }).map_err(|why| {
        let starts_open =
            first_record(head, RecordEnds::Line).is_ok_and(|(_, line)| open_quote(line, delimiter).is_some());
        if starts_open { format!("{why}: a quote in its first line is not closed there") } else { why }
    })?;
    if let Some(hint) = delimiter_hint(header) {
        let named = in_quotes(hint);
        return Err(format!(
            "its first line tells spreadsheets the delimiter, `sep={}`, and names no columns: take that line out, and write delimiter = {named}",
            char::from(hint).escape_default()
        ));
    }
    if let Some(why) = never_closed(header, delimiter) {
        return Err(format!("its header {why}"));
    }
    let mut parser = RecordParser::new(delimiter);
    let header = parser.fields(header).map_err(|why| format!("its header {why}"))?;
    // Many are written as `id, x`, and mean no blank.
    let header: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    let mut seen = HashSet::with_capacity(header.len());
    for (at, name) in header.iter().enumerate() {
        if name.contains('\0') {
            return Err(format!("the name of column {} has a NUL character", at + 1));
        }
        if name.is_empty() {
            return Err(format!("column {} has no name", at + 1));
        }
        if !seen.insert(name) {
            return Err(format!("it has the column `{name}` twice"));
        }
    }
    Ok(header)
}

/// The delimiter that a first line `sep=;` tells.
fn delimiter_hint(line: &[u8]) -> Option<u8> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let quoted = line.strip_prefix(b"\"").and_then(|line| line.strip_suffix(b"\""));
    match quoted.unwrap_or(line) {
        [b's' | b'S', b'e' | b'E', b'p' | b'P', b'=', delimiter] if delimiter.is_ascii() => Some(*delimiter),
        _ => None,
    }
}

/// A field as the JSON value that it most likely stands for.
fn guess(text: &str) -> Box<RawValue> {
    let trimmed = text.trim();
    let number = match no_number(trimmed) {
        Some(_) => "0",
        None => trimmed,
    };
    match serde_json::from_str::<Box<RawValue>>(number) {
        Ok(value)
            if !number.starts_with('"')
                && matches!(FieldType::of_json(&value), Some(FieldType::Tensor { .. })) =>
        {
            value
        }
        _ => serde_json::value::to_raw_value(text).expect("a text has a form in JSON"),
    }
}

#[derive(Debug, Clone, Encode, Decode)]
pub struct CsvItems {
    /// All columns of a file, in its order.
    header: Vec<String>,
    /// Those that items have: names of the header.
    fields: Vec<Field>,
    delimiter: u8,
}

impl Items for CsvItems {
    fn list(&self, path: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let unreadable = |why: String| ListError::bad_file(path, why);
        let ends = RecordEnds::Quoted { delimiter: self.delimiter };
        let check = |file: &mut dyn ReadSeek| {
            let head = head_of(file, ends, 1).map_err(|error| ListError::bad_file(path, error))?;
            let foreign = |why: String| {
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                let foreign = ForeignEncoding::of(&head, &name);
                foreign.map_or(why, |foreign| format!("it is {}; {}", foreign.what, foreign.help()))
            };
            let header = header_of(&head, self.delimiter).map_err(foreign).map_err(unreadable)?;
            if header == self.header {
                return Ok(());
            }
            let [own, first] = [&header, &self.header].map(|header| header.join("`, `"));
            Err(unreadable(format!("its columns are `{own}`, and those of the first file `{first}`")))
        };
        list(path, ends, Some(&check), push)
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        has_changed(before, now)
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        let row = FieldRow::new(&self.fields, options.max_pixels);
        let place = |field: &Field| self.header.iter().position(|name| *name == field.name);
        // Where each field stands in a record.
        let places: Vec<Option<usize>> = self.fields.iter().map(place).collect();
        let (mut reader, mut parser) = (RecordReader::new(options), RecordParser::new(self.delimiter));
        let n_columns = self.header.len();
        fetch_into(row, move |row, locator| {
            let (path, bytes, opener) = reader.read(locator).map_err(|mut item_error| {
                if item_error.kind == FailureKind::TooLarge {
                    item_error.error += "; a quote that is not closed in its line takes in those that follow";
                }
                item_error
            })?;
            let refuse = |error: String| ItemError { kind: FailureKind::Decode, error };
            let record = parser.n_fields(bytes, n_columns);
            let record = record.map_err(|why| refuse(format!("the record {why}")))?;
            let beside = row.fill(|at, field, cell| {
                let text = places[at].and_then(|place| record.get(place));
                let text = text.ok_or_else(|| refuse(format!("it has no column `{}`", field.name)))?;
                match text.is_empty() && field.optional {
                    true => Ok(Taken::Missing),
                    false => cell.take_text(field, text, path, opener),
                }
            })?;
            Ok(bytes.len() as u64 + beside)
        })
    }

    fn opens(&self) -> FileAccess {
        opens_of(&self.fields)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::DType;
    use orchestra_core::data::Value;

    use super::super::reading::tests::listed;
    use super::*;

    #[test]
    fn records_with_line_feeds_are_read_and_bad_ones_fail_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let text = b"id,text,v\n1,\"a\nb, \"\"c\"\"\",\"[1, 2.5]\"\r\nx,d,\"[1, 2]\"\n3,e\n4,\xff,\"[1, 2]\"\n5,\"open,\"[1, 2]\"\n6,\"f,\"\"\n7,g,h\n";
        std::fs::write(&path, text).unwrap();
        let tensor = |dtype, shape| FieldType::Tensor { dtype, shape };
        let fields = [
            ("v", tensor(DType::F32, vec![2])),
            ("text", FieldType::Text),
            ("id", tensor(DType::I64, vec![])),
        ];
        let fields = fields.map(|(name, ty)| Field::new(name, ty)).into();
        let header = header_of(text, b',').unwrap();
        let source = CsvItems { header, fields, delimiter: b',' };
        let (items, _) = listed(&source, &path).unwrap();
        let names: Vec<&str> = items.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [":2", ":4", ":5", ":6", ":7", ":8"]);
        let mut run = source.start(&ReadOptions::default());
        run.fetch(&items[0].1).unwrap();
        run.with_row(&mut |row| {
            let [Value::Tensor(v), Value::Text(text), Value::Tensor(id)] = row else {
                panic!("other values")
            };
            assert_eq!(v.data, [1_f32.to_ne_bytes(), 2.5_f32.to_ne_bytes()].concat());
            assert_eq!((*text, id.data), ("a\nb, \"c\"", &1_i64.to_ne_bytes()[..]));
        });
        for (at, why) in [
            (1, "`id`"),
            (2, "has 2 fields, and the header 3"),
            (3, "is no UTF-8"),
            (4, "`v` is no f32[2]"),
            (
                5,
                "never closed, up to the end of the file: it opens in its first line, at `\"f,\"\"`; close it",
            ),
        ] {
            let ItemError { kind, error } = run.fetch(&items[at].1).unwrap_err();
            assert!(kind == FailureKind::Decode && error.contains(why), "{error}");
        }
        std::fs::write(&path, "id,text\n1,a\n").unwrap();
        let error = source.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("its columns are `id`, `text`"), "{error}");
    }

    #[test]
    fn a_header_names_each_column_once() {
        assert_eq!(header_of(b"id, x ,\" y\"\n", b',').unwrap(), ["id", "x", "y"]);
        // It would take minutes if each were compared with all others.
        let wide: String = (0..200_000).map(|n| format!("column {n},")).collect();
        assert_eq!(header_of(format!("{wide}last\n").as_bytes(), b',').unwrap().len(), 200_001);
        let sep = "take that line out, and write delimiter = \";\"";
        let tab = "tells spreadsheets the delimiter, `sep=\\t`";
        let open = "has a quote that is never closed, up to the end of the file: it opens in its first line, at `\"b`";
        let long = format!("a,\"b\n{}", "1,2\n".repeat(5 << 20));
        for (head, why) in [
            ("a,a\n", "twice"),
            ("a, a\n", "twice"),
            ("a,,b\n", "no name"),
            ("", "no record"),
            ("sep=;\na;b\n", sep),
            ("\"sep=;\"\r\na;b\n", sep),
            ("SEP=\t\n", tab),
            ("a,\"b\n1,2\n", open),
            (&long, "a quote in its first line is not closed there"),
        ] {
            for delimiter in [b',', b';'] {
                let error = header_of(head.as_bytes(), delimiter);
                let is_said = error.as_ref().is_err_and(|error| error.contains(why));
                assert!(is_said || delimiter == b';' && !head.starts_with("sep"), "{why}: {error:?}");
            }
        }
        for delimiter in [b',', b';'] {
            let first = FirstRecord { delimiter, is_named: false, name: "a.csv".into() };
            let (why, _) = first.of(&mut std::io::Cursor::new(b"sep=;\na;b\n")).unwrap().unwrap_err();
            assert!(why.contains(sep), "{why}");
        }
    }
}
