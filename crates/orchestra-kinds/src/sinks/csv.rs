//! `kind = "csv"`: one line of comma-separated values per record, under a line of names.

use std::path::Path;
use std::sync::Arc;

use orchestra_core::Element;
use orchestra_core::data::{ColumnType, ItemError, Schema, Value};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_plan::{Fields, Input, ReadBack, ReadRecord, Reported, TypedSink, settings};
use orchestra_store::ObjectOutput;

use super::shared::{cannot_write, column_names};
use crate::elements::csv_number;
use crate::objects;

settings! {
    pub struct CsvSink {}
}

impl TypedSink for CsvSink {
    const NAME: &'static str = "csv";
    const ABOUT: &'static str = "Comma-separated values (RFC 4180), a line per record: `item`, `index`, `source`, then for classes `label`, `class` and `score` of the \
         best, and a column for each number of a tensor. Names stand in the first line; a column whose name is taken gets `result_` in front. NaN and \
         infinities are `nan`, `inf` and `-inf`; a field of what is missing is empty.";
    const READ_BACK: Option<ReadBack> = Some(read_rows);
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = objects::output;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        let fits = |ty: &ColumnType| match ty.required() {
            ColumnType::Labels | ColumnType::Text => true,
            ty => ty.stored().is_some_and(|spec| spec.row_len().is_some()),
        };
        let help =
            "a line holds classes, texts and tensors of a fixed shape; kind = \"jsonl\" takes lists as well";
        match input.gives.0.iter().find(|column| !fits(&column.ty)) {
            Some(column) => cannot_write(column, input, fields, help),
            None => Ok(Arc::new(CsvEncoder { schema: input.gives.clone() })),
        }
    }
}

fn read_rows(file: &Path, each: &mut dyn FnMut(ReadRecord<'_>)) -> Result<(), String> {
    let mut reader = csv::Reader::from_path(file).map_err(|error| error.to_string())?;
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| error.to_string())? {
        let (index, source) = (record.get(1).and_then(|index| index.parse().ok()), record.get(2));
        let (Some(index), Some(source), Some(item)) = (index, source, record.get(0)) else {
            let line = record.position().map_or(0, csv::Position::line);
            return Err(format!("line {line} is no record"));
        };
        each(ReadRecord { source, index, item });
    }
    Ok(())
}

#[derive(Debug)]
struct CsvEncoder {
    schema: Schema,
}

impl Encoder for CsvEncoder {
    fn header(&self) -> Vec<u8> {
        let several = self.schema.0.len() > 1;
        let of_column = column_names::unique(&self.schema, |column, called| match column.ty.required() {
            ColumnType::Labels => ["label", "class", "score"]
                .map(|name| if several { format!("{called}.{name}") } else { name.to_owned() })
                .into(),
            ColumnType::Text => vec![called.to_owned()],
            ty => match ty.stored().and_then(|spec| spec.row_len()) {
                Some(1) => vec![called.to_owned()],
                n => (0..n.unwrap_or(0)).map(|n| format!("{called}.{n}")).collect(),
            },
        });
        let names = [column_names::OF_ITEM.map(str::to_owned).into(), of_column.concat()].concat();
        let mut out = Vec::new();
        line(&names, &mut out).expect("memory takes any text");
        out
    }

    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        let mut cells = vec![item.name.to_owned(), item.id.index.to_string(), item.source.to_owned()];
        for (column, value) in self.schema.0.iter().zip(row) {
            match value {
                Value::Labels(labels) => match labels.first() {
                    Some(best) => {
                        cells.extend([
                            best.label.to_owned(),
                            best.class.to_string(),
                            csv_number(Element::Float(best.score)),
                        ]);
                    }
                    None => cells.extend([String::new(), String::new(), String::new()]),
                },
                Value::Text(text) => cells.push((*text).to_owned()),
                Value::Missing(_) => {
                    let n = column.ty.stored().and_then(|spec| spec.row_len()).unwrap_or(1);
                    cells.resize(cells.len() + n, String::new());
                }
                value => value.with_tensor(|view| {
                    let elements = view.data.chunks_exact(view.dtype.size_bytes());
                    cells.extend(elements.map(|bytes| csv_number(Element::read(view.dtype, bytes))));
                    Ok(())
                })?,
            }
        }
        line(&cells, out).map_err(|error| ItemError::result(error.to_string()))
    }
}

fn line(cells: &[String], out: &mut Vec<u8>) -> csv::Result<()> {
    csv::WriterBuilder::new().from_writer(out).write_record(cells)
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::{Column, Label, TensorView, fixed_tensor};
    use orchestra_core::{DType, ItemId, SourceId};

    use super::*;

    #[test]
    fn a_reader_of_csv_gets_back_what_was_written() {
        let tensor = ColumnType::Tensor(fixed_tensor("y", DType::F32, &[2]));
        let schema = Schema(vec![
            Column { name: "classes".into(), ty: ColumnType::Labels },
            Column { name: "y".into(), ty: tensor },
            Column { name: "index".into(), ty: ColumnType::Text },
            Column { name: "y.1".into(), ty: ColumnType::Text },
        ]);
        let rows = CsvEncoder { schema };
        let mut out = rows.header();
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let view = TensorView { name: "y", dtype: DType::F32, shape: &[2], data: &data };
        let labels = [Label { label: "a, \"b\"\nc", class: 3, score: 0.25 }];
        let item = ItemInfo {
            name: "x,y.png",
            id: ItemId { source: SourceId(0), index: 7 },
            source: "s",
            parts: &[],
        };
        let texts = [Value::Text("i"), Value::Text("t")];
        for labels in [&labels[..], &[]] {
            let row = [Value::Labels(labels), Value::Tensor(view), texts[0], texts[1]];
            rows.encode(&item, &row, &mut out).unwrap();
        }
        let mut reader = csv::Reader::from_reader(&out[..]);
        let names =
            "item,index,source,classes.label,classes.class,classes.score,y.0,y.1,result_index,result_y.1";
        assert_eq!(reader.headers().unwrap().iter().collect::<Vec<_>>().join(","), names);
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        let expected = ["x,y.png", "7", "s", "a, \"b\"\nc", "3", "0.25", "1.5", "-2", "i", "t"];
        assert_eq!(records[0].iter().collect::<Vec<_>>(), expected);
        let expected = ["x,y.png", "7", "s", "", "", "", "1.5", "-2", "i", "t"];
        assert_eq!(records[1].iter().collect::<Vec<_>>(), expected);
    }
}
