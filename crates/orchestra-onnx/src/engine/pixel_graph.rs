//! Puts nodes in front of a model, so that it takes pixels: u8 rows `[height, width, channels]` become what the model was made for. It
//! works on the bytes of the file, copies all that it does not change as it is, and neither reads nor runs anything.
//!
//! ```text
//! pixels of `x` (u8) -> [Transpose] -> Cast to f32 -> Mul -> Add -> [Cast to f16] -> x
//! ```
//!
//! The graph's input gets a new name and the last node the old one. So no node of the model has to be touched, and subgraphs that
//! look at the input from inside of loops and branches see the same tensor as before.

use orchestra_core::batch_layout::Region;
use orchestra_core::{DType, Layout, PixelInput};

use super::protobuf::{Fields, Malformed, Message};

/// The nodes need numpy's broadcasting.
const OLDEST_OPSET: u64 = 7;

// Field numbers of onnx.proto3.
mod number {
    pub const MODEL_GRAPH: u32 = 7;
    pub const MODEL_OPSET: u32 = 8;
    pub const OPSET_DOMAIN: u32 = 1;
    pub const OPSET_VERSION: u32 = 2;
    pub const GRAPH_NODE: u32 = 1;
    pub const GRAPH_INPUT: u32 = 11;
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
const FLOAT: i64 = 1;
const UINT8: i64 = 2;
const FLOAT16: i64 = 10;
const ATTRIBUTE_IS_INTEGER: i64 = 2;
const ATTRIBUTE_IS_TENSOR: i64 = 4;
const ATTRIBUTE_IS_INTEGERS: i64 = 7;

/// Why nodes cannot be put in front of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the file is no ONNX model: {0}")]
    Malformed(#[from] Malformed),
    #[error("the file holds no graph, or several")]
    NoGraph,
    #[error("the model has no input `{0}` with a batch dimension")]
    NoInput(String),
    #[error("its operators are of version `{0}`, and version `7` or newer is needed")]
    OldOpset(u64),
    #[error(
        "input `{0}` is not given rows of u8 `[height, width, channels]` with a factor and an offset per channel"
    )]
    NoPixels(String),
}

/// An input that takes pixels.
#[derive(Debug, Clone, Copy)]
pub struct Front<'a> {
    /// Rows of pixels; the tensor has the name of the model's input.
    pub region: &'a Region,
    /// What the graph makes of them.
    pub pixels: &'a PixelInput,
}

/// How the session names the input `name` of a model that takes pixels there.
pub fn session_name(name: &str) -> String {
    format!("orchestra.pixels.{name}")
}

