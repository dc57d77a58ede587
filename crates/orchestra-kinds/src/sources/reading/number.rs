//! Numbers of JSON, CSV and Parquet as elements of tensors. None is changed but to the nearest float.

use orchestra_core::{DType, Element};
use serde_json::value::RawValue;

/// Why a text is no value of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoNumber {
    pub why: String,
    /// It is an integer that the type would hold as another one.
    pub would_round: bool,
}

impl From<String> for NoNumber {
    fn from(why: String) -> Self {
        Self { why, would_round: false }
    }
}

/// What stands for NaN and the infinities in CSV, and in quotes in JSON.
pub fn no_number(text: &str) -> Option<f64> {
    match text {
        "nan" | "NaN" => Some(f64::NAN),
        "inf" | "Infinity" => Some(f64::INFINITY),
        "-inf" | "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// A JSON value for a message: not all of a long one.
pub fn shown(value: &RawValue) -> String {
    let text = value.get();
    let start: String = text.chars().take(60).collect();
    let more = if start.len() < text.len() { ".." } else { "" };
    match text.as_bytes().first() {
        Some(b'"') => format!("the text {start}{more}"),
        Some(b'[') => "a list".into(),
        Some(b'{') => "an object".into(),
        _ => format!("{start}{more}"),
    }
}

/// Appends the number, `true` or `false` that a text of JSON is, or NaN or an infinity without quotes.
pub fn append(dtype: DType, text: &str, data: &mut Vec<u8>) -> Result<(), NoNumber> {
    let element = match (text, no_number(text)) {
        ("true", _) => Element::Bool(true),
        ("false", _) => Element::Bool(false),
        (_, Some(special)) => Element::Double(special),
        // An integer of 64 bits is exact; zero below zero is none.
        _ => match whole(dtype, text)?.parse::<i64>().ok().filter(|_| !text.starts_with("-0")) {
            Some(n) => Element::Int(n),
            None => {
                let number: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
                if number.is_infinite() {
                    return Err(format!("no type holds {text}").into());
                }
                // Digits alone are an integer, which is held as it is or not at all.
                let text = whole(dtype, text)?;
                let is_integer = !text.contains(['.', 'e', 'E']);
                if is_integer && number != 0.0 && format!("{number:.0}") != text {
                    return Err(NoNumber { why: format!("{dtype} would round {text}"), would_round: true });
                }
                Element::Double(number)
            }
        },
    };
    let appended = element.append(dtype, data);
    appended.map_err(|why| NoNumber { why: why.to_string(), would_round: why.would_round })
}

/// The text without a fraction of zeros.
fn whole(dtype: DType, text: &str) -> Result<&str, NoNumber> {
    let is_integer = matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::U8);
    match text.split_once('.') {
        // Before the nearest float may have lost its fraction.
        Some((_, fraction))
            if is_integer
                && fraction.bytes().any(|digit| digit.is_ascii_digit() && digit != b'0')
                && !fraction.contains(['e', 'E']) =>
        {
            Err(format!("{dtype} cannot hold {text}").into())
        }
        Some((whole, fraction)) if fraction.bytes().all(|digit| digit == b'0') => Ok(whole),
        _ => Ok(text),
    }
}

/// Appends the elements of a tensor: nested lists of its shape, or the one number of a shape like `[1]`.
pub fn tensor(dtype: DType, shape: &[usize], value: &RawValue, data: &mut Vec<u8>) -> Result<(), NoNumber> {
    let is_number = !value.get().starts_with('[') && shape.iter().all(|side| *side == 1);
    nested(dtype, if is_number { &[] } else { shape }, value, data)
}

/// Appends the elements of a tensor that is nested lists of its shape.
pub fn nested(dtype: DType, shape: &[usize], value: &RawValue, data: &mut Vec<u8>) -> Result<(), NoNumber> {
    let text = value.get();
    let Some((&side, rest)) = shape.split_first() else {
        return match text.as_bytes() {
            [b'"', inner @ .., b'"'] => match std::str::from_utf8(inner) {
                Ok(inner) if no_number(inner).is_some() => append(dtype, inner, data),
                _ => Err(format!("found {} where a number is expected", shown(value)).into()),
            },
            [b'[' | b'{' | b'n', ..] => {
                Err(format!("found {} where a number is expected", shown(value)).into())
            }
            _ => append(dtype, text, data),
        };
    };
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Ok(items) if items.len() == side => {
            items.into_iter().try_for_each(|item| nested(dtype, rest, item, data))
        }
        Ok(items) => Err(format!("found a list of {}, and one of {side} is expected", items.len()).into()),
        Err(_) => Err(format!("found {}, and a list of {side} is expected", shown(value)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dtype: DType, text: &str) -> Result<Element, NoNumber> {
        let mut data = Vec::new();
        append(dtype, text, &mut data).map(|()| Element::read(dtype, &data))
    }

    #[test]
    fn a_number_is_rounded_or_refused_but_never_another_one() {
        for (text, dtype) in [
            ("256", DType::U8),
            ("-1", DType::U8),
            ("32768", DType::I16),
            ("1099511627776", DType::I32),
            ("9223372036854775808", DType::I64),
            ("9007199254740993e0", DType::I64),
            ("4503599627370497.25", DType::I64),
            ("1.00000000000000000001", DType::U8),
            ("1.5", DType::I64),
            ("NaN", DType::I64),
            ("1e300", DType::F32),
            ("1e400", DType::F64),
            ("1e6", DType::F16),
            ("2", DType::Bool),
            ("true", DType::F32),
        ] {
            assert!(read(dtype, text).is_err_and(|error| !error.would_round), "{text} {dtype}");
        }
        for (text, dtype) in [
            ("9007199254740993", DType::F64),
            ("9007199254740993.0", DType::F64),
            ("36893488147419103233.00", DType::F32),
            ("-9007199254740993", DType::F32),
            ("18446744073709551615", DType::F64),
            ("123456789012345678901", DType::F64),
        ] {
            assert!(read(dtype, text).is_err_and(|error| error.would_round), "{text} {dtype}");
        }
        for (text, dtype, expected) in [
            ("0.1", DType::F32, Element::Float(0.1)),
            ("7", DType::F32, Element::Float(7.0)),
            ("3.0", DType::I16, Element::Int(3)),
            ("9007199254740993.0", DType::I64, Element::Int(9_007_199_254_740_993)),
            ("1e2", DType::U8, Element::Int(100)),
            ("-9223372036854775808", DType::I64, Element::Int(i64::MIN)),
            ("-9223372036854775808", DType::F64, Element::Double(-9_223_372_036_854_775_808.0)),
            ("18446744073709551616", DType::F64, Element::Double(18_446_744_073_709_551_616.0)),
            ("1700000123.25", DType::F64, Element::Double(1_700_000_123.25)),
            ("5e-324", DType::F64, Element::Double(5e-324)),
            ("-inf", DType::F16, Element::Float(f32::NEG_INFINITY)),
            ("1", DType::Bool, Element::Bool(true)),
        ] {
            assert_eq!(read(dtype, text), Ok(expected), "{text} {dtype}");
        }
        let zero = read(DType::F64, "-0").unwrap();
        assert!(zero.to_f64().is_sign_negative());
    }
    #[test]
    fn a_number_alone_is_a_tensor_of_one_and_of_no_more() {
        let read = |shape: &[usize], text: &str| {
            let mut data = Vec::new();
            tensor(DType::F32, shape, serde_json::from_str(text).unwrap(), &mut data).map(|()| data)
        };
        let two = Ok(2.5_f32.to_ne_bytes().to_vec());
        assert!(read(&[1], "2.5") == two && read(&[1, 1], "2.5") == two && read(&[1, 1], "[[2.5]]") == two);
        for (shape, text) in [(&[2][..], "2.5"), (&[1, 2], "2.5"), (&[1, 1], "[2.5]"), (&[1], "\"2.5\"")] {
            assert!(read(shape, text).is_err(), "{shape:?} {text}");
        }
    }
}
