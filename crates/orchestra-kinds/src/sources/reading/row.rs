//! The values of the item at hand, one per field.

use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Refusal, TensorView, Value};
use orchestra_core::{FailureKind, LeftOut};
use serde_json::Value as Json;

use super::field_type::{Field, FieldType};
use super::input::Opener;
use super::number::{nested, shown};
use super::undecoded_picture::UndecodedPicture;

/// The values of the item at hand.
pub struct Row {
    fields: Arc<[Field]>,
    cells: Vec<Cell>,
}

/// The value of a field.
pub enum Cell {
    Text(String),
    /// Also the elements of a tensor, in native byte order.
    Bytes(Vec<u8>),
    Picture(Box<UndecodedPicture>),
}

impl Row {
    pub fn new(fields: &[Field], max_pixels: u64) -> Self {
        let cell = |field: &Field| match field.ty {
            FieldType::Text | FieldType::Json => Cell::Text(String::new()),
            FieldType::Bytes(_) | FieldType::Tensor { .. } => Cell::Bytes(Vec::new()),
            FieldType::Picture => Cell::Picture(Box::new(UndecodedPicture::new(max_pixels))),
        };
        Self { fields: fields.into(), cells: fields.iter().map(cell).collect() }
    }

    /// Each field with its value, to be written anew.
    pub fn cells(&mut self) -> impl Iterator<Item = (&Field, &mut Cell)> {
        self.fields.iter().zip(&mut self.cells)
    }

    pub fn show(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let values: Vec<_> =
            self.fields.iter().zip(&self.cells).map(|(field, cell)| value_of(field, cell)).collect();
        show(&values);
    }

    /// What the pictures among them hold beside what is decoded.
    pub fn left_out(&self) -> Vec<(LeftOut, u64)> {
        let pictures = self.cells.iter().filter_map(|cell| match cell {
            Cell::Picture(picture) => Some(picture),
            Cell::Text(_) | Cell::Bytes(_) => None,
        });
        pictures.filter_map(|picture| picture.left_out()).collect()
    }
}

/// The value of a field, borrowed.
fn value_of<'a>(field: &'a Field, cell: &'a Cell) -> Value<'a> {
    match (cell, &field.ty) {
        (Cell::Text(text), _) => Value::Text(text),
        (Cell::Picture(picture), _) => Value::Picture(&**picture),
        (Cell::Bytes(data), FieldType::Tensor { dtype, shape }) => {
            Value::Tensor(TensorView { name: &field.name, dtype: *dtype, shape, data })
        }
        (Cell::Bytes(bytes), _) => Value::Bytes(bytes),
    }
}

impl Cell {
    /// Takes a JSON value for a field of this type; the path of a picture is relative to the file of the item, `beside`. Gives the bytes that were read for it.
    ///
    /// # Errors
    /// The value is of another type, or its picture cannot be read. It names the field.
    pub fn take_json(
        &mut self,
        field: &Field,
        value: &Json,
        beside: &Path,
        opener: &Opener,
    ) -> Result<u64, Refusal> {
        let wrong = |expected: &str| {
            let error = format!("`{}` is {}, and {expected} is expected", field.name, shown(value));
            Err(Refusal { kind: FailureKind::Decode, error })
        };
        match (self, &field.ty) {
            (Cell::Text(text), FieldType::Json) => {
                *text = value.to_string();
                Ok(0)
            }
            (Cell::Text(text), _) => match value {
                Json::String(value) => {
                    text.clone_from(value);
                    Ok(0)
                }
                _ => wrong("text"),
            },
            (Cell::Picture(picture), _) => match value {
                Json::String(path) if !path.is_empty() && !path.contains('\0') => {
                    let bytes = picture.bytes_mut();
                    opener.read_picture(beside, path, bytes)?;
                    Ok(bytes.len() as u64)
                }
                _ => wrong("the path of a picture"),
            },
            (Cell::Bytes(data), FieldType::Tensor { dtype, shape }) => {
                data.clear();
                match nested(*dtype, shape, value, data) {
                    Ok(()) => Ok(0),
                    Err(why) => {
                        let error = format!("`{}` is no {}: {why}", field.name, field.ty);
                        Err(Refusal { kind: FailureKind::Decode, error })
                    }
                }
            }
            (Cell::Bytes(_), _) => wrong("a tensor"),
        }
    }
}
