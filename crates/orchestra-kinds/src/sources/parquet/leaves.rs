//! What a Parquet file holds, as its footer says: columns of values that an item can have. Reads no row.

use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};

use orchestra_core::DType;
use parquet::basic::{Compression, ConvertedType, LogicalType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{FooterTail, ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::whole_file;
use crate::sources::reading::field_type::{Field, FieldType};

/// No footer is larger, in bytes: beyond it a file has hundreds of thousands of columns and row groups.
const LARGEST_FOOTER: u64 = 32 << 20;

/// No file has more columns.
const MOST_COLUMNS: usize = 1 << 14;

/// Calls code that reads what a file says of itself. A damaged one must not end the process.
pub fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| match error {
            ParquetError::General(why) | ParquetError::EOF(why) => format!("it is damaged: {why}"),
            ParquetError::NYI(why) => format!("it uses what is not read: {why}"),
            other => other.to_string(),
        }),
        Err(_) => Err("it is damaged".into()),
    }
}

/// Reads the footer. It believes what that claims of itself: a loader, whose memory and stack are bounded, is lost at worst.
pub fn footer(file: &mut (impl Read + Seek + ?Sized)) -> Result<ParquetMetaData, String> {
    let text = |error: std::io::Error| error.to_string();
    let len = file.seek(SeekFrom::End(0)).map_err(text)?;
    let none = "it is no Parquet file, or it is cut short: its footer is missing at the end";
    let end = len.checked_sub(FOOTER_SIZE as u64).ok_or(none)?;
    let mut tail = [0; FOOTER_SIZE];
    file.seek(SeekFrom::Start(end)).map_err(text)?;
    file.read_exact(&mut tail).map_err(text)?;
    let tail = guarded(|| FooterTail::try_new(&tail)).map_err(|_| none)?;
    if tail.is_encrypted_footer() {
        return Err("it is encrypted, which is not read: write it without encryption".into());
    }
    let size = tail.metadata_length() as u64;
    let start = end.checked_sub(size).ok_or("it is damaged: its footer is larger than it")?;
    if size > LARGEST_FOOTER {
        return Err(format!(
            "its footer has {size} bytes, and at most {} MiB are read",
            LARGEST_FOOTER >> 20
        ));
    }
    let mut bytes = vec![0; size as usize];
    file.seek(SeekFrom::Start(start)).map_err(text)?;
    file.read_exact(&mut bytes).map_err(text)?;
    let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(&bytes))?;
    let n_columns = metadata.file_metadata().schema_descr().num_columns();
    if n_columns > MOST_COLUMNS {
        return Err(format!("it has {n_columns} columns, and at most {MOST_COLUMNS} are read"));
    }
    whole_file::check(&metadata, file, start)?;
    Ok(metadata)
}

/// How many rows each row group has.
pub fn row_groups(metadata: &ParquetMetaData) -> Result<Vec<u64>, String> {
    let rows = metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()).ok());
    let rows: Vec<u64> =
        rows.collect::<Option<_>>().ok_or("it is damaged: a row group has less than no rows")?;
    let total = rows.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
    total.filter(|total| *total <= u64::MAX / 2).ok_or("it is damaged: it has too many rows")?;
    Ok(rows)
}

/// The number of the leaf of each of these fields; fails where a field has none that fits, or one that cannot be unpacked.
pub fn resolve(metadata: &ParquetMetaData, fields: &[Field]) -> Result<Vec<usize>, String> {
    let schema = metadata.file_metadata().schema_descr();
    let names = names(schema);
    let packed = |leaf: usize| {
        let chunks = metadata.row_groups().iter().map(|group| group.column(leaf).compression());
        chunks.into_iter().find(|codec| matches!(codec, Compression::LZO))
    };
    let resolve = |field: &Field| {
        let leaf = names.iter().position(|name| *name == field.name).ok_or_else(|| {
            let shown: Vec<&str> = names.iter().take(20).map(String::as_str).collect();
            let more = if names.len() > shown.len() { ", .." } else { "" };
            format!("it has no column `{}`; its columns are `{}`{more}", field.name, shown.join("`, `"))
        })?;
        fits(&schema.column(leaf), &field.ty).map_err(|why| format!("column `{}` {why}", field.name))?;
        match packed(leaf) {
            None => Ok(leaf),
            Some(codec) => Err(format!(
                "column `{}` is compressed with {codec}, which is not read: write it with another codec",
                field.name
            )),
        }
    };
    fields.iter().map(resolve).collect()
}

