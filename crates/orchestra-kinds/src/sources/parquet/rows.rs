//! Reads rows of Parquet files: those of a row group as a stream, column by column, a block of rows at a time.

use std::io::{self, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use bytes::Bytes;
use orchestra_core::FailureKind;
use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::{Fetch, FetchRun, LoaderSpec, Network, Opens};
use orchestra_plan::{Limits, SourceConnected, SourceContext, SourceKind};
use orchestra_store::{Expand, ListError, PushItem};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};
use serde_json::Value as Json;

use super::Parquet;
use super::leaves::{all, footer, guarded, is_text, is_unsigned, resolve, row_groups};
use crate::sources::columns::{
    Cell, Field, FieldType, LARGEST_TEXT, Number, Row, check_items, declared, decoders, opens, schema,
    settings,
};
use crate::sources::input::{Input, Last, Opener, Stream, cannot_read, list_items, look};
use crate::sources::locator::{locator, parts};
use crate::sources::objects::{self, Protocol};
use crate::sources::read_file::{LARGEST_FILE_BYTES, or_no_memory};

/// Rows that are decoded together.
const BLOCK: usize = 64;

const TYPES: [&str; 3] = ["text", "bytes", "picture"];

pub fn connect(source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
    let declared = declared(&mut source.fields, &TYPES).ok()?;
    let span = source.fields.span;
    let what = source.fields.what.clone();
    let fields = match (declared, source.first) {
        (Some(fields), None) => fields,
        (None, None) => {
            let message = format!("{what} needs a file to look at: its columns are not known");
            let help =
                "name them with their types, columns = { age = \"i64\" }, or name the files with `paths`";
            source.fields.diags.error(span, message).help(help);
            return None;
        }
        (declared, Some(first)) => {
            let found = look(source, &first.path, |file| {
                let metadata = footer(file)?;
                let schema = metadata.file_metadata().schema_descr();
                let fields = match declared {
                    Some(fields) => fields,
                    None => all(schema)?,
                };
                check_items(row_groups(&metadata)?.iter().sum(), source.limits.max_items)?;
                resolve(&metadata, &fields).map(|_| fields)
            });
            match found {
                Ok(fields) if !fields.is_empty() => fields,
                other => {
                    let why = other.err().unwrap_or_else(|| "it has no column".into());
                    let place = source.fields.entry("columns").map_or(span, |entry| entry.node.span);
                    let message = format!("{what}: the rows of `{}` cannot be read: {why}", first.name);
                    source
                        .fields
                        .diags
                        .error(place, message)
                        .help("numbers, text, binary, and lists of numbers are read");
                    return None;
                }
            }
        }
    };
    let protocols = objects::protocols(source.urls);
    let &Limits { max_pixels, max_items, .. } = source.limits;
    let files = Arc::new(Files { fields, max_pixels, max_items, protocols });
    Some(SourceConnected {
        gives: schema(&files.fields),
        fetch: Arc::clone(&files) as Arc<dyn Fetch>,
        settings: settings(Parquet.name(), &files.fields),
        decoders: decoders(&files.fields),
        expand: Some(files),
        names_repeat: false,
    })
}

pub fn revive(spec: &LoaderSpec) -> Option<Arc<dyn Fetch>> {
    Some(Arc::new(spec.read::<Files>()?))
}

#[derive(Debug, Clone, Encode, Decode)]
struct Files {
    fields: Vec<Field>,
    max_pixels: u64,
    max_items: u64,
    /// How its objects are read; empty: it has files.
    protocols: Vec<Protocol>,
}

impl Expand for Files {
    fn most_items(&self) -> u64 {
        self.max_items
    }

