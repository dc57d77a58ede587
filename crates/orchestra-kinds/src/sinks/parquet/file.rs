//! Columns as a Parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{ItemError, Value};
use orchestra_core::shapes::{Encoder, ItemInfo, PartFiles};
use orchestra_plan::ReadRecord;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RowAccessor as _;
use parquet::schema::types::{Type, TypePtr};

use super::columns::{ColumnNode, LeafType, LeafValues, RecordColumns, take_apart};

/// So many bytes of rows are taken apart at once: in columns, with their levels, they need up to four times as much.
const BYTES_PER_ROW_GROUP: usize = 16 << 20;

/// Makes Parquet files of rows.
#[derive(Debug)]
pub struct ParquetRows {
    pub rows: RecordColumns,
    pub rows_per_file: u64,
}

impl Encoder for ParquetRows {
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        self.rows.write(item, row, out)
    }

    fn part_files(&self) -> Option<&dyn PartFiles> {
        Some(self)
    }
}

impl PartFiles for ParquetRows {
    fn rows_per_file(&self) -> u64 {
        self.rows_per_file
    }

    fn file(&self, records: &[&[u8]]) -> Result<Vec<u8>, ItemError> {
        write(&self.rows.node, records).map_err(|error| ItemError::result(error.to_string()))
    }
}

