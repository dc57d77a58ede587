//! One element of a tensor as a number, and the rule by which it becomes one of another type.

use std::cmp::Ordering;
use std::fmt;

use half::f16;

use crate::data::{ItemError, TensorView};
use crate::tensor::DType;

/// An element, in the type that shows it without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Element {
    /// Also a half.
    Float(f32),
    Double(f64),
    Int(i64),
    Bool(bool),
}

impl Element {
    /// The first element of `data`, in native byte order. Missing bytes read as zeros; tensors are checked before they come here.
    pub fn read(dtype: DType, data: &[u8]) -> Self {
        fn bytes<const N: usize>(data: &[u8]) -> [u8; N] {
            data.first_chunk::<N>().copied().unwrap_or([0; N])
        }
        match dtype {
            DType::F32 => Element::Float(f32::from_ne_bytes(bytes(data))),
            DType::F16 => Element::Float(f16::from_ne_bytes(bytes(data)).to_f32()),
            DType::F64 => Element::Double(f64::from_ne_bytes(bytes(data))),
            DType::I64 => Element::Int(i64::from_ne_bytes(bytes(data))),
            DType::I32 => Element::Int(i64::from(i32::from_ne_bytes(bytes(data)))),
            DType::I16 => Element::Int(i64::from(i16::from_ne_bytes(bytes(data)))),
            DType::U8 => Element::Int(i64::from(bytes::<1>(data)[0])),
            DType::Bool => Element::Bool(bytes::<1>(data)[0] != 0),
        }
    }

    /// The nearest `f64`: the number itself, but for integers beyond 2^53.
    pub fn to_f64(self) -> f64 {
        match self {
            Element::Float(v) => f64::from(v),
            Element::Double(v) => v,
            Element::Int(v) => v as f64,
            Element::Bool(v) => f64::from(u8::from(v)),
        }
    }

    /// The integer, or true or false as 1 or 0; `None` of a float.
    pub fn to_i64(self) -> Option<i64> {
        match self {
            Element::Int(v) => Some(v),
            Element::Bool(v) => Some(i64::from(v)),
            Element::Float(_) | Element::Double(_) => None,
        }
    }

    /// Whether it is larger than a bound, without rounding; a float is compared with the nearest float of its type. `None`: it is NaN.
    pub fn is_above(self, bound: f64) -> Option<bool> {
        match self {
            Element::Float(v) => v.partial_cmp(&(bound as f32)),
            Element::Double(v) => v.partial_cmp(&bound),
            // An integer is above a number where it is above the integer below that.
            Element::Int(v) => Some(i128::from(v).cmp(&(bound.floor() as i128))),
            Element::Bool(v) => f64::from(u8::from(v)).partial_cmp(&bound),
        }
        .map(|ordering| ordering == Ordering::Greater)
    }

    /// Appends it as an element of this type: the one rule by which numbers change their type. To `f32` and `f16` it is rounded to the nearest;
    /// nothing else changes a number.
    ///
    /// # Errors
    /// The type cannot hold it: it is too large, it has a fraction, or it is an integer beyond 2^53 that a float would round.
    pub fn append(self, dtype: DType, data: &mut Vec<u8>) -> Result<(), OutOfRange> {
        let beyond = || OutOfRange { dtype, number: self, would_round: false };
        match dtype {
            DType::F32 | DType::F16 | DType::F64 => {
                let number = match self {
                    Element::Bool(_) => return Err(beyond()),
                    _ => self.to_f64(),
                };
                let rounded = match dtype {
                    DType::F32 => f64::from(number as f32),
                    DType::F16 => f64::from(nearest_f16(number)),
                    _ => number,
                };
                if rounded.is_infinite() && number.is_finite() {
                    return Err(beyond());
                }
                if let Element::Int(n) = self
                    && n.unsigned_abs() > LARGEST_WHOLE
                    && rounded as i128 != i128::from(n)
                {
                    return Err(OutOfRange { would_round: true, ..beyond() });
                }
                match dtype {
                    DType::F32 => data.extend_from_slice(&(number as f32).to_ne_bytes()),
                    DType::F16 => data.extend_from_slice(&nearest_f16(number).to_ne_bytes()),
                    _ => data.extend_from_slice(&number.to_ne_bytes()),
                }
            }
            DType::I64 => data.extend_from_slice(&self.whole().ok_or_else(beyond)?.to_ne_bytes()),
            DType::I32 => data.extend_from_slice(&self.fitting::<i32>().ok_or_else(beyond)?.to_ne_bytes()),
            DType::I16 => data.extend_from_slice(&self.fitting::<i16>().ok_or_else(beyond)?.to_ne_bytes()),
            DType::U8 => data.push(self.fitting().ok_or_else(beyond)?),
            DType::Bool => match self {
                Element::Bool(is) => data.push(u8::from(is)),
                _ => data.push(self.fitting::<u8>().filter(|n| *n <= 1).ok_or_else(beyond)?),
            },
        }
        Ok(())
    }

    /// The integer that it is, also as a float without a fraction. A float from 2^53 on may have been rounded to one.
    fn whole(self) -> Option<i64> {
        match self {
            Element::Int(n) => Some(n),
            Element::Bool(_) => None,
            Element::Float(_) | Element::Double(_) => {
                let number = self.to_f64();
                (number.fract() == 0.0 && number.abs() < LARGEST_WHOLE as f64).then_some(number as i64)
            }
        }
    }

    fn fitting<T: TryFrom<i64>>(self) -> Option<T> {
        T::try_from(self.whole()?).ok()
    }
}