    fn expand(&self, path: &Path, push: PushItem<'_>) -> Result<(), ListError> {
        let unreadable = |why: String| ListError::bad_file(path, why);
        let metadata = list_items(path, |file| footer(file).map_err(unreadable))?;
        resolve(&metadata, &self.fields).map_err(unreadable)?;
        let mut before = 0;
        let groups = row_groups(&metadata).map_err(unreadable)?;
        check_items(groups.iter().sum(), self.max_items).map_err(unreadable)?;
        for (group, rows) in (0_u64..).zip(groups) {
            (0..rows)
                .try_for_each(|row| push(&format!("[{}]", before + row), &locator(path, &[group, row])))?;
            before += rows;
        }
        Ok(())
    }
}

impl Fetch for Files {
    fn start(&self) -> Box<dyn FetchRun> {
        let row = Row::new(&self.fields, self.max_pixels);
        let opener = Opener::new(&self.protocols);
        Box::new(RowReader { fields: self.fields.clone(), opener, open: Last::default(), row })
    }

    fn network(&self) -> Option<Network> {
        objects::network(&self.protocols)
    }

    fn in_loader(&self) -> Option<LoaderSpec> {
        LoaderSpec::of(Parquet.name(), self)
    }

    fn opens(&self) -> Opens {
        opens(&self.fields, &self.protocols)
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        // Of a file that cannot be asked no row can be read, and the reading says why.
        self.size().unwrap_or(0)
    }
}

impl ChunkReader for Input {
    type T = BufReader<Stream>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(self.from(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let mut bytes = Vec::new();
        self.from(start)
            .take(length as u64)
            .read_to_end(&mut bytes)
            .map_err(|error| or_no_memory(error, length as u64))?;
        match bytes.len() == length {
            true => Ok(bytes.into()),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

struct RowReader {
    fields: Vec<Field>,
    opener: Opener,
    open: Last<OpenFile>,
    row: Row,
}

struct OpenFile {
    input: Input,
    reader: SerializedFileReader<Input>,
    /// The leaf of each field.
    leaves: Vec<usize>,
    group: Option<OpenGroup>,
}

/// A row group that is being read.
struct OpenGroup {
    number: u64,
    columns: Vec<OpenColumn>,
    /// The row that the columns give next.
    next: u64,
    /// Rows of the block that was read last: those before `next`.
    held: u64,
}

struct OpenColumn {
    descr: ColumnDescPtr,
    reader: ColumnReader,
    block: Block,
}

/// The values of some rows of a column.
#[derive(Default)]
struct Block {
    numbers: Vec<Number>,
    bytes: Vec<ByteArray>,
    /// Per row: where its values end, and whether there is a null among them.
    rows: Vec<(usize, bool)>,
}

impl OpenFile {
    fn open(input: Input, fields: &[Field]) -> Result<Self, String> {
        // Checks how large the footer is.
        let metadata = footer(&mut input.from(0))?;
        let leaves = resolve(&metadata, fields)?;
        let reader = guarded(|| SerializedFileReader::new(input.clone()))?;
        Ok(Self { input, reader, leaves, group: None })
    }

    /// Brings a row into the blocks; gives its place in them.
    fn read(&mut self, number: u64, row: u64) -> Result<usize, String> {
        let gone = || "it has fewer rows by now".to_owned();
        let place = usize::try_from(number).map_err(|_| gone())?;
        let metadata = self.reader.metadata();
        let rows = row_groups(metadata)?.get(place).copied().unwrap_or(0);
        if row >= rows {
            return Err(gone());
        }
        // After an error the columns stand at no known row: they are opened anew then.
        let mut group = match self.group.take() {
            Some(group) if group.number == number && row >= group.next - group.held => group,
            _ => {
                let columns = guarded(|| {
                    let group = self.reader.get_row_group(place)?;
                    let open = |leaf: &usize| {
                        let descr = group.metadata().column(*leaf).column_descr_ptr();
                        Ok(OpenColumn {
                            descr,
                            reader: group.get_column_reader(*leaf)?,
                            block: Block::default(),
                        })
                    };
                    self.leaves.iter().map(open).collect::<Result<Vec<_>, ParquetError>>()
                })?;
                OpenGroup { number, columns, next: 0, held: 0 }
            }
        };
        if row >= group.next {
            let skip = row - group.next;
            let n = (rows - row).min(BLOCK as u64);
            for column in &mut group.columns {
                guarded(|| column.read(skip as usize, n as usize))?;
            }
            (group.next, group.held) = (row + n, n);
        }
        let at = row - (group.next - group.held);
        self.group = Some(group);
        Ok(at as usize)
    }
}

impl OpenColumn {
    /// Passes over rows, and reads the next ones into the block.
    fn read(&mut self, skip: usize, n: usize) -> Result<(), ParquetError> {
        let unsigned = is_unsigned(&self.descr);
        let Block { numbers, bytes, rows } = &mut self.block;
        numbers.clear();
        bytes.clear();
        rows.clear();
        let int = |v: i64| Number::Int(v);
        match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => {
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(Number::Bool));
            }
            ColumnReader::Int32ColumnReader(reader) => {
                let wide = |v: i32| if unsigned { i64::from(v.cast_unsigned()) } else { i64::from(v) };
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(wide).map(int));
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let read = values(reader, skip, n, rows, &self.descr)?;
                if unsigned && read.iter().any(|v| *v < 0) {
                    return Err(ParquetError::NYI("a number beyond i64".into()));
                }
                numbers.extend(read.into_iter().map(int));
            }
            ColumnReader::FloatColumnReader(reader) => {
                numbers.extend(
                    values(reader, skip, n, rows, &self.descr)?
                        .into_iter()
                        .map(|v| Number::Float(f64::from(v))),
                );
            }
            ColumnReader::DoubleColumnReader(reader) => {
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(Number::Float));
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                *bytes = values(reader, skip, n, rows, &self.descr)?
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                bytes.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(ByteArray::from));
            }
            ColumnReader::Int96ColumnReader(_) => return Err(ParquetError::NYI("INT96".into())),
        }
        Ok(())
    }
}