/// All columns with the types that their values tell.
pub fn all(schema: &SchemaDescriptor) -> Result<Vec<Field>, String> {
    let field = |(at, name): (usize, String)| match natural(&schema.column(at)) {
        Ok(ty) => Ok(Field::new(name, ty)),
        Err(why) => Err(format!(
            "column `{name}` {why}: name the columns that you want, with their types, in `columns`"
        )),
    };
    names(schema).into_iter().enumerate().map(field).collect()
}

/// The names of the leaves: that of the column, or of a struct the path, `image.bytes`.
fn names(schema: &SchemaDescriptor) -> Vec<String> {
    let root = |leaf: usize| schema.get_column_root_idx(leaf);
    let n = schema.num_columns();
    let name = |leaf: usize| {
        let is_alone =
            (leaf == 0 || root(leaf - 1) != root(leaf)) && (leaf + 1 == n || root(leaf + 1) != root(leaf));
        let is_list = schema.column(leaf).max_rep_level() > 0;
        match is_alone && is_list {
            true => schema.get_column_root(leaf).name().to_owned(),
            false => schema.column(leaf).path().string(),
        }
    };
    (0..n).map(name).collect()
}

/// Whether bytes are text.
pub fn is_text(leaf: &ColumnDescriptor) -> bool {
    let is_logical =
        matches!(leaf.logical_type_ref(), Some(LogicalType::String | LogicalType::Enum | LogicalType::Json));
    is_logical
        || matches!(leaf.converted_type(), ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON)
}

/// Whether whole numbers have no sign.
pub fn is_unsigned(leaf: &ColumnDescriptor) -> bool {
    use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
    matches!(leaf.converted_type(), UINT_8 | UINT_16 | UINT_32 | UINT_64)
}

/// Why no type reads the column, and what makes another one of it. Decimals and halves stand for other numbers than they hold.
fn unread(leaf: &ColumnDescriptor) -> Option<String> {
    let is_decimal = matches!(leaf.logical_type_ref(), Some(LogicalType::Decimal { .. }))
        || leaf.converted_type() == ConvertedType::DECIMAL;
    let (what, instead) = match leaf.logical_type_ref() {
        _ if leaf.max_rep_level() > 1 => (
            "list of lists",
            "write it as one list, and give the lengths of the inner ones a column of their own",
        ),
        _ if leaf.physical_type() == Physical::INT96 => (
            "time of the old type INT96",
            "in pandas, `.astype(\"int64\")` makes nanoseconds since 1970 of it",
        ),
        Some(LogicalType::Float16) => ("half", "in pandas, `.astype(\"float32\")` makes floats of it"),
        _ if is_decimal => ("decimal", "in pandas, `.astype(\"float64\")` makes floats of it"),
        _ => return None,
    };
    Some(format!("is a {what}, which is not read ({instead})"))
}

/// Whether the numbers count days or parts of a second, which a number in a record would not say.
fn is_time(leaf: &ColumnDescriptor) -> bool {
    use ConvertedType::{DATE, TIME_MICROS, TIME_MILLIS, TIMESTAMP_MICROS, TIMESTAMP_MILLIS};
    use LogicalType::{Date, Time, Timestamp};
    matches!(leaf.logical_type_ref(), Some(Date | Time { .. } | Timestamp { .. }))
        || matches!(
            leaf.converted_type(),
            DATE | TIME_MICROS | TIME_MILLIS | TIMESTAMP_MICROS | TIMESTAMP_MILLIS
        )
}

