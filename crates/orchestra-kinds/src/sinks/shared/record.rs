//! Values as JSON. Writes no file.

use orchestra_core::data::{Column, ColumnType, Label, OwnedRow, Schema, TensorView, Value, with_values};
use orchestra_core::{DType, Element};
use serde::ser::{Error, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use crate::elements::JsonNumber;

/// Whether values of this type have a form in JSON.
pub fn can_be_written(ty: &ColumnType) -> bool {
    match ty {
        ColumnType::Tensor(_) | ColumnType::Pixels { .. } | ColumnType::Largest { .. } => true,
        ColumnType::Labels | ColumnType::Text => true,
        ColumnType::Picture | ColumnType::Bytes(_) | ColumnType::Placement => false,
        ColumnType::List(schema) => schema.0.iter().all(|c| can_be_written(&c.ty)),
        ColumnType::Optional(of) => can_be_written(of),
    }
}

/// A row as a result: the value itself where it is the only one and no tensor, else an object by column.
pub struct RowJson<'a> {
    pub schema: &'a Schema,
    pub row: &'a [Value<'a>],
}

impl Serialize for RowJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = &self.schema.0;
        if let ([column], [value]) = (&columns[..], self.row)
            && column.ty.tensor().is_none()
        {
            return ValueJson { column, value, in_list: false }.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(columns.len()))?;
        for (column, value) in columns.iter().zip(self.row) {
            map.serialize_entry(&column.name, &ValueJson { column, value, in_list: false })?;
        }
        map.end()
    }
}

struct ValueJson<'a> {
    column: &'a Column,
    value: &'a Value<'a>,
    /// It is of a part: its tensors are plain lists.
    in_list: bool,
}

impl Serialize for ValueJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.value, &self.column.ty) {
            (Value::Labels(labels), _) => labels_json(labels, serializer),
            (Value::Text(text), _) => serializer.serialize_str(text),
            (Value::Missing(_), _) => serializer.serialize_unit(),
            (Value::List(rows), ColumnType::List(schema)) => {
                serializer.collect_seq(rows.iter().map(|row| OwnedRowJson { schema, row }))
            }
            (Value::Tensor(view), _) => tensor_json(view, self.in_list, serializer),
            (value @ Value::Unwritten(_), _) => {
                let mut serializer = Some(serializer);
                let mut done = None;
                let written = value.with_tensor(|view| {
                    done = serializer.take().map(|serializer| tensor_json(view, self.in_list, serializer));
                    Ok(())
                });
                match (written, done) {
                    (Ok(()), Some(done)) => done,
                    (Err(item_error), _) => Err(S::Error::custom(item_error.error)),
                    (Ok(()), None) => Err(S::Error::custom("a tensor was not written; this is a bug")),
                }
            }
            (Value::Picture(_) | Value::Bytes(_) | Value::List(_), _) => {
                Err(S::Error::custom("this value cannot be written as JSON; this is a bug"))
            }
        }
    }
}

/// The values of a row as a list, without names: rows of lists likewise, and bytes as hexadecimal digits. Who reads them knows their types.
pub struct ValuesJson<'a> {
    pub schema: &'a Schema,
    pub row: &'a [Value<'a>],
}

impl Serialize for ValuesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = self.schema.0.iter().zip(self.row);
        serializer.collect_seq(columns.map(|(column, value)| TypedJson { column, value }))
    }
}

/// A value of [`ValuesJson`].
struct TypedJson<'a> {
    column: &'a Column,
    value: &'a Value<'a>,
}

impl Serialize for TypedJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.value, self.column.ty.required()) {
            (Value::Bytes(bytes), _) => {
                let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                let digits = digits.map(|digit| char::from_digit(digit.into(), 16).unwrap_or_default());
                serializer.serialize_str(&digits.collect::<String>())
            }
            (Value::List(rows), ColumnType::List(schema)) => {
                serializer.collect_seq(rows.iter().map(|row| OwnedValuesJson { schema, row }))
            }
            (value, _) => ValueJson { column: self.column, value, in_list: false }.serialize(serializer),
        }
    }
}

