//! Tensors in JSON: a list of elements, flat or nested by the dimensions, and back.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use half::f16;
use orchestra::{DType, Tensor, TensorElement};
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::call::{Data, NamedData, shape_of};
use crate::datatype::Datatype;
use crate::error::ServeError;

/// Reads the elements of an input.
pub fn read(name: &str, datatype: &str, shape: &[i64], data: &RawValue) -> Result<NamedData, ServeError> {
    let shape = shape_of(name, shape)?;
    let read = match Datatype::parse(datatype, name)? {
        Datatype::Bytes => elements::<Bytes>(data).map(Data::Bytes),
        Datatype::Number(dtype) => {
            let shape = shape.clone();
            match dtype {
                DType::F32 => tensor::<f32>(shape, data),
                DType::F16 => tensor::<f16>(shape, data),
                DType::F64 => tensor::<f64>(shape, data),
                DType::I64 => tensor::<i64>(shape, data),
                DType::I32 => tensor::<i32>(shape, data),
                DType::I16 => tensor::<i16>(shape, data),
                DType::U8 => tensor::<u8>(shape, data),
                DType::Bool => tensor::<bool>(shape, data),
            }
            .map(Data::Numbers)
        }
    };
    NamedData::new(name, shape, read.map_err(|error| NamedData::wrong(name, &error))?)
}

fn tensor<T: TensorElement + JsonElement>(shape: Vec<usize>, data: &RawValue) -> Result<Tensor, String> {
    Tensor::new(shape, elements::<T>(data)?).map_err(|error| error.to_string())
}

fn elements<T: JsonElement>(data: &RawValue) -> Result<Vec<T>, String> {
    let mut elements = Vec::new();
    let mut json = serde_json::Deserializer::from_str(data.get());
    ElementLists(&mut elements, PhantomData::<T>)
        .deserialize(&mut json)
        .map_err(|error| error.to_string())?;
    Ok(elements)
}

/// What an element is made of. `None`: it is none.
trait JsonElement: Sized {
    const EXPECTED: &'static str;
    fn of_int(_: i64) -> Option<Self> {
        None
    }
    fn of_float(_: f64) -> Option<Self> {
        None
    }
    fn of_bool(_: bool) -> Option<Self> {
        None
    }
    fn of_text(_: &str) -> Option<Self> {
        None
    }
}

macro_rules! integers {
    ($($ty:ty),*) => {
        $(impl JsonElement for $ty {
            const EXPECTED: &'static str = concat!("a whole number that is a ", stringify!($ty));
            fn of_int(number: i64) -> Option<Self> {
                number.try_into().ok()
            }
        })*
    };
}

integers! { i64, i32, i16, u8 }

macro_rules! floats {
    ($($ty:ty: $of:expr),*) => {
        $(impl JsonElement for $ty {
            const EXPECTED: &'static str = "a number";
            fn of_int(number: i64) -> Option<Self> {
                Some(($of)(number as f64))
            }
            fn of_float(number: f64) -> Option<Self> {
                Some(($of)(number))
            }
        })*
    };
}

floats! { f64: |x| x, f32: |x| x as f32, f16: f16::from_f64 }

impl JsonElement for bool {
    const EXPECTED: &'static str = "`true` or `false`";
    fn of_bool(is: bool) -> Option<Self> {
        Some(is)
    }
}

impl JsonElement for Bytes {
    const EXPECTED: &'static str = "a text";
    fn of_text(text: &str) -> Option<Self> {
        Some(Bytes::from(text.to_owned()))
    }
}

/// Takes elements from lists of any depth.
struct ElementLists<'v, T>(&'v mut Vec<T>, PhantomData<T>);

impl<'de, T: JsonElement> DeserializeSeed<'de> for ElementLists<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<T: JsonElement> ElementLists<'_, T> {
    fn push<E: serde::de::Error>(
        self,
        element: Option<T>,
        found: serde::de::Unexpected<'_>,
    ) -> Result<(), E> {
        self.0.push(element.ok_or_else(|| E::invalid_value(found, &T::EXPECTED))?);
        Ok(())
    }
}

impl<'de, T: JsonElement> Visitor<'de> for ElementLists<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list", T::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(ElementLists(self.0, PhantomData))?.is_some() {}
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.push(T::of_int(number), serde::de::Unexpected::Signed(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        let element = i64::try_from(number).ok().and_then(T::of_int).or_else(|| T::of_float(number as f64));
        self.push(element, serde::de::Unexpected::Unsigned(number))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.push(T::of_float(number), serde::de::Unexpected::Float(number))
    }

    fn visit_bool<E: serde::de::Error>(self, is: bool) -> Result<(), E> {
        self.push(T::of_bool(is), serde::de::Unexpected::Bool(is))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.push(T::of_text(text), serde::de::Unexpected::Str(text))
    }
}

/// The elements of an output, in one list.
pub struct OutputData<'a>(pub &'a NamedData);

impl Serialize for OutputData<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Self(NamedData { name, data, .. }) = self;
        let tensor = match data {
            Data::Numbers(tensor) => tensor,
            Data::Bytes(elements) => {
                let texts = elements.iter().map(|bytes| std::str::from_utf8(bytes));
                let texts = texts.collect::<Result<Vec<_>, _>>();
                let texts = texts.map_err(|_| {
                    S::Error::custom(format!(
                        "output `{name}` is no text in UTF-8: ask for it with `binary_data`"
                    ))
                })?;
                return out.collect_seq(texts);
            }
        };
        macro_rules! numbers {
            ($($dtype:ident: $ty:ty),*) => {
                match tensor.dtype() {
                    Some(DType::F32) => floats(name, tensor.as_slice::<f32>().map(|data| data.iter().copied()), out),
                    Some(DType::F64) => floats(name, tensor.as_slice::<f64>().map(|data| data.iter().copied()), out),
                    Some(DType::F16) => floats(name, tensor.as_slice::<f16>().map(|data| data.iter().map(|x| f32::from(*x))), out),
                    $(Some(DType::$dtype) => out.collect_seq(tensor.as_slice::<$ty>().map_err(S::Error::custom)?),)*
                    None => out.collect_seq([0_u8; 0]),
                }
            };
        }
        numbers! { I64: i64, I32: i32, I16: i16, U8: u8, Bool: bool }
    }
}

fn floats<S: Serializer, T: Copy + Into<f64> + Serialize, E: fmt::Display>(
    name: &str,
    numbers: Result<impl Iterator<Item = T> + Clone, E>,
    out: S,
) -> Result<S::Ok, S::Error> {
    let numbers = numbers.map_err(S::Error::custom)?;
    if let Some(number) = numbers.clone().map(Into::into).find(|number| !number.is_finite()) {
        return Err(S::Error::custom(format!(
            "output `{name}` holds {number}, which JSON has not: ask for it with `binary_data`"
        )));
    }
    out.collect_seq(numbers)
}
