//! The part of ONNX's protobuf messages that test models need, with the field numbers of `onnx.proto3`. Data only.

use prost::Message;

/// Numbers of `AttributeProto.AttributeType`.
pub mod attribute_type {
    /// `f`
    pub const FLOAT: i32 = 1;
    /// `i`
    pub const INT: i32 = 2;
    /// `ints`
    pub const INTS: i32 = 7;
}

/// A model file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Format version.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Who wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Operator sets that its nodes come from.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// What its exporter wrote down beside the graph.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// An entry of the metadata.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its text.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A domain and its version.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Empty for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// Nodes, constants, inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// In an order in which each comes after those it needs.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Inputs.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// One operator's use.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of tensors.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of tensors.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Unique in the graph.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator's domain.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// One setting of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// An integer.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// Integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Which of the fields counts: see `attribute_type`.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Shape.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// Element type.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements, little-endian.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
    /// Where they lie instead.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1: in `external_data`.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// An input or output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; only tensors here.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Element type and shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// Element type.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// Its dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<tensor_shape_proto::Dimension>,
}

/// Parts of `TensorShapeProto`.
pub mod tensor_shape_proto {
    /// One dimension.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Dimension {
        /// A number or a name.
        #[prost(oneof = "super::dimension_proto::Value", tags = "1, 2")]
        pub value: Option<super::dimension_proto::Value>,
    }
}

/// Parts of `Dimension`.
pub mod dimension_proto {
    /// A number, or a name for one that is open.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        /// Fixed.
        #[prost(int64, tag = "1")]
        DimValue(i64),
        /// Open.
        #[prost(string, tag = "2")]
        DimParam(String),
    }
}
