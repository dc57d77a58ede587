//! Numbers of JSON and of Parquet as elements of tensors. None is changed but to the nearest float.

use half::f16;
use orchestra_core::DType;
use serde_json::Value as Json;

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

/// A JSON value for a message: not all of a long one.
pub fn shown(value: &Json) -> String {
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
pub fn nested(dtype: DType, shape: &[usize], value: &Json, data: &mut Vec<u8>) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
