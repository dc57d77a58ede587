//! The messages of an ONNX file that orchestra reads or writes, under the names and numbers of `onnx.proto3`. Decoding drops every other field, so
//! a model that must keep them is never decoded and encoded again as a whole.

use prost::Message;
use prost::bytes::Bytes;

use crate::DType;

/// The element type of texts. [`element_type`] has all others that orchestra knows.
pub const STRING: i32 = 8;

/// ONNX's number for an element type.
pub fn element_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
    }
}

/// The element type with this number, if orchestra knows it.
pub fn dtype_of(element: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| element_type(*dtype) == element)
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A set of operators that the nodes of a model come from.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

impl OperatorSetIdProto {
    pub fn is_onnx(&self) -> bool {
        is_onnx(&self.domain)
    }
}

pub fn is_onnx(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// In an order in which each node comes after those that it needs.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Unique in its graph.
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// A named value of a node. `kind` says in which field it is.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, tag = "2")]
    pub f: f32,
    #[prost(int64, tag = "3")]
    pub i: i64,
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    #[prost(int32, tag = "20")]
    pub kind: i32,
}

impl AttributeProto {
    pub fn float(name: &str, f: f32) -> Self {
        Self { name: name.to_owned(), f, kind: 1, ..Self::default() }
    }

    pub fn int(name: &str, i: i64) -> Self {
        Self { name: name.to_owned(), i, kind: 2, ..Self::default() }
    }

    pub fn tensor(name: &str, t: TensorProto) -> Self {
        Self { name: name.to_owned(), t: Some(Box::new(t)), kind: 4, ..Self::default() }
    }

    pub fn ints(name: &str, ints: &[i64]) -> Self {
        Self { name: name.to_owned(), ints: ints.to_vec(), kind: 7, ..Self::default() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Elements that are texts.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements, little-endian.
    #[prost(bytes = "bytes", tag = "9")]
    pub raw_data: Bytes,
    /// Which part of which file holds the elements instead.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1: the elements are in `external_data`.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

impl TensorProto {
    /// A tensor without a name.
    pub fn f32s(dims: &[usize], elements: &[f32]) -> Self {
        Self::new(DType::F32, dims, elements.iter().flat_map(|element| element.to_le_bytes()).collect())
    }

    /// A list without a name.
    pub fn i64s(elements: &[i64]) -> Self {
        let raw = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        Self::new(DType::I64, &[elements.len()], raw)
    }

    /// A tensor of texts without a name.
    pub fn texts(dims: &[usize], texts: &[String]) -> Self {
        let string_data = texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect();
        Self { string_data, data_type: STRING, ..Self::new(DType::U8, dims, Bytes::new()) }
    }

    /// A tensor without a name, of little-endian elements.
    pub fn new(dtype: DType, dims: &[usize], raw_data: Bytes) -> Self {
        let dims = dims.iter().map(|n| *n as i64).collect();
        Self { dims, data_type: element_type(dtype), raw_data, ..Self::default() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
}

/// An input or output of a graph.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub kind: Option<TypeProto>,
}

impl ValueInfoProto {
    /// A tensor; without `dims` its shape follows from the nodes.
    pub fn tensor(name: &str, elem_type: i32, dims: Option<Vec<DimensionProto>>) -> Self {
        let shape = dims.map(|dim| TensorShapeProto { dim });
        let tensor_type = Some(TensorTypeProto { elem_type, shape });
        Self { name: name.to_owned(), kind: Some(TypeProto { tensor_type, ..TypeProto::default() }) }
    }

    /// The dimensions of a tensor that has a shape.
    pub fn dims(&self) -> Option<&[DimensionProto]> {
        Some(&self.kind.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?.dim)
    }
}

/// A type. Of those that are no tensors only which it is.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
    #[prost(message, optional, tag = "4")]
    pub sequence_type: Option<()>,
    #[prost(message, optional, tag = "5")]
    pub map_type: Option<()>,
    #[prost(message, optional, tag = "8")]
    pub sparse_tensor_type: Option<()>,
    #[prost(message, optional, tag = "9")]
    pub optional_type: Option<()>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A number, or a name for a dimension that is open.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

impl DimensionProto {
    pub fn fixed(n: usize) -> Self {
        Self { dim_value: Some(n as i64), dim_param: None }
    }

    pub fn named(name: &str) -> Self {
        Self { dim_value: None, dim_param: Some(name.to_owned()) }
    }
}
