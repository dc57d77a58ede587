//! Adds nodes to a model on the bytes of its file: copies all that is not changed as it is, and neither reads nor runs anything.

use orchestra_core::{DType, TensorSpec};

use super::protobuf::{Fields, Malformed, Message};

// Field numbers of onnx.proto3.
pub mod number {
    pub const MODEL_GRAPH: u32 = 7;
    pub const MODEL_OPSET: u32 = 8;
    pub const OPSET_DOMAIN: u32 = 1;
    pub const OPSET_VERSION: u32 = 2;
    pub const GRAPH_NODE: u32 = 1;
    pub const GRAPH_INPUT: u32 = 11;
    pub const GRAPH_OUTPUT: u32 = 12;
    pub const NODE_INPUT: u32 = 1;
    pub const NODE_OUTPUT: u32 = 2;
    pub const NODE_NAME: u32 = 3;
    pub const NODE_OPERATOR: u32 = 4;
    pub const NODE_ATTRIBUTE: u32 = 5;
    pub const ATTRIBUTE_NAME: u32 = 1;
    pub const ATTRIBUTE_INTEGER: u32 = 3;
    pub const ATTRIBUTE_TENSOR: u32 = 5;
    pub const ATTRIBUTE_INTEGERS: u32 = 8;
    pub const ATTRIBUTE_TYPE: u32 = 20;
    pub const TENSOR_DIMS: u32 = 1;
    pub const TENSOR_TYPE: u32 = 2;
    pub const TENSOR_RAW: u32 = 9;
    pub const VALUE_NAME: u32 = 1;
    pub const VALUE_TYPE: u32 = 2;
    pub const TYPE_TENSOR: u32 = 1;
    pub const TENSOR_TYPE_ELEMENT: u32 = 1;
    pub const TENSOR_TYPE_SHAPE: u32 = 2;
    pub const SHAPE_DIM: u32 = 1;
    pub const DIM_VALUE: u32 = 1;
}

// Element types and attribute types of onnx.proto3.
pub const FLOAT: i64 = 1;
pub const UINT8: i64 = 2;
pub const INT16: i64 = 5;
pub const DOUBLE: i64 = 11;
const INT32: i64 = 6;
pub const INT64: i64 = 7;
pub const STRING: i64 = 8;
const BOOL: i64 = 9;
pub const FLOAT16: i64 = 10;
pub const ATTRIBUTE_IS_INTEGER: i64 = 2;
pub const ATTRIBUTE_IS_TENSOR: i64 = 4;
pub const ATTRIBUTE_IS_INTEGERS: i64 = 7;

/// Why a model cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the file is no ONNX model: {0}")]
    Malformed(#[from] Malformed),
    #[error("the file holds no graph, or several")]
    NoGraph,
    #[error("the model has no input `{0}` with a batch dimension")]
    NoInput(String),
    #[error("the model has no output `{0}`")]
    NoOutput(String),
    #[error("its operators are of version `{found}`, and version `{needed}` or newer is needed")]
    OldOpset { found: u64, needed: u64 },
    #[error(
        "input `{0}` is not given rows of u8 `[height, width, channels]` with a factor and an offset per channel"
    )]
    NoPixels(String),
}

/// The model with its graph edited, whose operators must be of version `needed` or newer.
pub fn with_graph(
    model: &[u8],
    needed: u64,
    edit: impl Fn(&[u8]) -> Result<Vec<u8>, EditError>,
) -> Result<Vec<u8>, EditError> {
    let mut edited = Message::with_capacity(model.len() + 4096);
    let mut graphs = 0;
    let opset = opset(model)?;
    for field in Fields::of(model) {
        let field = field?;
        match field.value.bytes().filter(|_| field.number == number::MODEL_GRAPH) {
            Some(graph) => {
                graphs += 1;
                edited.push_bytes(number::MODEL_GRAPH, &edit(graph)?);
            }
            None => edited.push_field(&field),
        }
    }
    match graphs {
        1 if opset >= needed => Ok(edited.done()),
        1 => Err(EditError::OldOpset { found: opset, needed }),
        _ => Err(EditError::NoGraph),
    }
}

/// The version of the model's operators.
pub fn opset(model: &[u8]) -> Result<u64, EditError> {
    let mut opset = 1;
    for field in Fields::of(model) {
        let field = field?;
        if let (number::MODEL_OPSET, Some(set)) = (field.number, field.value.bytes()) {
            opset = own_opset(set)?.unwrap_or(opset);
        }
    }
    Ok(opset)
}

/// The version, if the set is ONNX's own.
fn own_opset(set: &[u8]) -> Result<Option<u64>, Malformed> {
    let (mut is_own, mut version) = (true, 0);
    for field in Fields::of(set) {
        let field = field?;
        match (field.number, field.value) {
            (number::OPSET_DOMAIN, super::protobuf::Value::Bytes(domain)) => {
                is_own = domain.is_empty() || domain == b"ai.onnx";
            }
            (number::OPSET_VERSION, super::protobuf::Value::Varint(found)) => version = found,
            _ => {}
        }
    }
    Ok(is_own.then_some(version))
}

