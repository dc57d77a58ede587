//! Reads an open Parquet file: the rows of a row group as a stream, column by column, a block of rows at a time.

use std::io::{self, BufReader, Read as _};
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use orchestra_core::data::ItemError;
use orchestra_core::{DType, Element, FailureKind};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};

use super::leaves::{footer, guarded, is_text, is_unsigned, resolve, row_groups};
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::input::{FileLike, InputStream, Opener};
use crate::sources::reading::limits::{LARGEST_FILE_BYTES, LARGEST_TEXT};
use crate::sources::reading::read_file::or_no_memory;
use crate::sources::reading::row::{FieldBuffer, FieldRow, Taken};
use orchestra_plan::toml_key;

/// Rows that are decoded together.
const BLOCK: usize = 64;

/// A file whose columns are read block by block.
pub struct OpenFile {
    pub input: FileLike,
    reader: SerializedFileReader<FileLike>,
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
    block: ColumnBlock,
}

/// The values of some rows of a column.
#[derive(Default)]
struct ColumnBlock {
    numbers: Vec<Element>,
    /// Places among them of numbers beyond `i64`, for which others stand there.
    beyond: Vec<(usize, u64)>,
    bytes: Vec<ByteArray>,
    /// Per row: where its values end, and whether there is a null among them.
    rows: Vec<(usize, bool)>,
}

impl Length for FileLike {
    fn len(&self) -> u64 {
        // Of a file that cannot be asked no row can be read, and the reading says why.
        self.size().unwrap_or(0)
    }
}

impl ChunkReader for FileLike {
    type T = BufReader<InputStream>;

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

impl OpenFile {
    pub fn open(input: FileLike, fields: &[Field]) -> Result<Self, String> {
        // Checks how large the footer is.
        let metadata = footer(&mut input.from(0))?;
        let leaves = resolve(&metadata, fields)?;
        let reader = guarded(|| SerializedFileReader::new(input.clone()))?;
        Ok(Self { input, reader, leaves, group: None })
    }

