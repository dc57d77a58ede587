//! A row in bytes: what a reduce keeps of it on disk, and what goes back to those who asked. Tensors and texts are read where they lie.

use std::borrow::Cow;
use std::sync::Arc;

use bincode::{BorrowDecode, Encode};

use crate::data::{ItemError, Label, OwnedRow, OwnedValue, TensorView, Value};
use crate::tensor::DType;
use crate::wire;

#[derive(Debug, Clone, PartialEq, Encode, BorrowDecode)]
pub enum StoredValue<'a> {
    Tensor {
        name: Cow<'a, str>,
        dtype: DType,
        /// Without the batch dimension.
        shape: Vec<usize>,
        /// Elements in native byte order, row-major.
        data: Cow<'a, [u8]>,
    },
    /// Label, class and score.
    Labels(Vec<(Cow<'a, str>, u32, f32)>),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    List(Vec<Vec<StoredValue<'a>>>),
    /// With the name of its column.
    Missing(Cow<'a, str>),
}

impl<'a> StoredValue<'a> {
    /// # Errors
    /// The value cannot be made, or is a picture.
    pub fn of(value: &Value<'a>) -> Result<Self, ItemError> {
        Ok(match value {
            Value::Tensor(TensorView { name, dtype, shape, data }) => Self::Tensor {
                name: Cow::Borrowed(name),
                dtype: *dtype,
                shape: shape.to_vec(),
                data: Cow::Borrowed(data),
            },
            Value::Unwritten(_) => value.with_tensor(|view| {
                let (name, data) = (Cow::Owned(view.name.to_owned()), Cow::Owned(view.data.to_vec()));
                Ok(Self::Tensor { name, dtype: view.dtype, shape: view.shape.to_vec(), data })
            })?,
            Value::Picture(_) => return Err(picture()),
            Value::Labels(labels) => {
                let label = |of: &Label<'a>| (Cow::Borrowed(of.label), of.class, of.score);
                Self::Labels(labels.iter().map(label).collect())
            }
            Value::Text(text) => Self::Text(Cow::Borrowed(text)),
            Value::Bytes(bytes) => Self::Bytes(Cow::Borrowed(bytes)),
            Value::List(rows) => Self::of_list(rows)?,
            Value::Missing(name) => Self::Missing(Cow::Borrowed(name)),
        })
    }

    /// # Errors
    /// The value is a picture, or holds one.
    pub fn of_owned(value: &'a OwnedValue) -> Result<Self, ItemError> {
        Ok(match value {
            OwnedValue::Picture(_) => return Err(picture()),
            OwnedValue::Labels(labels) => {
                let label = |(label, class, score): &'a (Arc<str>, u32, f32)| {
                    (Cow::Borrowed(&**label), *class, *score)
                };
                Self::Labels(labels.iter().map(label).collect())
            }
            OwnedValue::List(rows) => Self::of_list(rows)?,
            value => Self::of(&value.borrowed(&[]))?,
        })
    }

    fn of_list(rows: &'a [OwnedRow]) -> Result<Self, ItemError> {
        let row = |row: &'a OwnedRow| row.iter().map(Self::of_owned).collect();
        Ok(Self::List(rows.iter().map(row).collect::<Result<_, _>>()?))
    }

    pub fn into_value(self) -> OwnedValue {
        match self {
            Self::Tensor { name, dtype, shape, data } => {
                OwnedValue::Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
            }
            Self::Labels(labels) => {
                let label = |(label, class, score): (Cow<'_, str>, u32, f32)| (label.into(), class, score);
                OwnedValue::Labels(labels.into_iter().map(label).collect())
            }
            Self::Text(text) => OwnedValue::Text(text.into()),
            Self::Bytes(bytes) => OwnedValue::Bytes(bytes.into()),
            Self::Missing(name) => OwnedValue::Missing(name.into()),
            Self::List(rows) => {
                let row = |row: Vec<Self>| row.into_iter().map(Self::into_value).collect();
                OwnedValue::List(rows.into_iter().map(row).collect())
            }
        }
    }
}

fn picture() -> ItemError {
    ItemError::result("internal error: a picture cannot be kept; this is a bug")
}

/// Appends a value in the form that [`read`] takes.
pub fn write(value: &impl Encode, out: &mut Vec<u8>) -> Result<(), ItemError> {
    wire::encode_into(value, out)
        .map_err(|error| ItemError::result(format!("what is kept of it cannot be written: {error}")))
}

/// The value at the beginning of what [`write`] wrote, and how many bytes it has.
pub fn read<'a, T: BorrowDecode<'a, ()>>(bytes: &'a [u8]) -> Result<(T, usize), ItemError> {
    wire::decode_first(bytes)
        .map_err(|error| ItemError::result(format!("what was kept of the rows is damaged: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_as_it_was_and_half_of_one_is_none() {
        let numbers = [1.5_f32, -2.0].map(f32::to_ne_bytes).concat();
        let shape = [2, 1];
        let tensor = TensorView { name: "x", dtype: DType::F32, shape: &shape, data: &numbers };
        let label = Label { label: "cat", class: 3, score: 0.5 };
        let part = vec![
            OwnedValue::Labels([("dog".into(), 1, 0.25)].into()),
            OwnedValue::Text("in a list".into()),
            OwnedValue::List([vec![OwnedValue::Missing("y".into())]].into()),
        ];
        let row = [
            Value::Tensor(tensor),
            Value::Labels(&[label]),
            Value::Text("text"),
            Value::Bytes(b"\xff\0"),
            Value::List(&[part]),
            Value::Missing("z"),
        ];
        let stored: Vec<StoredValue<'_>> = row.iter().map(|value| StoredValue::of(value).unwrap()).collect();
        let mut bytes = Vec::new();
        write(&stored, &mut bytes).unwrap();
        let (read_again, len): (Vec<StoredValue<'_>>, usize) = read(&bytes).unwrap();
        assert_eq!((&read_again, len), (&stored, bytes.len()));
        let StoredValue::Tensor { data: Cow::Borrowed(data), .. } = &read_again[0] else {
            panic!("it is read where it lies")
        };
        assert!(bytes.as_ptr_range().contains(&data.as_ptr()));
        let owned: OwnedRow = read_again.iter().cloned().map(StoredValue::into_value).collect();
        let again: Vec<StoredValue<'_>> =
            owned.iter().map(|value| StoredValue::of_owned(value).unwrap()).collect();
        assert_eq!(again, stored);
        for len in 0..bytes.len() {
            assert!(read::<Vec<StoredValue<'_>>>(&bytes[..len]).is_err(), "{len}");
        }
    }
}
