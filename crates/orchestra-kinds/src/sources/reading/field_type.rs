//! The type of a field of an item: as written, or as found in a first value. Holds no value.

use std::fmt;

use bincode::{Decode, Encode};
use orchestra_core::{DType, MAX_RANK, TextInput};
use orchestra_plan::tree::{Toml, TomlNode};
use orchestra_plan::{Fields, Json, Setting};
use serde_json::value::RawValue;

use super::limits::LARGEST_TENSOR;
use super::number::{append, nested};

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FieldType {
    Text,
    /// A JSON value of any form, as text.
    Json,
    /// With the end of a file name that says what they are.
    Bytes(String),
    Picture,
    /// So many texts.
    Texts(usize),
    Tensor {
        dtype: DType,
        shape: Vec<usize>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Field {
    pub name: String,
    pub ty: FieldType,
    /// An item may lack it: its value is missing then.
    pub optional: bool,
}

impl Field {
    /// One that every item has.
    pub fn new(name: impl Into<String>, ty: FieldType) -> Self {
        Self { name: name.into(), ty, optional: false }
    }
}

impl FieldType {
    pub fn scalar(dtype: DType) -> Self {
        FieldType::Tensor { dtype, shape: Vec::new() }
    }

    /// `text`, `text[2]`, `json`, `bytes`, `picture`, or an element type with a shape: `i64`, `f32[8]`, `u8[2, 3]`.
    pub fn parse(text: &str) -> Option<Self> {
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
        if dtype == "text" {
            let n = shape.trim().parse().ok()?;
            return (1..=TextInput::MAX_TEXTS).contains(&n).then_some(FieldType::Texts(n));
        }
        let dtype = DType::ALL.into_iter().find(|known| known.name() == dtype)?;
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty() || shape.contains(','));
        let shape: Vec<usize> = sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?;
        is_bounded(&shape, dtype).then_some(FieldType::Tensor { dtype, shape })
    }

    /// Whether items may lack a value of it.
    pub fn may_be_missing(&self) -> bool {
        matches!(self, FieldType::Text | FieldType::Tensor { .. })
    }

    /// That of the values of a field whose first one is this; `None` where it does not tell. Numbers are f64, whether the first is whole or not.
    pub fn of_json(first: &RawValue) -> Option<Self> {
        let text = first.get();
        match text.as_bytes().first()? {
            b'"' => Some(FieldType::Text),
            b't' | b'f' => Some(FieldType::scalar(DType::Bool)),
            b'n' | b'{' => None,
            b'[' => {
                let mut shape = Vec::new();
                let mut at = first;
                while let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(at.get()) {
                    if shape.len() == MAX_RANK {
                        return None;
                    }
                    shape.push(items.len());
                    at = items.first()?;
                }
                let fits = is_bounded(&shape, DType::F64)
                    && nested(DType::F64, &shape, first, &mut Vec::new()).is_ok();
                fits.then_some(FieldType::Tensor { dtype: DType::F64, shape })
            }
            _ => append(DType::F64, text, &mut Vec::new()).is_ok().then_some(FieldType::scalar(DType::F64)),
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
            FieldType::Texts(n) => write!(f, "text[{n}]"),
            FieldType::Tensor { dtype, shape } if shape.is_empty() => dtype.fmt(f),
            FieldType::Tensor { dtype, shape } => write!(f, "{dtype}{shape:?}"),
        }
    }
}

impl fmt::Display for Field {
    /// Its type, as it is written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.ty, if self.optional { "?" } else { "" })
    }
}

/// Every side is there, and neither they nor the tensor are too many or too large.
pub fn is_bounded(shape: &[usize], dtype: DType) -> bool {
    if shape.len() > MAX_RANK {
        return false;
    }
    let bytes = shape.iter().try_fold(dtype.size_bytes(), |n, side| n.checked_mul(*side));
    bytes.is_some_and(|bytes| (1..=LARGEST_TENSOR).contains(&bytes))
}

/// A shape as a workflow file has it.
pub struct ShapeSetting(pub Vec<usize>);

impl Setting for ShapeSetting {
    const TYPE: &'static str = "list of integers";

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let node = &fields.entry(key)?.node;
        let side = |item: &TomlNode| match item.value {
            Toml::Integer(n) => usize::try_from(n).ok(),
            _ => None,
        };
        let shape = match &node.value {
            Toml::Array(items) => items.iter().map(side).collect(),
            _ => None,
        };
        if shape.is_none() {
            fields.wrong(key, node, "a list of sizes");
        }
        shape.map(Self)
    }

    fn json(&self) -> Json {
        self.0.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_as_it_is_shown_and_nothing_else_is() {
        for text in ["text", "text[2]", "json", "bytes", "picture", "f32", "f64", "i16", "i64[8]", "u8[2, 3]"]
        {
            assert_eq!(FieldType::parse(text).unwrap().to_string(), text);
        }
        let wrong = [
            "",
            "f128",
            "text[]",
            "text[0]",
            "text[2, 2]",
            "text[4097]",
            "f32[",
            "f32[]x",
            "f32[0]",
            "f32[-1]",
            "f32[1,,2]",
            "f32[99999999999, 99999999999]",
            "u8[2000000000]",
        ];
        let ones = |n: usize| format!("f32[{}]", vec!["1"; n].join(","));
        for text in wrong.map(str::to_owned).into_iter().chain([ones(MAX_RANK + 1), ones(20_001)]) {
            assert_eq!(FieldType::parse(&text), None, "{text}");
        }
        assert!(FieldType::parse(&ones(MAX_RANK)).is_some());
    }

    #[test]
    fn a_first_value_tells_its_type_or_nothing() {
        let of =
            |text: &str| FieldType::of_json(serde_json::from_str(text).unwrap()).map(|ty| ty.to_string());
        for (text, ty) in
            [("\"a\"", "text"), ("3", "f64"), ("3.0", "f64"), ("true", "bool"), ("[[1, 2.5]]", "f64[1, 2]")]
        {
            assert_eq!(of(text).as_deref(), Some(ty));
        }
        let lists = |n: usize| ["[".repeat(n), "]".repeat(n)].join("1");
        assert!(
            of(&lists(MAX_RANK)).is_some()
                && of(&lists(MAX_RANK + 1)).is_none()
                && of(&lists(20_001)).is_none()
        );
        for text in ["null", "{}", "[]", "[\"a\"]", "[[1], [1, 2]]", "[1, \"a\"]", "18446744073709551615"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