/// Reads the items of the rows of a file back.
pub fn read_rows(file: &Path, each: &mut dyn FnMut(ReadRecord<'_>)) -> Result<(), String> {
    let mut read = || -> Result<(), ParquetError> {
        let reader = SerializedFileReader::new(File::open(file)?)?;
        let all = reader.metadata().file_metadata().schema().get_fields();
        let named = |name: &&TypePtr| ["item", "index", "source"].contains(&name.name());
        let wanted = Type::group_type_builder("row").with_fields(all.iter().filter(named).cloned().collect());
        for row in reader.get_row_iter(Some(wanted.build()?))? {
            let row = row?;
            let (item, index, source) = (row.get_string(0)?, row.get_long(1)?, row.get_string(2)?);
            each(ReadRecord { source, index: index.cast_unsigned(), item });
        }
        Ok(())
    };
    read().map_err(|error| error.to_string())
}

fn write(node: &ColumnNode, mut records: &[&[u8]]) -> Result<Vec<u8>, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("orchestra ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema(node)?, Arc::new(properties))?;
    let mut kinds = Vec::new();
    leaves_of(node, &mut kinds);
    while !records.is_empty() {
        let mut bytes = 0;
        let mut fits = |record: &&[u8]| {
            bytes += record.len();
            bytes <= BYTES_PER_ROW_GROUP
        };
        let n = records.iter().take_while(|record| fits(record)).count().max(1);
        let (these, rest) = records.split_at(n);
        records = rest;
        let mut leaves: Vec<LeafValues> = kinds.iter().map(|_| LeafValues::default()).collect();
        for record in these {
            let taken = take_apart(node, record, &mut leaves);
            taken.ok_or_else(|| ParquetError::General("a row that waited for its part is damaged".into()))?;
        }
        let mut group = writer.next_row_group()?;
        let mut leaves = kinds.iter().zip(leaves);
        while let (Some(mut column), Some((kind, values))) = (group.next_column()?, leaves.next()) {
            write_leaf(column.untyped(), *kind, values)?;
            column.close()?;
        }
        group.close()?;
    }
    writer.into_inner()
}

fn write_leaf(column: &mut ColumnWriter<'_>, kind: LeafType, leaf: LeafValues) -> Result<(), ParquetError> {
    let LeafValues { bytes, texts, definition, repetition } = leaf;
    let (definition, repetition) = (Some(&*definition), Some(&*repetition));
    match column {
        ColumnWriter::BoolColumnWriter(column) => {
            let values: Vec<bool> = bytes.iter().map(|byte| *byte != 0).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        ColumnWriter::Int32ColumnWriter(column) if kind == LeafType::U8 => {
            let values: Vec<i32> = bytes.iter().map(|byte| i32::from(*byte)).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        ColumnWriter::Int32ColumnWriter(column) => {
            let values: Vec<i32> = bytes.as_chunks().0.iter().map(|n| i32::from_le_bytes(*n)).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        ColumnWriter::Int64ColumnWriter(column) => {
            let values: Vec<i64> = bytes.as_chunks().0.iter().map(|n| i64::from_le_bytes(*n)).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        ColumnWriter::FloatColumnWriter(column) => {
            let values: Vec<f32> = bytes.as_chunks().0.iter().map(|n| f32::from_le_bytes(*n)).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        ColumnWriter::DoubleColumnWriter(column) => {
            let values: Vec<f64> = bytes.as_chunks().0.iter().map(|n| f64::from_le_bytes(*n)).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        ColumnWriter::ByteArrayColumnWriter(column) => {
            let values: Vec<ByteArray> = texts.into_iter().map(ByteArray::from).collect();
            column.write_batch(&values, definition, repetition)?;
        }
        _ => return Err(ParquetError::General("a column of no type of ours; this is a bug".into())),
    }
    Ok(())
}

/// All leaves, in their order.
fn leaves_of(node: &ColumnNode, leaves: &mut Vec<LeafType>) {
    match node {
        ColumnNode::Leaf(leaf) => leaves.push(*leaf),
        ColumnNode::List(of) | ColumnNode::Optional(of) => leaves_of(of, leaves),
        ColumnNode::Struct(fields) => fields.iter().for_each(|(_, field)| leaves_of(field, leaves)),
    }
}

/// Nothing is absent but what is optional; lists may be empty.
fn schema(node: &ColumnNode) -> Result<TypePtr, ParquetError> {
    let ColumnNode::Struct(fields) = node else {
        return Err(ParquetError::General("a row is no struct; this is a bug".into()));
    };
    let fields = fields
        .iter()
        .map(|(name, node)| type_of(name, node, Repetition::REQUIRED))
        .collect::<Result<_, _>>()?;
    Type::group_type_builder("row").with_fields(fields).build().map(Arc::new)
}

fn type_of(name: &str, node: &ColumnNode, repetition: Repetition) -> Result<TypePtr, ParquetError> {
    let built = match node {
        ColumnNode::Leaf(leaf) => {
            let unsigned = |bits| Some(LogicalType::integer(bits, false));
            let (physical, logical) = match leaf {
                LeafType::Bool => (Physical::BOOLEAN, None),
                LeafType::U8 => (Physical::INT32, unsigned(8)),
                LeafType::U32 => (Physical::INT32, unsigned(32)),
                LeafType::I32 => (Physical::INT32, None),
                LeafType::I64 => (Physical::INT64, None),
                LeafType::I16 => (Physical::INT32, Some(LogicalType::integer(16, true))),
                LeafType::F32 => (Physical::FLOAT, None),
                LeafType::F64 => (Physical::DOUBLE, None),
                LeafType::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                LeafType::Bytes => (Physical::BYTE_ARRAY, None),
            };
            Type::primitive_type_builder(name, physical)
                .with_logical_type(logical)
                .with_repetition(repetition)
                .build()?
        }
        ColumnNode::Optional(of) => return type_of(name, of, Repetition::OPTIONAL),
        ColumnNode::List(of) => {
            let elements = Type::group_type_builder("list")
                .with_repetition(Repetition::REPEATED)
                .with_fields(vec![type_of("element", of, Repetition::REQUIRED)?])
                .build()?;
            Type::group_type_builder(name)
                .with_repetition(repetition)
                .with_logical_type(Some(LogicalType::List))
                .with_fields(vec![Arc::new(elements)])
                .build()?
        }
        ColumnNode::Struct(fields) => {
            let fields = fields
                .iter()
                .map(|(name, node)| type_of(name, node, Repetition::REQUIRED))
                .collect::<Result<_, _>>()?;
            let builder = Type::group_type_builder(name).with_repetition(repetition);
            builder.with_fields(fields).build()?
        }
    };
    Ok(Arc::new(built))
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::{Column, ColumnType, Label, OwnedValue, Schema, TensorView, fixed_tensor};
    use orchestra_core::{DType, ItemId, SourceId};
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;
    use serde_json::{Value as Json, json};

    use super::*;

    fn schema_of(columns: &[(&str, ColumnType)]) -> Schema {
        Schema(columns.iter().map(|(name, ty)| Column { name: (*name).to_owned(), ty: ty.clone() }).collect())
    }

    fn tensor(dtype: DType, shape: &[usize]) -> ColumnType {
        ColumnType::Tensor(fixed_tensor("t", dtype, shape))
    }

    fn json_of(field: Field) -> Json {
        match field {
            Field::Bool(v) => json!(v),
            Field::UByte(v) => json!(v),
            Field::UInt(v) => json!(v),
            Field::Int(v) => json!(v),
            Field::Long(v) => json!(v),
            Field::Float(v) => json!(v),
            Field::Double(v) => json!(v),
            Field::Short(v) => json!(v),
            Field::Null => Json::Null,
            Field::Str(v) => json!(v),
            Field::ListInternal(list) => list.elements().iter().cloned().map(json_of).collect(),
            Field::Group(row) => {
                row.into_columns().into_iter().map(|(name, field)| (name, json_of(field))).collect()
            }
            other => panic!("no such field is written: {other:?}"),
        }
    }

    fn reader(file: Vec<u8>) -> SerializedFileReader<bytes::Bytes> {
        SerializedFileReader::new(bytes::Bytes::from(file)).unwrap()
    }

    fn rows_of(reader: &SerializedFileReader<bytes::Bytes>) -> Vec<Json> {
        reader.get_row_iter(None).unwrap().map(|row| json_of(Field::Group(row.unwrap()))).collect()
    }

    fn item(name: &str, index: u64) -> ItemInfo<'_> {
        ItemInfo { name, id: ItemId { source: SourceId(0), index }, source: "scans", parts: &[] }
    }

    fn parquet(schema: &Schema) -> ParquetRows {
        ParquetRows { rows: RecordColumns::new(schema).unwrap(), rows_per_file: 10 }
    }

    fn encoded(parquet: &ParquetRows, item: &ItemInfo<'_>, row: &[Value<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        parquet.encode(item, row, &mut out).unwrap();
        out
    }

    #[test]
    fn another_reader_finds_every_type_and_lists_of_any_length() {
        let parts = schema_of(&[("classes", ColumnType::Labels), ("box", tensor(DType::I64, &[2]))]);
        let schema = schema_of(&[
            ("f", tensor(DType::F32, &[2, 2])),
            ("h", tensor(DType::F16, &[1])),
            ("i", tensor(DType::I32, &[])),
            ("u", tensor(DType::U8, &[2])),
            ("b", tensor(DType::Bool, &[2])),
            ("index", tensor(DType::I64, &[0])),
            ("parts", ColumnType::List(parts)),
        ]);
        let parquet = parquet(&schema);
        let view = |dtype, shape, data| Value::Tensor(TensorView { name: "t", dtype, shape, data });
        let floats: Vec<u8> = [1.5f32, -2.0, 0.25, 4.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let (half, int) = (half::f16::from_f32(0.5).to_ne_bytes(), (-7i32).to_ne_bytes());
        let part = |labels: &[(&str, u32, f32)], at: i64| {
            let data: Vec<u8> = [at, at + 1].iter().flat_map(|v| v.to_ne_bytes()).collect();
            let (name, shape) = ("t".into(), [2].into());
            let bounds = OwnedValue::Tensor { name, dtype: DType::I64, shape, data: data.into() };
            vec![OwnedValue::Labels(labels.iter().map(|(l, c, s)| ((*l).into(), *c, *s)).collect()), bounds]
        };
        let lists = [
            vec![part(&[("a", 0, 0.5), ("b\n\"", u32::MAX, 0.25)], 5), part(&[], 7)],
            vec![],
            vec![part(&[("c", 2, 1.0)], i64::MIN)],
        ];
        let records: Vec<Vec<u8>> = (0..3)
            .zip(&lists)
            .map(|(n, list)| {
                let row = [
                    view(DType::F32, &[2, 2], &floats),
                    view(DType::F16, &[1], &half),
                    view(DType::I32, &[], &int),
                    view(DType::U8, &[2], &[0, 255]),
                    view(DType::Bool, &[2], &[0, 1]),
                    view(DType::I64, &[0], &[]),
                    Value::List(list),
                ];
                encoded(&parquet, &item(&format!("ä/{n}.png"), n), &row)
            })
            .collect();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let found = rows_of(&reader(parquet.file(&records).unwrap()));
        let class =
            |label: &str, class: u32, score: f64| json!({ "label": label, "class": class, "score": score });
        let parts = [
            json!([
                { "classes": [class("a", 0, 0.5), class("b\n\"", u32::MAX, 0.25)], "box": [5, 6] },
                { "classes": [], "box": [7, 8] },
            ]),
            json!([]),
            json!([{ "classes": [class("c", 2, 1.0)], "box": [i64::MIN, i64::MIN + 1] }]),
        ];
        for (n, parts) in parts.iter().enumerate() {
            let expected = json!({
                "item": format!("ä/{n}.png"), "index": n, "source": "scans", "f": [[1.5, -2.0], [0.25, 4.0]], "h": [0.5], "i": -7,
                "u": [0, 255], "b": [false, true], "result_index": [], "parts": parts,
            });
            assert_eq!(found[n], expected);
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn many_rows_come_out_of_several_row_groups_in_their_order() {
        let schema = schema_of(&[("y", tensor(DType::F32, &[1 << 20])), ("classes", ColumnType::Labels)]);
        let parquet = parquet(&schema);
        let record = |n: u64| {
            let data: Vec<u8> = std::iter::repeat_n((n as f32).to_ne_bytes(), 1 << 20).flatten().collect();
            let view = TensorView { name: "y", dtype: DType::F32, shape: &[1 << 20], data: &data };
            let labels = [Label { label: "x", class: 1, score: f32::NAN }];
            encoded(&parquet, &item("a", n), &[Value::Tensor(view), Value::Labels(&labels)])
        };
        let records: Vec<Vec<u8>> = (0..9).map(record).collect();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let file = parquet.file(&records).unwrap();
        let reader = reader(file);
        assert_eq!(reader.num_row_groups(), 3);
        for (n, row) in rows_of(&reader).into_iter().enumerate() {
            assert_eq!((&row["index"], &row["y"][17]), (&json!(n), &json!(n as f64)));
            assert!(row["classes"][0]["score"].is_null(), "what is no number is `null` in JSON");
        }
    }

    #[test]
    fn a_row_that_is_cut_anywhere_is_refused() {
        let schema = schema_of(&[("y", tensor(DType::I32, &[2, 2])), ("classes", ColumnType::Labels)]);
        let parquet = parquet(&schema);
        let view = TensorView { name: "y", dtype: DType::I32, shape: &[2, 2], data: &[1; 16] };
        let labels = [Label { label: "x", class: 1, score: 0.5 }];
        let whole = encoded(&parquet, &item("a", 3), &[Value::Tensor(view), Value::Labels(&labels)]);
        assert!(parquet.file(&[&whole]).is_ok());
        for cut in 0..whole.len() {
            assert!(parquet.file(&[&whole[..cut]]).is_err(), "{cut} of {}", whole.len());
        }
    }

    #[test]
    fn a_picture_is_no_column() {
        assert!(RecordColumns::new(&schema_of(&[("picture", ColumnType::Picture)])).is_err());
    }
}