/// Passes over rows, and reads the next `n`, whose ends it notes.
fn values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    skip: usize,
    n: usize,
    rows: &mut Vec<(usize, bool)>,
    descr: &ColumnDescriptor,
) -> Result<Vec<T::T>, ParquetError> {
    let short = || ParquetError::EOF("a column has fewer rows than its row group".into());
    if reader.skip_records(skip)? != skip {
        return Err(short());
    }
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let (records, found, levels) =
        reader.read_records(n, Some(&mut definitions), Some(&mut repetitions), &mut values)?;
    if records != n || found != values.len() {
        return Err(short());
    }
    let (most, is_list) = (descr.max_def_level(), descr.max_rep_level() > 0);
    let mut end = 0;
    for level in 0..levels {
        let starts_row = !is_list || repetitions.get(level).is_none_or(|repetition| *repetition == 0);
        let is_value = most == 0 || definitions.get(level).is_some_and(|definition| *definition == most);
        end += usize::from(is_value);
        match rows.last_mut().filter(|_| !starts_row) {
            Some(row) => *row = (end, row.1 || !is_value),
            None => rows.push((end, !is_value)),
        }
    }
    // What follows takes places in these for granted.
    if rows.len() != n || end != values.len() { Err(short()) } else { Ok(values) }
}

