//! The values of the item at hand, one per field.

use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{ItemError, TensorView, Value};
use orchestra_core::{DType, FailureKind, LeftOut};
use orchestra_plan::toml_key;
use serde_json::value::RawValue;

use super::fetch::ShownItem;
use super::field_type::{Field, FieldType};
use super::input::Opener;
use super::number::{NoNumber, append, no_number, shown, tensor};
use super::undecoded_picture::UndecodedPicture;

/// The values of the item at hand.
pub struct FieldRow {
    fields: Arc<[Field]>,
    cells: Vec<FieldBuffer>,
    /// Whether the item lacks the value of a field.
    is_missing: Vec<bool>,
}

pub enum FieldBuffer {
    Text(String),
    /// Also the elements of a tensor, in native byte order.
    Bytes(Vec<u8>),
    Picture(Box<UndecodedPicture>),
}

impl FieldRow {
    pub fn new(fields: &[Field], max_pixels: u64) -> Self {
        let cell = |field: &Field| match field.ty {
            FieldType::Text | FieldType::Texts(_) | FieldType::Json => FieldBuffer::Text(String::new()),
            FieldType::Bytes(_) | FieldType::Tensor { .. } => FieldBuffer::Bytes(Vec::new()),
            FieldType::Picture => FieldBuffer::Picture(Box::new(UndecodedPicture::new(max_pixels))),
        };
        let (cells, is_missing) = (fields.iter().map(cell).collect(), vec![false; fields.len()]);
        Self { fields: fields.into(), cells, is_missing }
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Has `take` write the value of each field anew. It says whether the item lacks that value, which an optional field alone may be.
    pub fn fill(
        &mut self,
        mut take: impl FnMut(usize, &Field, &mut FieldBuffer) -> Result<Taken, ItemError>,
    ) -> Result<u64, ItemError> {
        let mut read = 0;
        for (at, (field, cell)) in self.fields.iter().zip(&mut self.cells).enumerate() {
            let taken = take(at, field, cell)
                .map_err(|item_error| with_other_columns(item_error, &self.fields, at))?;
            self.is_missing[at] = taken == Taken::Missing;
            match taken {
                Taken::Bytes(bytes) => read += bytes,
                Taken::Missing if field.optional => {}
                Taken::Missing => {
                    let Field { name, ty, .. } = field;
                    let help = match ty {
                        FieldType::Text | FieldType::Tensor { .. } => {
                            format!(
                                "; write {} to have rows without it",
                                columns(&self.fields, at, &ty.to_string(), "?")
                            )
                        }
                        _ => String::new(),
                    };
                    let error = format!("`{name}` is missing, and {ty} is expected{help}");
                    return Err(ItemError { kind: FailureKind::Decode, error });
                }
            }
        }
        Ok(read)
    }
}

impl ShownItem for FieldRow {
    fn show(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let cells = self.fields.iter().zip(&self.cells).zip(&self.is_missing);
        let values: Vec<_> = cells
            .map(|((field, cell), is_missing)| match is_missing {
                true => Value::Missing(&field.name),
                false => value_of(field, cell),
            })
            .collect();
        show(&values);
    }

    /// What its pictures hold beside what is decoded.
    fn left_out(&self) -> Vec<(LeftOut, u64)> {
        let pictures = self.cells.iter().filter_map(|cell| match cell {
            FieldBuffer::Picture(picture) => Some(picture),
            FieldBuffer::Text(_) | FieldBuffer::Bytes(_) => None,
        });
        pictures.filter_map(|picture| picture.left_out()).collect()
    }
}

fn value_of<'a>(field: &'a Field, cell: &'a FieldBuffer) -> Value<'a> {
    match (cell, &field.ty) {
        (FieldBuffer::Text(text), _) => Value::Text(text),
        (FieldBuffer::Picture(picture), _) => Value::Picture(&**picture),
        (FieldBuffer::Bytes(data), FieldType::Tensor { dtype, shape }) => {
            Value::Tensor(TensorView { name: &field.name, dtype: *dtype, shape, data })
        }
        (FieldBuffer::Bytes(bytes), _) => Value::Bytes(bytes),
    }
}

/// What a value was taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// So many bytes were read for it beside the record of the item.
    Bytes(u64),
    Missing,
}

