//! Elements of tensors as numbers. Formats nothing.

use half::f16;
use orchestra_core::DType;
use orchestra_core::data::TensorView;
use orchestra_plan::Words;
use serde::{Serialize, Serializer};

/// All types of elements, as a key names them.
pub const DTYPES: Words<DType, 6> = Words::new([
    (DType::F32.name(), DType::F32, ""),
    (DType::F16.name(), DType::F16, ""),
    (DType::I64.name(), DType::I64, ""),
    (DType::I32.name(), DType::I32, ""),
    (DType::U8.name(), DType::U8, ""),
    (DType::Bool.name(), DType::Bool, ""),
]);

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Element {
    Float(f32),
    Int(i64),
    Bool(bool),
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Element::Float(v) => serializer.serialize_f32(*v),
            Element::Int(v) => serializer.serialize_i64(*v),
            Element::Bool(v) => serializer.serialize_bool(*v),
        }
    }
}

impl Element {
    /// The nearest `f32`.
    pub fn to_f32(self) -> f32 {
        match self {
            Element::Float(v) => v,
            Element::Int(v) => v as f32,
            Element::Bool(v) => f32::from(u8::from(v)),
        }
    }
}

/// One element. Missing bytes read as zeros; tensors are checked before they come here.
pub fn element(dtype: DType, data: &[u8]) -> Element {
    fn bytes<const N: usize>(data: &[u8]) -> [u8; N] {
        data.first_chunk::<N>().copied().unwrap_or([0; N])
    }
    match dtype {
        DType::F32 => Element::Float(f32::from_ne_bytes(bytes(data))),
        DType::F16 => Element::Float(f16::from_ne_bytes(bytes(data)).to_f32()),
        DType::I64 => Element::Int(i64::from_ne_bytes(bytes(data))),
        DType::I32 => Element::Int(i64::from(i32::from_ne_bytes(bytes(data)))),
        DType::U8 => Element::Int(i64::from(bytes::<1>(data)[0])),
        DType::Bool => Element::Bool(bytes::<1>(data)[0] != 0),
    }
}

/// All elements as `f32`, in order.
pub fn read_floats(tensor: &TensorView<'_>, values: &mut Vec<f32>) {
    values.clear();
    if tensor.dtype == DType::F32 {
        // By far the most common, and worth its own loop.
        values.extend(tensor.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
        return;
    }
    let elements = tensor.data.chunks_exact(tensor.dtype.size_bytes());
    values.extend(elements.map(|bytes| element(tensor.dtype, bytes).to_f32()));
}