/// The model with nodes in front of each of these inputs.
pub fn put_in_front(model: &[u8], fronts: &[Front<'_>]) -> Result<Vec<u8>, EditError> {
    let mut edited = Message::with_capacity(model.len() + 4096 * (1 + fronts.len()));
    let mut graphs = 0;
    let mut opset = 1;
    for field in Fields::of(model) {
        let field = field?;
        match (field.number, field.value.bytes()) {
            (number::MODEL_GRAPH, Some(graph)) => {
                graphs += 1;
                edited.push_bytes(number::MODEL_GRAPH, &edit_graph(graph, fronts)?);
                continue;
            }
            (number::MODEL_OPSET, Some(set)) => opset = own_opset(set)?.unwrap_or(opset),
            _ => {}
        }
        edited.push_field(&field);
    }
    match (graphs, opset) {
        (1, OLDEST_OPSET..) => Ok(edited.done()),
        (1, old) => Err(EditError::OldOpset(old)),
        _ => Err(EditError::NoGraph),
    }
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

/// New nodes come first, because nodes stand in the order in which they can run.
fn edit_graph(graph: &[u8], fronts: &[Front<'_>]) -> Result<Vec<u8>, EditError> {
    let mut edited = Message::with_capacity(graph.len() + 4096 * fronts.len());
    for front in fronts {
        for node in nodes(front)? {
            edited.push_bytes(number::GRAPH_NODE, &node);
        }
    }
    let mut replaced = vec![false; fronts.len()];
    for field in Fields::of(graph) {
        let field = field?;
        let input = field.value.bytes().filter(|_| field.number == number::GRAPH_INPUT);
        let place = match input {
            Some(input) => place_of(input, fronts)?,
            None => None,
        };
        match (input, place) {
            (Some(input), Some(place)) => {
                replaced[place] = true;
                edited.push_bytes(number::GRAPH_INPUT, &pixel_input(input, fronts[place].region)?);
            }
            _ => edited.push_field(&field),
        }
    }
    match replaced.iter().position(|done| !done) {
        Some(missing) => Err(EditError::NoInput(fronts[missing].region.tensor.name.clone())),
        None => Ok(edited.done()),
    }
}

fn place_of(input: &[u8], fronts: &[Front<'_>]) -> Result<Option<usize>, Malformed> {
    let Some(name) = child(input, number::VALUE_NAME)? else { return Ok(None) };
    Ok(fronts.iter().position(|front| front.region.tensor.name.as_bytes() == name))
}

/// The last field of that number, which is the one that counts, as bytes.
fn child(message: &[u8], number: u32) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    for field in Fields::of(message) {
        let field = field?;
        if field.number == number {
            found = field.value.bytes();
        }
    }
    Ok(found)
}

/// The input under its new name, with the model's own batch dimension and the row of the plan.
fn pixel_input(input: &[u8], region: &Region) -> Result<Vec<u8>, EditError> {
    let name = &region.tensor.name;
    let mut inner = Some(input);
    for number in [number::VALUE_TYPE, number::TYPE_TENSOR, number::TENSOR_TYPE_SHAPE] {
        inner = match inner {
            Some(message) => child(message, number)?,
            None => None,
        };
    }
    let dims = Fields::of(inner.ok_or_else(|| EditError::NoInput(name.clone()))?);
    let mut dims = dims.filter(|f| f.as_ref().map_or(true, |f| f.number == number::SHAPE_DIM));
    let batch = dims.next().ok_or_else(|| EditError::NoInput(name.clone()))??;
    let mut shape = Message::default();
    shape.push_field(&batch);
    for dim in region.tensor.fixed_row().unwrap_or_default() {
        let dim = Message::default().integer(number::DIM_VALUE, dim as i64).done();
        shape.push_bytes(number::SHAPE_DIM, &dim);
    }
    let tensor = Message::default()
        .integer(number::TENSOR_TYPE_ELEMENT, UINT8)
        .bytes(number::TENSOR_TYPE_SHAPE, &shape.done())
        .done();
    let kind = Message::default().bytes(number::TYPE_TENSOR, &tensor).done();
    let named = Message::default().bytes(number::VALUE_NAME, session_name(name).as_bytes());
    Ok(named.bytes(number::VALUE_TYPE, &kind).done())
}

/// The nodes from the pixels to the tensor that the model was made for.
fn nodes(front: &Front<'_>) -> Result<Vec<Vec<u8>>, EditError> {
    let Front { region, pixels } = *front;
    let name = &region.tensor.name;
    let channels = match region.tensor.fixed_row().as_deref() {
        Some(&[_, _, channels]) if region.tensor.dtype == DType::U8 => channels,
        _ => return Err(EditError::NoPixels(name.clone())),
    };
    let element = match pixels.dtype {
        DType::F32 => FLOAT,
        DType::F16 => FLOAT16,
        DType::I64 | DType::I32 | DType::U8 | DType::Bool => return Err(EditError::NoPixels(name.clone())),
    };
    if [&pixels.factor, &pixels.offset].iter().any(|list| list.len() != channels) {
        return Err(EditError::NoPixels(name.clone()));
    }
    let chain = Chain { name, here: session_name(name), nodes: Vec::new() };
    // One value per channel, whatever the other axes: they are broadcast.
    let (chain, shape) = match pixels.layout {
        // Bytes are moved, while they are bytes: a quarter of what floats would be.
        Layout::Nchw => (chain.add("Transpose", None, vec![axes(&[0, 3, 1, 2])]), [channels, 1, 1]),
        Layout::Nhwc => (chain, [1, 1, channels]),
    };
    let mut chain = chain.add("Cast", None, vec![integer("to", FLOAT)]);
    chain = chain.add("Mul", Some(floats(&pixels.factor, shape)), vec![]);
    chain = chain.add("Add", Some(floats(&pixels.offset, shape)), vec![]);
    if element == FLOAT16 {
        chain = chain.add("Cast", None, vec![integer("to", FLOAT16)]);
    }
    Ok(chain.done())
}

/// Nodes of which each takes what the one before gives.
struct Chain<'a> {
    name: &'a str,
    here: String,
    nodes: Vec<Node>,
}

struct Node {
    operator: &'static str,
    inputs: Vec<String>,
    output: String,
    attributes: Vec<Vec<u8>>,
}

impl Chain<'_> {
    /// Adds a node, and before it one that gives its constant second input. Constants are nodes, because an initialiser has to be an
    /// input, too, in files of the oldest versions.
    fn add(mut self, operator: &'static str, constant: Option<Vec<u8>>, attributes: Vec<Vec<u8>>) -> Self {
        let mut inputs = vec![self.here.clone()];
        if let Some(tensor) = constant {
            let value = attribute("value", number::ATTRIBUTE_TENSOR, &tensor, ATTRIBUTE_IS_TENSOR);
            inputs.push(self.push("Constant", vec![], vec![value]));
        }
        self.here = self.push(operator, inputs, attributes);
        self
    }

    /// Adds a node, and names what it gives.
    fn push(&mut self, operator: &'static str, inputs: Vec<String>, attributes: Vec<Vec<u8>>) -> String {
        let output = format!("orchestra.{}.{}", self.nodes.len(), self.name);
        self.nodes.push(Node { operator, inputs, output: output.clone(), attributes });
        output
    }

    /// All nodes as messages; the last one gives what the model takes.
    fn done(mut self) -> Vec<Vec<u8>> {
        if let Some(last) = self.nodes.last_mut() {
            self.name.clone_into(&mut last.output);
        }
        let named = |(at, node): (usize, &Node)| node.message(&format!("orchestra.{at}.{}", self.name));
        self.nodes.iter().enumerate().map(named).collect()
    }
}

impl Node {
    fn message(&self, name: &str) -> Vec<u8> {
        let mut node = Message::default();
        self.inputs.iter().for_each(|input| node.push_bytes(number::NODE_INPUT, input.as_bytes()));
        node.push_bytes(number::NODE_OUTPUT, self.output.as_bytes());
        node.push_bytes(number::NODE_NAME, name.as_bytes());
        node.push_bytes(number::NODE_OPERATOR, self.operator.as_bytes());
        self.attributes.iter().for_each(|a| node.push_bytes(number::NODE_ATTRIBUTE, a));
        node.done()
    }
}

fn attribute(name: &str, field: u32, value: &[u8], kind: i64) -> Vec<u8> {
    let named = Message::default().bytes(number::ATTRIBUTE_NAME, name.as_bytes());
    named.bytes(field, value).integer(number::ATTRIBUTE_TYPE, kind).done()
}

fn integer(name: &str, value: i64) -> Vec<u8> {
    Message::default()
        .bytes(number::ATTRIBUTE_NAME, name.as_bytes())
        .integer(number::ATTRIBUTE_INTEGER, value)
        .integer(number::ATTRIBUTE_TYPE, ATTRIBUTE_IS_INTEGER)
        .done()
}

fn axes(axes: &[i64]) -> Vec<u8> {
    let named = Message::default().bytes(number::ATTRIBUTE_NAME, b"perm");
    let all = axes.iter().fold(named, |message, axis| message.integer(number::ATTRIBUTE_INTEGERS, *axis));
    all.integer(number::ATTRIBUTE_TYPE, ATTRIBUTE_IS_INTEGERS).done()
}

fn floats(values: &[f32], shape: [usize; 3]) -> Vec<u8> {
    let dims = shape.iter().fold(Message::default(), |m, dim| m.integer(number::TENSOR_DIMS, *dim as i64));
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    dims.integer(number::TENSOR_TYPE, FLOAT).bytes(number::TENSOR_RAW, &raw).done()
}

#[cfg(test)]
#[path = "pixel_graph_tests.rs"]
mod tests;
