//! The columns of sources whose items have fields: their types, as written or as found in a first record, and the values of the item at hand.
//! Reads no file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use half::f16;
use orchestra_core::data::{Column, ColumnType, Refusal, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::Opens;
use orchestra_core::{DType, FailureKind};
use orchestra_plan::tree::{Node, Value as Toml};
use orchestra_plan::{Fields, SourceContext};
use serde_json::Value as Json;

use super::input::Opener;
use super::locator::file_of;
use super::objects::Protocol;
use super::picture::EncodedPicture;

/// No tensor of an item is larger, in bytes.
pub const LARGEST_TENSOR: usize = 1 << 30;

/// No text of an item is longer, in bytes: it travels in a message.
pub const LARGEST_TEXT: u64 = 16 << 20;

/// Refuses a file that claims more items than a source may have: nothing of it is listed then.
pub fn check_items(items: u64, max_items: u64) -> Result<u64, String> {
    if items <= max_items {
        return Ok(items);
    }
    Err(format!(
        "it claims {items} items, and at most `limits.max_items = {max_items}` are allowed; raise the limit if the file is genuine"
    ))
}

/// Columns that a source may have.
const MOST_COLUMNS: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FieldType {
    Text,
    /// A JSON value of any form, as text.
    Json,
    /// With the end of a file name that says what they are.
    Bytes(String),
    Picture,
    Tensor {
        dtype: DType,
        shape: Vec<usize>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Field {
    pub name: String,
    pub ty: FieldType,
}

impl FieldType {
    pub fn scalar(dtype: DType) -> Self {
        FieldType::Tensor { dtype, shape: Vec::new() }
    }

    /// `text`, `json`, `bytes`, `picture`, or an element type with a shape: `i64`, `f32[8]`, `u8[2, 3]`.
    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "text" => return Some(FieldType::Text),
            "json" => return Some(FieldType::Json),
            "bytes" => return Some(FieldType::Bytes("bin".into())),
            "picture" => return Some(FieldType::Picture),
            _ => {}
        }
        let (dtype, shape) = match text.trim().split_once('[') {
            Some((dtype, rest)) => (dtype.trim(), rest.strip_suffix(']')?),
            None => (text.trim(), ""),
        };
        let dtype = DType::ALL.into_iter().find(|known| known.name() == dtype)?;
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty() || shape.contains(','));
        let shape: Vec<usize> = sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?;
        is_bounded(&shape, dtype).then_some(FieldType::Tensor { dtype, shape })
    }

    /// That of the values of a field whose first one is this; `None` where it does not tell.
    pub fn of_json(first: &Json) -> Option<Self> {
        match first {
            Json::String(_) => Some(FieldType::Text),
            Json::Bool(_) => Some(FieldType::scalar(DType::Bool)),
            Json::Number(n) if n.is_i64() => Some(FieldType::scalar(DType::I64)),
            Json::Number(n) if n.is_u64() => None,
            Json::Number(_) => Some(FieldType::scalar(DType::F32)),
            Json::Array(_) => {
                let mut shape = Vec::new();
                let mut at = first;
                while let Json::Array(items) = at {
                    shape.push(items.len());
                    at = items.first()?;
                }
                let mut unused = Vec::new();
                let fits = at.is_number()
                    && is_bounded(&shape, DType::F32)
                    && nested(DType::F32, &shape, first, &mut unused).is_ok();
                fits.then_some(FieldType::Tensor { dtype: DType::F32, shape })
            }
            Json::Null | Json::Object(_) => None,
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldType::Text => f.write_str("text"),
            FieldType::Json => f.write_str("json"),
            FieldType::Bytes(_) => f.write_str("bytes"),
            FieldType::Picture => f.write_str("picture"),
            FieldType::Tensor { dtype, shape } if shape.is_empty() => dtype.fmt(f),
            FieldType::Tensor { dtype, shape } => write!(f, "{dtype}{shape:?}"),
        }
    }
}

/// Every side is there, and the tensor is not too large.
fn is_bounded(shape: &[usize], dtype: DType) -> bool {
    let bytes = shape.iter().try_fold(dtype.size_bytes(), |n, side| n.checked_mul(*side));
    bytes.is_some_and(|bytes| (1..=LARGEST_TENSOR).contains(&bytes))
}

/// A shape as a workflow file has it; `None` where it is none, or too large.
pub fn shape_of(node: &Node, dtype: DType) -> Option<Vec<usize>> {
    let Toml::Array(items) = &node.value else { return None };
    let side = |item: &Node| match item.value {
        Toml::Integer(n) => usize::try_from(n).ok(),
        _ => None,
    };
    let shape = items.iter().map(side).collect::<Option<Vec<_>>>()?;
    is_bounded(&shape, dtype).then_some(shape)
}