    /// Brings a row into the blocks; gives its place in them.
    pub fn read(&mut self, number: u64, row: u64) -> Result<usize, String> {
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
                            block: ColumnBlock::default(),
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

    /// Takes the values of the row at this place of the blocks. Gives the bytes that were read for it.
    pub fn take(&self, at: usize, row: &mut FieldRow, beside: (&Path, &Opener)) -> Result<u64, ItemError> {
        let mut columns = self.group.iter().flat_map(|group| &group.columns);
        row.fill(|_, field, cell| match columns.next() {
            Some(column) => column.block.take(at, field, cell, beside, is_text(&column.descr)),
            None => Err(ItemError::result("internal error: a column is not open; this is a bug")),
        })
    }
}

impl OpenColumn {
    /// Passes over rows, and reads the next ones into the block.
    fn read(&mut self, skip: usize, n: usize) -> Result<(), ParquetError> {
        let unsigned = is_unsigned(&self.descr);
        let ColumnBlock { numbers, beyond, bytes, rows } = &mut self.block;
        numbers.clear();
        beyond.clear();
        bytes.clear();
        rows.clear();
        let int = |v: i64| Element::Int(v);
        match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => {
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(Element::Bool));
            }
            ColumnReader::Int32ColumnReader(reader) => {
                let wide = |v: i32| if unsigned { i64::from(v.cast_unsigned()) } else { i64::from(v) };
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(wide).map(int));
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let read = values(reader, skip, n, rows, &self.descr)?;
                let too_large = read.iter().enumerate().filter(|(_, v)| unsigned && **v < 0);
                beyond.extend(too_large.map(|(place, v)| (place, v.cast_unsigned())));
                numbers.extend(read.into_iter().map(int));
            }
            ColumnReader::FloatColumnReader(reader) => {
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(Element::Float));
            }
            ColumnReader::DoubleColumnReader(reader) => {
                numbers.extend(values(reader, skip, n, rows, &self.descr)?.into_iter().map(Element::Double));
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

impl ColumnBlock {
    /// Takes the value of a row for a field. Gives the bytes that were read for it.
    fn take(
        &self,
        at: usize,
        field: &Field,
        cell: &mut FieldBuffer,
        (beside, opener): (&Path, &Opener),
        is_path: bool,
    ) -> Result<Taken, ItemError> {
        let refuse = |kind: FailureKind, error: String| ItemError { kind, error };
        let wrong = |why: &str| refuse(FailureKind::Decode, format!("`{}` {why}", field.name));
        let begin = at.checked_sub(1).and_then(|before| self.rows.get(before)).map_or(0, |row| row.0);
        let Some((end, has_null)) = self.rows.get(at).copied() else {
            return Err(wrong("has no value; this is a bug"));
        };
        match (has_null, end > begin, &field.ty) {
            (false, ..) => {}
            (true, true, _) => return Err(wrong("has a null in its list")),
            (true, false, FieldType::Tensor { shape, .. }) if !shape.is_empty() && !field.optional => {
                return Err(wrong("is null, or an empty list"));
            }
            (true, false, _) => return Ok(Taken::Missing),
        }
        let bytes = || -> Result<&[u8], ItemError> {
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
            (FieldBuffer::Bytes(data), FieldType::Tensor { dtype, shape }) => {
                data.clear();
                self.tensor(begin..end, field, (*dtype, shape), data).map_err(|why| wrong(&why))?;
                Ok(Taken::Bytes(0))
            }
            (FieldBuffer::Bytes(data), _) => {
                data.clear();
                data.extend_from_slice(bytes()?);
                Ok(Taken::Bytes(data.len() as u64))
            }
            (FieldBuffer::Picture(picture), _) if !is_path => {
                let to = picture.bytes_mut();
                to.clear();
                to.extend_from_slice(bytes()?);
                Ok(Taken::Bytes(to.len() as u64))
            }
            (cell @ (FieldBuffer::Text(_) | FieldBuffer::Picture(_)), _) => {
                let text = std::str::from_utf8(bytes()?).map_err(|_| wrong("is no UTF-8 text"))?;
                Ok(match cell.take_text(field, text, beside, opener)? {
                    Taken::Bytes(bytes) => Taken::Bytes(bytes + text.len() as u64),
                    Taken::Missing => Taken::Missing,
                })
            }
        }
    }

    /// Appends the numbers at these places as a tensor of a field; or why they cannot be one.
    fn tensor(
        &self,
        places: Range<usize>,
        field: &Field,
        (dtype, shape): (DType, &[usize]),
        data: &mut Vec<u8>,
    ) -> Result<(), String> {
        let ty = &field.ty;
        let numbers = self.numbers.get(places.clone()).unwrap_or_default();
        let (found, expected) = (numbers.len(), shape.iter().product::<usize>());
        if found != expected {
            return Err(format!("has {found} numbers, and {expected} are expected"));
        }
        if let Some((_, number)) = self.beyond.iter().find(|(place, _)| places.contains(place)) {
            return Err(format!(
                "is no {ty}: {number} is beyond the integers of 64 bits with a sign, and would be rounded; write the column as text (in pandas, `.astype(str)`)"
            ));
        }
        let exact = || {
            let exact = FieldType::Tensor { dtype: DType::I64, shape: shape.to_vec() };
            format!("; write columns = {{ {} = \"{exact}\" }}", toml_key(&field.name))
        };
        for number in numbers {
            // The file says that it is an integer.
            if let Element::Int(n) = number
                && let Some(other) = rounded(*n, dtype)
            {
                return Err(format!("is no {ty}: {dtype} would make {other} of {n}{}", exact()));
            }
            number.append(dtype, data).map_err(|why| {
                let help = if why.would_round { exact() } else { String::new() };
                format!("is no {ty}: {why}{help}")
            })?;
        }
        Ok(())
    }
}

/// What a float of 32 or 16 bits makes of an integer, where that is another one.
fn rounded(n: i64, dtype: DType) -> Option<f64> {
    let mut data = Vec::new();
    let is_small = matches!(dtype, DType::F32 | DType::F16) && n.unsigned_abs() < 1 << 53;
    Element::Int(n).append(dtype, &mut data).ok().filter(|()| is_small)?;
    Some(Element::read(dtype, &data).to_f64()).filter(|made| *made as i64 != n)
}