impl Block {
    /// Takes the value of a row for a field. Gives the bytes that were read for it.
    fn take(
        &self,
        at: usize,
        field: &Field,
        cell: &mut Cell,
        (beside, opener): (&Path, &Opener),
        is_path: bool,
    ) -> Result<u64, Refusal> {
        let refuse = |kind: FailureKind, error: String| Refusal { kind, error };
        let wrong = |why: &str| refuse(FailureKind::Decode, format!("`{}` {why}", field.name));
        let begin = at.checked_sub(1).and_then(|before| self.rows.get(before)).map_or(0, |row| row.0);
        let Some((end, has_null)) = self.rows.get(at).copied() else {
            return Err(wrong("has no value; this is a bug"));
        };
        if has_null {
            let what = if end > begin { "has a null in its list" } else { "is null, or an empty list" };
            return Err(wrong(what));
        }
        let bytes = || -> Result<&[u8], Refusal> {
            let bytes = self.bytes.get(begin).ok_or_else(|| wrong("has no value; this is a bug"))?.data();
            let most = if matches!(field.ty, FieldType::Text) { LARGEST_TEXT } else { LARGEST_FILE_BYTES };
            if bytes.len() as u64 <= most {
                return Ok(bytes);
            }
            let error = format!(
                "`{}` has {} bytes, and at most {} MiB are read",
                field.name,
                bytes.len(),
                most >> 20
            );
            Err(refuse(FailureKind::TooLarge, error))
        };
        match (cell, &field.ty) {
            (Cell::Bytes(data), FieldType::Tensor { dtype, shape }) => {
                let expected = shape.iter().product::<usize>();
                let numbers = self.numbers.get(begin..end).unwrap_or_default();
                if numbers.len() != expected {
                    return Err(wrong(&format!(
                        "has {} numbers, and {expected} are expected",
                        numbers.len()
                    )));
                }
                data.clear();
                for number in numbers {
                    number
                        .append(*dtype, data)
                        .map_err(|why| wrong(&format!("is no {}: {why}", field.ty)))?;
                }
                Ok(0)
            }
            (Cell::Bytes(data), _) => {
                data.clear();
                data.extend_from_slice(bytes()?);
                Ok(data.len() as u64)
            }
            (Cell::Picture(picture), _) if !is_path => {
                let to = picture.bytes_mut();
                to.clear();
                to.extend_from_slice(bytes()?);
                Ok(to.len() as u64)
            }
            (cell @ (Cell::Text(_) | Cell::Picture(_)), _) => {
                let text = std::str::from_utf8(bytes()?).map_err(|_| wrong("is no UTF-8 text"))?;
                Ok(text.len() as u64
                    + cell.take_json(field, &Json::String(text.to_owned()), beside, opener)?)
            }
        }
    }
}

impl FetchRun for RowReader {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        let (path, numbers) = parts(locator, 2)?;
        let (group, row) = (numbers[0], numbers[1]);
        let file = self.open.get(path, || {
            let input = self.opener.open(path)?;
            let opened = OpenFile::open(input.clone(), &self.fields);
            opened.map_err(|why| input.refusal(cannot_read(path, &why)))
        })?;
        let read = file.read(group, row);
        let at = read.map_err(|why| file.input.refusal(cannot_read(path, &why)))?;
        let columns = file.group.iter().flat_map(|group| &group.columns);
        let mut read = 0;
        for (column, (field, cell)) in columns.zip(self.row.cells()) {
            read += column.block.take(at, field, cell, (path, &self.opener), is_text(&column.descr))?;
        }
        Ok(read)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        self.row.show(show);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use orchestra_core::DType;
    use parquet::data_type::{ByteArrayType, DoubleType, FloatType, Int32Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    const SCHEMA: &str = "message rows {
        required int32 n (INTEGER(32,false));
        optional byte_array text (STRING);
        required double x;
        required group v (LIST) { repeated group list { optional float element; } }
    }";