/// The key `columns` as a table of types, which `allowed` names for the message. `Ok(None)` where it is not there, `Err` after an error.
pub fn declared(fields: &mut Fields<'_, '_>, allowed: &[&str]) -> Result<Option<Vec<Field>>, ()> {
    let Some(entry) = fields.entry("columns") else { return Ok(None) };
    let Toml::Table(table) = &entry.node.value else {
        fields.wrong(
            "columns",
            &entry.node,
            "a table of types: columns = { caption = \"text\", age = \"i64\" }",
        );
        return Err(());
    };
    if table.entries.is_empty() || table.entries.len() > MOST_COLUMNS {
        fields.bad("columns", entry.node.span, &format!("must name 1 to {MOST_COLUMNS} columns"));
        return Err(());
    }
    let mut columns = Vec::new();
    for column in &table.entries {
        let ty = match &column.node.value {
            Toml::String(text) => FieldType::parse(text),
            _ => None,
        };
        let is_allowed = |ty: &FieldType| {
            matches!(ty, FieldType::Tensor { .. }) || allowed.contains(&ty.to_string().as_str())
        };
        let Some(ty) = ty.filter(is_allowed) else {
            let key = format!("columns.{}", column.key);
            let words = allowed.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
            fields
                .bad(&key, column.node.span, &format!("is no type: {}", column.node.found()))
                .help(format!("a type is {words}, or a tensor: \"f32\", \"i64\", \"u8[2, 3]\" and the like"));
            return Err(());
        };
        columns.push(Field { name: column.key.clone(), ty });
    }
    Ok(Some(columns))
}

/// The types of the fields of a first record; a field that does not tell its type is reported.
pub fn inferred(
    source: &mut SourceContext<'_, '_>,
    first: &str,
    record: &[(String, Json)],
) -> Option<Vec<Field>> {
    let span = source.fields.span;
    let what = source.fields.what.clone();
    if record.is_empty() || record.len() > MOST_COLUMNS {
        let message = format!("{what}: the first record of `{first}` has {} fields", record.len());
        source.fields.diags.error(span, message).help(format!("it must have 1 to {MOST_COLUMNS}"));
        return None;
    }
    let mut columns = Vec::new();
    for (name, value) in record {
        let Some(ty) = FieldType::of_json(value) else {
            let found = match value {
                Json::Null => "null",
                Json::Object(_) => "an object",
                Json::Array(_) => "a list that is no tensor of numbers",
                _ => "a number beyond i64",
            };
            let message = format!("{what}: the type of `{name}` is not known");
            source
                .fields
                .diags
                .error(span, message)
                .label(format!("it is {found} in the first record of `{first}`"))
                .help(format!(
                    "name the columns that you want with their types: columns = {{ {name} = \"text\" }}"
                ));
            return None;
        };
        columns.push(Field { name: name.clone(), ty });
    }
    Some(columns)
}

/// The columns that a source with these fields gives.
pub fn schema(fields: &[Field]) -> Schema {
    let column = |field: &Field| {
        let ty = match &field.ty {
            FieldType::Text | FieldType::Json => ColumnType::Text,
            FieldType::Bytes(end) => ColumnType::Bytes(end.clone()),
            FieldType::Picture => ColumnType::Picture,
            FieldType::Tensor { dtype, shape } => {
                ColumnType::Tensor(fixed_tensor(&field.name, *dtype, shape))
            }
        };
        Column { name: field.name.clone(), ty }
    };
    Schema(fields.iter().map(column).collect())
}

/// What decides about results, for the fingerprint.
pub fn settings(kind: &str, fields: &[Field]) -> Json {
    let columns: Vec<_> = fields.iter().map(|field| (&field.name, field.ty.to_string())).collect();
    serde_json::json!({ "kind": kind, "columns": columns })
}

/// The files that items with these fields are read from. A picture may be the path of another one.
pub fn opens(fields: &[Field], protocols: &[Protocol]) -> Opens {
    match fields.iter().any(|field| field.ty == FieldType::Picture) {
        _ if !protocols.is_empty() => Opens::Any,
        true => Opens::Beside(file_of),
        false => Opens::OfItems(file_of),
    }
}

/// The decoders of columns, where there are some.
pub fn decoders(fields: &[Field]) -> Option<&'static str> {
    fields.iter().any(|field| field.ty == FieldType::Picture).then_some(orchestra_media::DECODERS)
}

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
    Picture(Box<EncodedPicture>),
}