/// The order of two numbers. Equal ones are equal, such as zeros of either sign, which `total_cmp` tells apart; so a stable sort leaves them as they came.
/// NaN is at the ends.
#[expect(clippy::disallowed_methods, reason = "zeros have one sign here")]
pub fn compare_numbers(a: f64, b: f64) -> Ordering {
    (a + 0.0).total_cmp(&(b + 0.0))
}

/// Every integer up to this one is an `f64`.
const LARGEST_WHOLE: u64 = 1 << f64::MANTISSA_DIGITS;

/// A number that a type cannot hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutOfRange {
    dtype: DType,
    number: Element,
    /// It is an integer that the type holds as another one only.
    pub would_round: bool,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, number, would_round } = self;
        let shown: &dyn fmt::Display = match number {
            Element::Float(v) => v,
            Element::Double(v) => v,
            Element::Int(v) => v,
            Element::Bool(v) => return write!(f, "{v} is no {dtype}"),
        };
        let is_float = matches!(number, Element::Float(_) | Element::Double(_));
        let is_whole = number.to_f64().fract() == 0.0;
        match (would_round, dtype) {
            (true, _) => write!(f, "{dtype} would round {shown}"),
            // It may have been rounded to what it is.
            (_, DType::I64) if is_float && is_whole && number.to_f64().abs() < 2_f64.powi(63) => {
                write!(
                    f,
                    "{shown} is a float from 2^53 on, which may stand for another integer, so no {dtype} is made of it"
                )
            }
            _ => write!(f, "{dtype} cannot hold {shown}"),
        }
    }
}

impl TensorView<'_> {
    /// Writes its elements as those of another type, by the rule of [`Element::append`].
    ///
    /// # Errors
    /// That type cannot hold one of them; or there are more or fewer than `to` takes.
    pub fn write_as(&self, dtype: DType, to: &mut [u8]) -> Result<(), ItemError> {
        let mut converted = Vec::with_capacity(to.len());
        for (place, bytes) in self.data.chunks_exact(self.dtype.size_bytes()).enumerate() {
            Element::read(self.dtype, bytes).append(dtype, &mut converted).map_err(|why| {
                ItemError::result(format!("`{}` goes on as {dtype}, and at place {place} {why}", self.name))
            })?;
        }
        if converted.len() != to.len() {
            let (name, given, expected) = (self.name, converted.len(), to.len());
            return Err(ItemError::result(format!(
                "`{name}` has {given} bytes, and the next stage takes {expected}"
            )));
        }
        to.copy_from_slice(&converted);
        Ok(())
    }
}

/// `half` goes by way of `f32` and so rounds twice. Here the first rounding is to the odd one of both neighbours, after which the second is right.
fn nearest_f16(number: f64) -> f16 {
    let near = number as f32;
    let is_even = near.to_bits().is_multiple_of(2);
    let odd = match f64::from(near).abs().partial_cmp(&number.abs()) {
        Some(Ordering::Greater) if is_even && near.is_finite() => f32::from_bits(near.to_bits() - 1),
        Some(Ordering::Less) if is_even => f32::from_bits(near.to_bits() + 1),
        _ => near,
    };
    f16::from_f32(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_number_that_a_type_cannot_hold_is_true() {
        for (element, dtype, said) in [
            (
                Element::Double(2_f64.powi(53)),
                DType::I64,
                "a float from 2^53 on, which may stand for another",
            ),
            (
                Element::Float(-2_f32.powi(62)),
                DType::I64,
                "a float from 2^53 on, which may stand for another",
            ),
            (Element::Double(2_f64.powi(63)), DType::I64, "i64 cannot hold 9223372036854776000"),
            (Element::Double(f64::INFINITY), DType::I64, "i64 cannot hold inf"),
            (Element::Double(f64::NAN), DType::I64, "i64 cannot hold NaN"),
            (Element::Double(4.5), DType::I64, "i64 cannot hold 4.5"),
            (Element::Double(2_f64.powi(53)), DType::I32, "i32 cannot hold 9007199254740992"),
            (Element::Int((1 << 53) + 1), DType::F64, "f64 would round 9007199254740993"),
            (Element::Int(256), DType::U8, "u8 cannot hold 256"),
            (Element::Bool(true), DType::F32, "true is no f32"),
        ] {
            let error = element.append(dtype, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_double_becomes_the_nearest_half_and_not_that_of_a_float_between() {
        let tie = 1.0 + 2_f64.powi(-11);
        for (number, half) in [
            (tie, 1.0),
            (tie + 2_f64.powi(-40), 1.0 + 2_f64.powi(-10)),
            (tie - 2_f64.powi(-40), 1.0),
            (-tie - 2_f64.powi(-52), -1.0 - 2_f64.powi(-10)),
            (tie + 2_f64.powi(-10) - 2_f64.powi(-45), 1.0 + 2_f64.powi(-10)),
            (65_519.999_999_99, 65_504.0),
            (2_f64.powi(-25), 0.0),
            (2_f64.powi(-25) + 2_f64.powi(-60), 2_f64.powi(-24)),
            (f64::MIN_POSITIVE, 0.0),
        ] {
            let mut data = Vec::new();
            Element::Double(number).append(DType::F16, &mut data).unwrap();
            assert_eq!(f16::from_ne_bytes([data[0], data[1]]), f16::from_f64(half), "{number:e}");
        }
        Element::Double(65_520.0).append(DType::F16, &mut Vec::new()).unwrap_err();
    }
}