    /// Row groups of 150 and 50 rows, in pages of a few: row `i` is `i`, `t<i>`, `i / 2` and `[i, -i]`; text is null in row 3, a list too long in row 7.
    fn write(path: &Path) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties =
            WriterProperties::builder().set_data_page_row_count_limit(10).set_write_batch_size(5).build();
        let mut writer =
            SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
        for rows in [0..150_i32, 150..200] {
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let n: Vec<i32> = rows.clone().map(|i| if i == 5 { -1 } else { i }).collect();
            column.typed::<Int32Type>().write_batch(&n, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let text: Vec<ByteArray> =
                rows.clone().filter(|i| *i != 3).map(|i| format!("t{i}").into_bytes().into()).collect();
            let there: Vec<i16> = rows.clone().map(|i| i16::from(i != 3)).collect();
            column.typed::<ByteArrayType>().write_batch(&text, Some(&there), None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let x: Vec<f64> = rows.clone().map(|i| f64::from(i) / 2.0).collect();
            column.typed::<DoubleType>().write_batch(&x, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let (mut v, mut repetitions) = (Vec::new(), Vec::new());
            for i in rows {
                let of_row = if i == 7 { vec![0.0; 3] } else { vec![i as f32, -(i as f32)] };
                repetitions.extend((0..of_row.len()).map(|at| i16::from(at > 0)));
                v.extend(of_row);
            }
            let definitions = vec![2; v.len()];
            column.typed::<FloatType>().write_batch(&v, Some(&definitions), Some(&repetitions)).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn files() -> Files {
        let tensor = |dtype, shape| FieldType::Tensor { dtype, shape };
        let fields = [
            ("v", tensor(DType::F32, vec![2])),
            ("n", tensor(DType::I64, vec![])),
            ("text", FieldType::Text),
            ("x", tensor(DType::F32, vec![])),
        ];
        Files {
            fields: fields.map(|(name, ty)| Field { name: name.into(), ty }).into(),
            max_pixels: 1,
            max_items: 1000,
            protocols: Vec::new(),
        }
    }

    fn items(path: &Path) -> Result<Vec<(String, Vec<u8>)>, ListError> {
        let mut items = Vec::new();
        files().expand(path, &mut |name, locator| {
            items.push((name.to_owned(), locator.to_vec()));
            Ok(())
        })?;
        Ok(items)
    }

    #[test]
    fn every_row_is_read_as_it_was_written_in_any_order_and_a_bad_one_fails_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        write(&path);
        let items = items(&path).unwrap();
        assert_eq!(items.len(), 200);
        let mut run = files().start();
        let any = [0, 199, 4, 63, 64, 63, 140, 150, 2, 149];
        for i in (0..200).chain(any).chain((0..200).step_by(7)) {
            assert_eq!(items[i].0, format!("[{i}]"));
            let read = run.fetch(&items[i].1);
            if let Some(why) = [(3, "`text` is null"), (7, "has 3 numbers")].iter().find(|(at, _)| *at == i) {
                let error = read.unwrap_err().error;
                assert!(error.contains(why.1), "{error}");
                continue;
            }
            read.unwrap();
            run.with_row(&mut |row| {
                let [Value::Tensor(v), Value::Tensor(n), Value::Text(text), Value::Tensor(x)] = row else {
                    panic!("other values")
                };
                let f = i as f32;
                assert_eq!(v.data, [f.to_ne_bytes(), (-f).to_ne_bytes()].concat());
                let unsigned = if i == 5 { i64::from(u32::MAX) } else { i as i64 };
                assert_eq!((n.data, *text), (&unsigned.to_ne_bytes()[..], &*format!("t{i}")));
                assert_eq!(x.data, (f / 2.0).to_ne_bytes());
            });
        }
    }

    #[test]
    fn no_damage_ends_the_process_or_makes_more_rows_than_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        write(&path);
        let whole = std::fs::read(&path).unwrap();
        for len in (0..whole.len()).step_by(101) {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(items(&path).is_err(), "{len} of {}", whole.len());
        }
        std::fs::write(&path, &whole).unwrap();
        let all = items(&path).unwrap();
        for at in (4..whole.len()).step_by(53) {
            let mut bent = whole.clone();
            bent[at] ^= 0x15;
            std::fs::write(&path, &bent).unwrap();
            // Whether it is noticed is up to the format, which has no checksums; that each row is read or refused is up to us.
            drop(items(&path));
            let mut run = files().start();
            for (_, locator) in all.iter().step_by(19) {
                drop(run.fetch(locator));
            }
        }
    }
}