struct OwnedValuesJson<'a> {
    schema: &'a Schema,
    row: &'a OwnedRow,
}

impl Serialize for OwnedValuesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.row.len()))?;
        for (column, value) in self.schema.0.iter().zip(self.row) {
            value.with(|value| seq.serialize_element(&TypedJson { column, value: &value }))?;
        }
        seq.end()
    }
}

/// A row that owns its values, as [`RowJson`] shows one.
pub fn owned_row_json(schema: &Schema, row: &OwnedRow) -> Result<serde_json::Value, serde_json::Error> {
    let mut json = Ok(serde_json::Value::Null);
    with_values(row, &mut |row| json = serde_json::to_value(RowJson { schema, row }));
    json
}

struct OwnedRowJson<'a> {
    schema: &'a Schema,
    row: &'a OwnedRow,
}

impl Serialize for OwnedRowJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = &self.schema.0;
        if let ([column], [value]) = (&columns[..], &self.row[..])
            && column.ty.tensor().is_none()
        {
            return value
                .with(|value| ValueJson { column, value: &value, in_list: true }.serialize(serializer));
        }
        let mut map = serializer.serialize_map(Some(columns.len()))?;
        for (column, value) in columns.iter().zip(self.row) {
            value.with(|value| {
                map.serialize_entry(&column.name, &ValueJson { column, value: &value, in_list: true })
            })?;
        }
        map.end()
    }
}

fn labels_json<S: Serializer>(labels: &[Label<'_>], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Class<'a> {
        label: &'a str,
        class: u32,
        score: JsonNumber,
    }
    let mut seq = serializer.serialize_seq(Some(labels.len()))?;
    for label in labels {
        let Label { label, class, score } = *label;
        seq.serialize_element(&Class { label, class, score: JsonNumber(Element::Float(score)) })?;
    }
    seq.end()
}

/// `{"dtype", "shape", "data": [nested lists]}`; a single number without dimensions, and what is `in_list`, without type and shape.
fn tensor_json<S: Serializer>(
    view: &TensorView<'_>,
    in_list: bool,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct TensorJson<'a> {
        dtype: DType,
        shape: &'a [usize],
        data: Nested<'a>,
    }
    let data = Nested { dtype: view.dtype, shape: view.shape, data: view.data };
    if in_list || view.shape.is_empty() {
        return data.serialize(serializer);
    }
    TensorJson { dtype: view.dtype, shape: view.shape, data }.serialize(serializer)
}

struct Nested<'a> {
    dtype: DType,
    shape: &'a [usize],
    data: &'a [u8],
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((&n, rest)) = self.shape.split_first() else {
            return JsonNumber(Element::read(self.dtype, self.data)).serialize(serializer);
        };
        let step = rest.iter().product::<usize>() * self.dtype.size_bytes();
        let mut seq = serializer.serialize_seq(Some(n))?;
        for i in 0..n {
            let data = self.data.get(i * step..(i + 1) * step).unwrap_or_default();
            seq.serialize_element(&Nested { dtype: self.dtype, shape: rest, data })?;
        }
        seq.end()
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::fixed_tensor;

    use super::*;

    #[test]
    fn a_tensor_becomes_nested_lists_of_its_shape_under_its_name() {
        let data: Vec<u8> = [1.0, 2.5, f32::NAN, -4.0].iter().flat_map(|v: &f32| v.to_ne_bytes()).collect();
        let view = TensorView { name: "y", dtype: DType::F32, shape: &[2, 1, 2], data: &data };
        let schema = Schema::of("y", ColumnType::Tensor(fixed_tensor("y", DType::F32, &[2, 1, 2])));
        let json = serde_json::to_string(&RowJson { schema: &schema, row: &[Value::Tensor(view)] }).unwrap();
        assert_eq!(json, r#"{"y":{"dtype":"f32","shape":[2,1,2],"data":[[[1.0,2.5]],[["NaN",-4.0]]]}}"#);
    }
}
