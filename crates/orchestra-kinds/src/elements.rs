//! Elements of tensors as numbers: those that a stage computes with, and as sinks write them.

use orchestra_core::data::{ItemError, TensorView};
use orchestra_core::{DType, Element};
use serde::{Serialize, Serializer};

/// A number in JSON, which has none for NaN and the infinities: those are the texts that the source `jsonl` reads as such.
pub struct JsonNumber(pub Element);

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Element::Float(v) if v.is_finite() => serializer.serialize_f32(v),
            Element::Double(v) if v.is_finite() => serializer.serialize_f64(v),
            Element::Int(v) => serializer.serialize_i64(v),
            Element::Bool(v) => serializer.serialize_bool(v),
            Element::Float(_) | Element::Double(_) => serializer.serialize_str(match self.0.to_f64() {
                f64::INFINITY => "Infinity",
                f64::NEG_INFINITY => "-Infinity",
                _ => "NaN",
            }),
        }
    }
}

/// A number in CSV: `nan`, `inf` and `-inf` for what is no number. Large floats have an exponent: digits alone are an integer to who reads them, and
/// many of those would be rounded.
pub fn csv_number(element: Element) -> String {
    let number = element.to_f64();
    let is_large = number.is_finite() && number.abs() >= 2_f64.powi(53);
    match element {
        Element::Float(_) | Element::Double(_) if number.is_nan() => "nan".to_owned(),
        Element::Float(v) if is_large => format!("{v:e}"),
        Element::Double(v) if is_large => format!("{v:e}"),
        Element::Float(v) => v.to_string(),
        Element::Double(v) => v.to_string(),
        Element::Int(v) => v.to_string(),
        Element::Bool(v) => v.to_string(),
    }
}

/// An element type whose numbers are compared as they are.
pub trait Number: Copy + PartialOrd {
    const LEAST: Self;
    /// The nearest `f32`.
    fn to_f32(self) -> f32;
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

macro_rules! numbers {
    ($($of:ty: $least:expr;)*) => {
        $(impl Number for $of {
            const LEAST: Self = $least;

            fn to_f32(self) -> f32 {
                self as f32
            }
        })*
    };
}

numbers! {
    f32: f32::NEG_INFINITY;
    f64: f64::NEG_INFINITY;
    i64: i64::MIN;
    i32: i32::MIN;
    i16: i16::MIN;
    u8: u8::MIN;
}

/// Runs an expression with a function that reads an element of this type from its bytes, as the type that it is compared as: a half as `f32`.
macro_rules! with_number {
    ($dtype:expr, $read:ident => $run:expr) => {
        match $dtype {
            DType::F32 => with_number!(4, f32::from_ne_bytes, $read => $run),
            DType::F16 => with_number!(2, |bytes| half::f16::from_ne_bytes(bytes).to_f32(), $read => $run),
            DType::F64 => with_number!(8, f64::from_ne_bytes, $read => $run),
            DType::I64 => with_number!(8, i64::from_ne_bytes, $read => $run),
            DType::I32 => with_number!(4, i32::from_ne_bytes, $read => $run),
            DType::I16 => with_number!(2, i16::from_ne_bytes, $read => $run),
            DType::U8 | DType::Bool => with_number!(1, u8::from_ne_bytes, $read => $run),
        }
    };
    ($size:literal, $of:expr, $read:ident => $run:expr) => {{
        let $read = |bytes: &[u8; $size]| ($of)(*bytes);
        $run
    }};
}
pub(crate) use with_number;

/// That of a stage that computes with a tensor, and finds NaN in it.
pub fn no_number(name: &str, place: usize) -> ItemError {
    ItemError::result(format!("`{name}` holds no number at place {place}: it is NaN"))
}

/// That of a stage whose results are `f32`, and which would make an infinity of a number.
pub fn too_large(name: &str, number: f64, place: usize) -> ItemError {
    ItemError::result(format!("`{name}` holds {number} at place {place}, which is too large for f32"))
}

/// All elements as `f32`, in order: how stages read numbers whose results are `f32`.
///
/// # Errors
/// One of them is NaN, or a number that is too large for `f32`.
pub fn read_numbers(tensor: &TensorView<'_>, values: &mut Vec<f32>) -> Result<(), ItemError> {
    values.clear();
    match tensor.dtype {
        // By far the most common, and worth its own loop.
        DType::F32 => values.extend(tensor.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes))),
        dtype => {
            for (place, bytes) in tensor.data.chunks_exact(dtype.size_bytes()).enumerate() {
                let number = Element::read(dtype, bytes).to_f64();
                let rounded = number as f32;
                if rounded.is_infinite() && number.is_finite() {
                    return Err(too_large(tensor.name, number, place));
                }
                values.push(rounded);
            }
        }
    }
    match values.iter().position(|value| value.is_nan()) {
        None => Ok(()),
        Some(place) => Err(no_number(tensor.name, place)),
    }
}
