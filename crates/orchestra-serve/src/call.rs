//! An inference as both protocols have it: tensors by name, what is asked for, and what is answered. It knows no HTTP and no gRPC.

use std::cmp::Ordering;
use std::time::Duration;

use bytes::Bytes;
use half::f16;
use orchestra::{DType, Tensor};

use crate::datatype::{Datatype, join_bytes, split_bytes};
use crate::error::ServeError;

/// What a client asks.
#[derive(Debug, Default)]
pub struct Call {
    pub id: String,
    /// The trace that the client goes on with: W3C's `traceparent`.
    pub traceparent: Option<String>,
    pub inputs: Vec<NamedData>,
    /// All, where none is named.
    pub outputs: Vec<WantedOutput>,
    pub within: Option<Duration>,
    /// The highest goes first.
    pub priority: u8,
}

#[derive(Debug, Default)]
pub struct WantedOutput {
    pub name: String,
    /// Instead of numbers so many of the largest, with their places.
    pub classes: usize,
    /// Over HTTP: as binary data.
    pub is_binary: bool,
}

#[derive(Debug, Clone)]
pub struct NamedData {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Data,
}

#[derive(Debug, Clone)]
pub enum Data {
    Numbers(Tensor),
    Bytes(Vec<Bytes>),
}

/// Clients name levels from 1, the most urgent; 0 is what has none.
pub fn priority(level: u64) -> u8 {
    const NONE: u8 = 128;
    u8::try_from(level.min(255)).ok().filter(|level| *level > 0).map_or(NONE, |level| 255 - level)
}

impl NamedData {
    /// From the elements as they lie in a message.
    pub fn from_raw(name: &str, datatype: &str, shape: &[i64], data: Bytes) -> Result<Self, ServeError> {
        let shape = shape_of(name, shape)?;
        let data = match Datatype::parse(datatype, name)? {
            Datatype::Number(dtype) => Data::Numbers(
                Tensor::from_bytes(dtype, shape.clone(), data).map_err(|error| Self::wrong(name, &error))?,
            ),
            Datatype::Bytes => Data::Bytes(split_bytes(data, name)?),
        };
        Self::new(name, shape, data)
    }

    /// From elements that were told apart.
    pub fn new(name: &str, shape: Vec<usize>, data: Data) -> Result<Self, ServeError> {
        if let Data::Bytes(elements) = &data
            && shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim)) != Some(elements.len())
        {
            return Err(ServeError::invalid(format!(
                "input `{name}` has {} elements, and shape {shape:?}",
                elements.len()
            )));
        }
        Ok(Self { name: name.to_owned(), shape, data })
    }

    /// The elements as they lie in a message.
    pub fn to_raw(&self) -> Bytes {
        match &self.data {
            Data::Numbers(tensor) => tensor.as_bytes().expect("it holds numbers").clone(),
            Data::Bytes(elements) => join_bytes(elements),
        }
    }

    pub fn wrong(name: &str, error: &impl std::fmt::Display) -> ServeError {
        ServeError::invalid(format!("input `{name}`: {error}"))
    }

    pub fn datatype(&self) -> Datatype {
        match &self.data {
            Data::Numbers(tensor) => Datatype::of(tensor.dtype()),
            Data::Bytes(_) => Datatype::Bytes,
        }
    }

    /// As the library takes it: `BYTES` are texts.
    pub fn into_tensor(self) -> Result<Tensor, ServeError> {
        let Self { name, shape, data } = self;
        match data {
            Data::Numbers(tensor) => Ok(tensor),
            Data::Bytes(elements) => {
                let texts = elements.iter().map(|bytes| String::from_utf8(bytes.to_vec()));
                let texts = texts.collect::<Result<Vec<_>, _>>();
                let texts = texts.map_err(|_| {
                    ServeError::invalid(format!("an element of input `{name}` is no text in UTF-8"))
                })?;
                Tensor::texts(shape, texts).map_err(|error| Self::wrong(&name, &error))
            }
        }
    }

    /// An output of a model.
    pub fn of_tensor(name: &str, tensor: &Tensor) -> Self {
        let data = match tensor.as_texts() {
            Ok(texts) => Data::Bytes(texts.iter().map(|text| Bytes::from(text.clone())).collect()),
            Err(_) => Data::Numbers(tensor.clone()),
        };
        Self { name: name.to_owned(), shape: tensor.shape().to_vec(), data }
    }

    /// The largest numbers of each row, as texts `value:place`.
    pub fn classes(&self, n: usize) -> Result<Self, ServeError> {
        let Data::Numbers(tensor) = &self.data else {
            return Err(ServeError::invalid(format!("output `{}` has no numbers to classify", self.name)));
        };
        let numbers = numbers(tensor);
        let rows = self.shape.first().copied().unwrap_or(1).max(1);
        let width = numbers.len() / rows;
        let n = n.min(width);
        let mut texts = Vec::with_capacity(rows * n);
        for row in numbers.chunks(width.max(1)) {
            let mut places: Vec<usize> = (0..row.len()).collect();
            places.sort_by(|a, b| row[*b].partial_cmp(&row[*a]).unwrap_or(Ordering::Equal));
            texts.extend(places[..n].iter().map(|place| Bytes::from(format!("{:.6}:{place}", row[*place]))));
        }
        let shape = if self.shape.len() > 1 { vec![rows, n] } else { vec![n] };
        Ok(Self { name: self.name.clone(), shape, data: Data::Bytes(texts) })
    }
}

/// The numbers of a tensor, as f64.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    macro_rules! as_f64 {
        ($($dtype:ident $ty:ty),*) => {
            match tensor.dtype() {
                $(Some(DType::$dtype) => tensor.as_slice::<$ty>().iter().copied().flatten().map(|x| f64::from(*x)).collect(),)*
                Some(DType::I64) => tensor.as_slice::<i64>().iter().copied().flatten().map(|x| *x as f64).collect(),
                Some(DType::Bool) => tensor.as_slice::<bool>().iter().copied().flatten().map(|x| f64::from(*x)).collect(),
                None => Vec::new(),
            }
        };
    }
    as_f64!(F32 f32, F16 f16, F64 f64, I32 i32, I16 i16, U8 u8)
}

pub fn shape_of(name: &str, shape: &[i64]) -> Result<Vec<usize>, ServeError> {
    let dims = shape.iter().map(|dim| usize::try_from(*dim));
    dims.collect::<Result<_, _>>().map_err(|_| {
        ServeError::invalid(format!("input `{name}` has shape {shape:?}, and no dimension is negative"))
    })
}
