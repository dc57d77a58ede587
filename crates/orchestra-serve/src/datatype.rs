//! The element types of the protocol, and how elements lie in its messages: numbers in little-endian order, each `BYTES` behind its length.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use orchestra::DType;

use crate::error::ServeError;

/// The type of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datatype {
    Number(DType),
    /// Texts, or the bytes of files.
    Bytes,
}

/// With their numbers in a model's configuration.
const NUMBERS: [(&str, i32, DType); 8] = [
    ("BOOL", 1, DType::Bool),
    ("UINT8", 2, DType::U8),
    ("INT16", 7, DType::I16),
    ("INT32", 8, DType::I32),
    ("INT64", 9, DType::I64),
    ("FP16", 10, DType::F16),
    ("FP32", 11, DType::F32),
    ("FP64", 12, DType::F64),
];

impl Datatype {
    pub fn of(dtype: Option<DType>) -> Self {
        dtype.map_or(Self::Bytes, Self::Number)
    }

    pub fn parse(name: &str, input: &str) -> Result<Self, ServeError> {
        if name == "BYTES" {
            return Ok(Self::Bytes);
        }
        let found = NUMBERS.iter().find(|(of, ..)| *of == name);
        found.map(|(_, _, dtype)| Self::Number(*dtype)).ok_or_else(|| {
            let names = NUMBERS.map(|(name, ..)| name).join(", ");
            ServeError::invalid(format!(
                "input `{input}` has the datatype `{name}`; this server takes {names} and BYTES"
            ))
        })
    }

    /// As metadata and tensors have it: `FP32`.
    pub fn name(self) -> &'static str {
        self.entry().map_or("BYTES", |(name, ..)| name)
    }

    /// As a configuration has it over gRPC.
    pub fn number(self) -> i32 {
        self.entry().map_or(13, |(_, number, _)| *number)
    }

    fn entry(self) -> Option<&'static (&'static str, i32, DType)> {
        let Self::Number(dtype) = self else { return None };
        NUMBERS.iter().find(|(.., of)| *of == dtype)
    }
}

/// The name of a datatype in the JSON of a configuration.
pub fn config_name(number: i32) -> String {
    let name = NUMBERS.iter().find(|(_, of, _)| *of == number).map_or("STRING", |(name, ..)| name);
    format!("TYPE_{name}")
}

/// Elements of type `BYTES`, as they lie behind one another in binary data.
pub fn split_bytes(mut data: Bytes, input: &str) -> Result<Vec<Bytes>, ServeError> {
    let mut elements = Vec::new();
    while !data.is_empty() {
        let length = data.try_get_u32_le().map_or(usize::MAX, |length| length as usize);
        if length > data.len() {
            return Err(ServeError::invalid(format!(
                "the elements of input `{input}` do not fill its binary data: each BYTES lies behind its length, 4 bytes in little-endian order"
            )));
        }
        elements.push(data.split_to(length));
    }
    Ok(elements)
}

/// The reverse of [`split_bytes`].
pub fn join_bytes(elements: &[Bytes]) -> Bytes {
    let mut data = BytesMut::with_capacity(elements.iter().map(|element| 4 + element.len()).sum());
    for element in elements {
        data.put_u32_le(u32::try_from(element.len()).expect("no message is as long"));
        data.put_slice(element);
    }
    data.freeze()
}