/// The last field of that number, which is the one that counts, as bytes.
pub fn child(message: &[u8], number: u32) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    for field in Fields::of(message) {
        let field = field?;
        if field.number == number {
            found = field.value.bytes();
        }
    }
    Ok(found)
}

/// An input of a graph under another name, with the model's own batch dimension, and the row and the element type of `tensor`.
pub fn renamed_input(input: &[u8], name: &str, tensor: &TensorSpec) -> Result<Vec<u8>, EditError> {
    let missing = || EditError::NoInput(tensor.name.clone());
    let kind = child(input, number::VALUE_TYPE)?.ok_or_else(missing)?;
    let typed = child(kind, number::TYPE_TENSOR)?.ok_or_else(missing)?;
    let dims = child(typed, number::TENSOR_TYPE_SHAPE)?.ok_or_else(missing)?;
    let mut dims = Fields::of(dims).filter(|f| f.as_ref().map_or(true, |f| f.number == number::SHAPE_DIM));
    let batch = dims.next().ok_or_else(missing)??;
    let mut shape = Message::default();
    shape.push_field(&batch);
    for dim in tensor.fixed_row().unwrap_or_default() {
        shape.push_bytes(number::SHAPE_DIM, &dimension(dim));
    }
    Ok(value_info(name, element(tensor.dtype), shape))
}

/// The description of a tensor.
pub fn value_info(name: &str, element: i64, shape: Message) -> Vec<u8> {
    let tensor = Message::default()
        .integer(number::TENSOR_TYPE_ELEMENT, element)
        .bytes(number::TENSOR_TYPE_SHAPE, &shape.done())
        .done();
    let kind = Message::default().bytes(number::TYPE_TENSOR, &tensor).done();
    let named = Message::default().bytes(number::VALUE_NAME, name.as_bytes());
    named.bytes(number::VALUE_TYPE, &kind).done()
}

/// The description of a tensor whose shape follows from the nodes.
pub fn untyped_shape(name: &str, element: i64) -> Vec<u8> {
    let tensor = Message::default().integer(number::TENSOR_TYPE_ELEMENT, element).done();
    let kind = Message::default().bytes(number::TYPE_TENSOR, &tensor).done();
    let named = Message::default().bytes(number::VALUE_NAME, name.as_bytes());
    named.bytes(number::VALUE_TYPE, &kind).done()
}

pub fn dimension(n: usize) -> Vec<u8> {
    Message::default().integer(number::DIM_VALUE, n as i64).done()
}

pub fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => FLOAT,
        DType::F16 => FLOAT16,
        DType::I64 => INT64,
        DType::I32 => INT32,
        DType::F64 => DOUBLE,
        DType::I16 => INT16,
        DType::U8 => UINT8,
        DType::Bool => BOOL,
    }
}

/// The attribute of a `Constant` that is a list of integers.
pub fn integers(values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
    let tensor = Message::default()
        .integer(number::TENSOR_DIMS, values.len() as i64)
        .integer(number::TENSOR_TYPE, INT64)
        .bytes(number::TENSOR_RAW, &raw)
        .done();
    attribute("value", number::ATTRIBUTE_TENSOR, &tensor, ATTRIBUTE_IS_TENSOR)
}

pub struct Node {
    pub operator: &'static str,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: Vec<Vec<u8>>,
}

impl Node {
    /// As it lies in a graph, under this name.
    pub fn message(&self, name: &str) -> Vec<u8> {
        let mut node = Message::default();
        self.inputs.iter().for_each(|input| node.push_bytes(number::NODE_INPUT, input.as_bytes()));
        self.outputs.iter().for_each(|output| node.push_bytes(number::NODE_OUTPUT, output.as_bytes()));
        node.push_bytes(number::NODE_NAME, name.as_bytes());
        node.push_bytes(number::NODE_OPERATOR, self.operator.as_bytes());
        self.attributes.iter().for_each(|a| node.push_bytes(number::NODE_ATTRIBUTE, a));
        node.done()
    }
}

pub fn attribute(name: &str, field: u32, value: &[u8], kind: i64) -> Vec<u8> {
    let named = Message::default().bytes(number::ATTRIBUTE_NAME, name.as_bytes());
    named.bytes(field, value).integer(number::ATTRIBUTE_TYPE, kind).done()
}

/// An attribute that is a list of integers.
pub fn integers_attribute(name: &str, values: &[i64]) -> Vec<u8> {
    let mut attribute = Message::default().bytes(number::ATTRIBUTE_NAME, name.as_bytes());
    for value in values {
        attribute = attribute.integer(number::ATTRIBUTE_INTEGERS, *value);
    }
    attribute.integer(number::ATTRIBUTE_TYPE, ATTRIBUTE_IS_INTEGERS).done()
}

pub fn integer(name: &str, value: i64) -> Vec<u8> {
    Message::default()
        .bytes(number::ATTRIBUTE_NAME, name.as_bytes())
        .integer(number::ATTRIBUTE_INTEGER, value)
        .integer(number::ATTRIBUTE_TYPE, ATTRIBUTE_IS_INTEGER)
        .done()
}