fn natural(leaf: &ColumnDescriptor) -> Result<FieldType, String> {
    if let Some(why) = unread(leaf) {
        return Err(why);
    }
    if leaf.max_rep_level() > 0 {
        return Err("is a list, whose length the file does not say (`f32[8]`, for 8 numbers)".into());
    }
    if is_time(leaf) {
        return Err("is a date or a time, which `i64` reads as the bare count of its unit".into());
    }
    Ok(match leaf.physical_type() {
        Physical::BOOLEAN => FieldType::scalar(DType::Bool),
        Physical::INT32 if leaf.converted_type() == ConvertedType::UINT_8 => FieldType::scalar(DType::U8),
        Physical::INT32 if leaf.converted_type() == ConvertedType::INT_16 => FieldType::scalar(DType::I16),
        Physical::INT32 if leaf.converted_type() != ConvertedType::UINT_32 => FieldType::scalar(DType::I32),
        Physical::INT32 | Physical::INT64 => FieldType::scalar(DType::I64),
        Physical::FLOAT => FieldType::scalar(DType::F32),
        Physical::DOUBLE => FieldType::scalar(DType::F64),
        Physical::BYTE_ARRAY if is_text(leaf) => FieldType::Text,
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => FieldType::Bytes("bin".into()),
        Physical::INT96 => unreachable!("no type reads it"),
    })
}

fn fits(leaf: &ColumnDescriptor, ty: &FieldType) -> Result<(), String> {
    let physical = leaf.physical_type();
    let is_list = leaf.max_rep_level() > 0;
    let is_bytes = !is_list && matches!(physical, Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY);
    if let Some(why) = unread(leaf) {
        return Err(why);
    }
    let fits = match ty {
        FieldType::Text | FieldType::Json => is_bytes && is_text(leaf),
        FieldType::Bytes(_) | FieldType::Picture => is_bytes,
        FieldType::Texts(_) => false,
        FieldType::Tensor { shape, .. } => {
            use Physical::{BOOLEAN, DOUBLE, FLOAT, INT32, INT64};
            is_list != shape.is_empty() && matches!(physical, BOOLEAN | INT32 | INT64 | FLOAT | DOUBLE)
        }
    };
    let list = if is_list { "a list of " } else { "" };
    if fits { Ok(()) } else { Err(format!("holds {list}{physical}, and `{ty}` cannot be made of it")) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;

    use super::*;

    #[test]
    fn columns_that_no_type_reads_are_refused_with_what_to_make_of_them() {
        for (column, says) in [
            (
                "fixed_len_byte_array(2) x (FLOAT16)",
                "is a half, which is not read (in pandas, `.astype(\"float32\")`",
            ),
            (
                "int64 x (DECIMAL(10, 2))",
                "is a decimal, which is not read (in pandas, `.astype(\"float64\")`",
            ),
            ("fixed_len_byte_array(16) x (DECIMAL(30, 2))", "is a decimal"),
            (
                "int96 x",
                "is a time of the old type INT96, which is not read (in pandas, `.astype(\"int64\")`",
            ),
            (
                "group x (LIST) { repeated group list { optional group element (LIST) { repeated group list { optional float element; } } } }",
                "is a list of lists, which is not read (write it as one list",
            ),
        ] {
            let end = if column.ends_with('}') { "" } else { ";" };
            let schema =
                parse_message_type(&format!("message rows {{ required {column}{end} required double y; }}"));
            let schema = SchemaDescriptor::new(Arc::new(schema.unwrap()));
            assert!(all(&schema).unwrap_err().contains(says), "{column}");
            for ty in [FieldType::scalar(DType::F64), FieldType::Bytes("bin".into())] {
                assert!(fits(&schema.column(0), &ty).unwrap_err().contains(says), "{column}");
            }
            assert!(fits(&schema.column(1), &FieldType::scalar(DType::F64)).is_ok());
        }
    }
}