impl Row {
    pub fn new(fields: &[Field], max_pixels: u64) -> Self {
        let cell = |field: &Field| match field.ty {
            FieldType::Text | FieldType::Json => Cell::Text(String::new()),
            FieldType::Bytes(_) | FieldType::Tensor { .. } => Cell::Bytes(Vec::new()),
            FieldType::Picture => Cell::Picture(Box::new(EncodedPicture::new(max_pixels))),
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

/// A JSON value for a message: not all of a long one.
fn shown(value: &Json) -> String {
    match value {
        Json::Null => "null".into(),
        Json::Bool(_) | Json::Number(_) => value.to_string(),
        Json::String(text) => {
            let start: String = text.chars().take(60).collect();
            let more = if start.len() < text.len() { ".." } else { "" };
            format!("the text \"{}{more}\"", start.escape_debug())
        }
        Json::Array(items) => format!("a list of {}", items.len()),
        Json::Object(_) => "an object".into(),
    }
}

/// Appends the elements of a tensor that is nested lists of its shape.
fn nested(dtype: DType, shape: &[usize], value: &Json, data: &mut Vec<u8>) -> Result<(), String> {
    let Some((&side, rest)) = shape.split_first() else {
        let number = match value {
            Json::Bool(b) => Number::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(n), _) => Number::Int(n),
                (None, Some(n)) => Number::Float(n),
                (None, None) => return Err(format!("{n} is no number that can be held")),
            },
            _ => return Err(format!("found {} where a number is expected", shown(value))),
        };
        return number.append(dtype, data);
    };
    match value {
        Json::Array(items) if items.len() == side => {
            items.iter().try_for_each(|item| nested(dtype, rest, item, data))
        }
        _ => Err(format!("found {}, and a list of {side} is expected", shown(value))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl Number {
    /// Appends it as an element. A float is rounded to the nearest one of its type; nothing else is changed.
    ///
    /// # Errors
    /// The type cannot hold it.
    pub fn append(self, dtype: DType, data: &mut Vec<u8>) -> Result<(), String> {
        let beyond = || match self {
            Number::Int(n) => format!("{dtype} cannot hold {n}"),
            Number::Float(n) => format!("{dtype} cannot hold {n}"),
            Number::Bool(b) => format!("{b} is no {dtype}"),
        };
        let float = match self {
            Number::Int(n) => Ok(n as f64),
            Number::Float(n) => Ok(n),
            Number::Bool(_) => Err(beyond()),
        };
        let int = match self {
            Number::Int(n) => Ok(n),
            _ => Err(beyond()),
        };
        match dtype {
            DType::F32 => {
                let n = float?;
                let rounded = n as f32;
                if rounded.is_infinite() && n.is_finite() {
                    return Err(beyond());
                }
                data.extend_from_slice(&rounded.to_ne_bytes());
            }
            DType::F16 => {
                let n = float?;
                let rounded = f16::from_f64(n);
                if rounded.is_infinite() && n.is_finite() {
                    return Err(beyond());
                }
                data.extend_from_slice(&rounded.to_ne_bytes());
            }
            DType::I64 => data.extend_from_slice(&int?.to_ne_bytes()),
            DType::I32 => data.extend_from_slice(&i32::try_from(int?).map_err(|_| beyond())?.to_ne_bytes()),
            DType::U8 => data.push(u8::try_from(int?).map_err(|_| beyond())?),
            DType::Bool => match self {
                Number::Bool(b) => data.push(u8::from(b)),
                Number::Int(n @ 0..=1) => data.push(n as u8),
                _ => return Err(beyond()),
            },
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_as_it_is_shown_and_nothing_else_is() {
        for text in ["text", "json", "bytes", "picture", "f32", "i64[8]", "u8[2, 3]"] {
            assert_eq!(FieldType::parse(text).unwrap().to_string(), text);
        }
        let wrong = [
            "",
            "f64",
            "f32[",
            "f32[]x",
            "f32[0]",
            "f32[-1]",
            "f32[1,,2]",
            "f32[99999999999, 99999999999]",
            "u8[2000000000]",
        ];
        for text in wrong {
            assert_eq!(FieldType::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_is_rounded_or_refused_but_never_another_one() {
        let mut data = Vec::new();
        for (number, dtype) in [
            (Number::Int(256), DType::U8),
            (Number::Int(-1), DType::U8),
            (Number::Int(1 << 40), DType::I32),
            (Number::Float(1.5), DType::I64),
            (Number::Float(1e300), DType::F32),
            (Number::Float(1e6), DType::F16),
            (Number::Int(2), DType::Bool),
            (Number::Bool(true), DType::F32),
        ] {
            assert!(number.append(dtype, &mut data).is_err(), "{number:?} {dtype}");
        }
        assert!(data.is_empty());
        Number::Float(0.1).append(DType::F32, &mut data).unwrap();
        Number::Int(7).append(DType::F32, &mut data).unwrap();
        assert_eq!(data, [0.1_f32.to_ne_bytes(), 7_f32.to_ne_bytes()].concat());
    }

    #[test]
    fn a_first_value_tells_its_type_or_nothing() {
        let of =
            |text: &str| FieldType::of_json(&serde_json::from_str(text).unwrap()).map(|ty| ty.to_string());
        for (text, ty) in
            [("\"a\"", "text"), ("3", "i64"), ("3.0", "f32"), ("true", "bool"), ("[[1, 2.5]]", "f32[1, 2]")]
        {
            assert_eq!(of(text).as_deref(), Some(ty));
        }
        for text in ["null", "{}", "[]", "[\"a\"]", "[[1], [1, 2]]", "[1, \"a\"]", "18446744073709551615"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