impl FieldBuffer {
    /// Takes a JSON value for a field of this type; the path of a picture is relative to the file of the item, `beside`.
    ///
    /// # Errors
    /// The value is of another type, or its picture cannot be read. It names the field.
    pub fn take_json(
        &mut self,
        field: &Field,
        value: &RawValue,
        beside: &Path,
        opener: &Opener,
    ) -> Result<Taken, ItemError> {
        let text = value.get();
        match (self, &field.ty, text.as_bytes()) {
            (FieldBuffer::Text(cell), FieldType::Json, _) => text.clone_into(cell),
            (_, _, b"null") => return Ok(Taken::Missing),
            // A number as it is written, so that none is too long.
            (FieldBuffer::Text(cell), FieldType::Text, [b'-' | b'0'..=b'9', ..]) => text.clone_into(cell),
            (cell @ (FieldBuffer::Text(_) | FieldBuffer::Picture(_)), _, _) => {
                match serde_json::from_str::<String>(text) {
                    Ok(text) => return cell.take_text(field, &text, beside, opener),
                    Err(_) => return Err(wrong(field, format!("is {}", shown(value)))),
                }
            }
            (FieldBuffer::Bytes(data), FieldType::Tensor { dtype, shape }, _) => {
                data.clear();
                let kept_as = if shape.is_empty() { "text" } else { "json" };
                tensor(*dtype, shape, value, data).map_err(|why| no_tensor(field, why, kept_as))?;
            }
            (FieldBuffer::Bytes(_), _, _) => return Err(wrong(field, format!("is {}", shown(value)))),
        }
        Ok(Taken::Bytes(0))
    }

    /// Takes a text, such as a field of CSV.
    pub fn take_text(
        &mut self,
        field: &Field,
        text: &str,
        beside: &Path,
        opener: &Opener,
    ) -> Result<Taken, ItemError> {
        match (self, &field.ty) {
            (FieldBuffer::Text(cell), _) => text.clone_into(cell),
            (FieldBuffer::Picture(picture), _) if !text.is_empty() && !text.contains('\0') => {
                let bytes = picture.bytes_mut();
                opener.read_picture(beside, text, bytes)?;
                return Ok(Taken::Bytes(bytes.len() as u64));
            }
            (FieldBuffer::Bytes(data), FieldType::Tensor { dtype, shape }) => {
                data.clear();
                let text = match (dtype, text.trim()) {
                    (_, "") => return Ok(Taken::Missing),
                    (DType::Bool, "True" | "TRUE") => "true",
                    (DType::Bool, "False" | "FALSE") => "false",
                    (_, text) => text,
                };
                let appended = match serde_json::from_str::<&RawValue>(text) {
                    Ok(value) => tensor(*dtype, shape, value, data),
                    Err(_) if shape.iter().all(|side| *side == 1) && no_number(text).is_some() => {
                        append(*dtype, text, data)
                    }
                    Err(_) => {
                        Err(format!("found the text {:?}", text.chars().take(60).collect::<String>()).into())
                    }
                };
                appended.map_err(|why| no_tensor(field, why, "text"))?;
            }
            _ => return Err(wrong(field, format!("is {:?}", text.chars().take(60).collect::<String>()))),
        }
        Ok(Taken::Bytes(0))
    }
}

fn wrong(field: &Field, found: String) -> ItemError {
    let expected = match field.ty {
        FieldType::Picture => "the path of a picture",
        FieldType::Text | FieldType::Texts(_) | FieldType::Json => "text",
        FieldType::Bytes(_) | FieldType::Tensor { .. } => "a tensor",
    };
    ItemError {
        kind: FailureKind::Decode,
        error: format!("`{}` {found}, and {expected} is expected", field.name),
    }
}

/// `columns` with all columns, since it leaves out what it does not name: the one at `place` with this type.
fn columns(fields: &[Field], place: usize, ty: &str, optional: &str) -> String {
    /// So many can be read in a message.
    const MOST: usize = 20;
    let of = |(at, field): (usize, &Field)| match (at == place, field.optional) {
        (true, _) => format!("{} = \"{ty}{optional}\"", toml_key(&field.name)),
        (false, true) => format!("{} = \"{}?\"", toml_key(&field.name), field.ty),
        (false, false) => format!("{} = \"{}\"", toml_key(&field.name), field.ty),
    };
    if fields.len() > MOST {
        return format!(
            "columns = {{ {}, .. }}, with all other columns and their types,",
            of((place, &fields[place]))
        );
    }
    format!("columns = {{ {} }}", fields.iter().enumerate().map(of).collect::<Vec<_>>().join(", "))
}

/// A help that gives the column at `place` another type, with the other columns.
fn with_other_columns(item_error: ItemError, fields: &[Field], place: usize) -> ItemError {
    let own = format!("columns = {{ {} = \"", toml_key(&fields[place].name));
    let parts =
        item_error.error.split_once(&own).and_then(|(before, rest)| Some((before, rest.split_once("\" }")?)));
    let Some((before, (ty, after))) = parts else { return item_error };
    let optional = if fields[place].optional && ty != "json" { "?" } else { "" };
    ItemError { error: format!("{before}{}{after}", columns(fields, place, ty, optional)), ..item_error }
}

/// `kept_as` is the type of a column that keeps any number.
fn no_tensor(field: &Field, why: NoNumber, kept_as: &str) -> ItemError {
    let Field { name, ty, .. } = field;
    let help = match why.would_round {
        true => {
            format!("; write columns = {{ {} = \"{kept_as}\" }} to keep it as it is written", toml_key(name))
        }
        false => String::new(),
    };
    ItemError { kind: FailureKind::Decode, error: format!("`{name}` is no {ty}: {}{help}", why.why) }
}
