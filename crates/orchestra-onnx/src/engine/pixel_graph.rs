//! Puts nodes in front of a model, so that it takes pixels: u8 rows `[height, width, channels]` become what the model was made for. It
//! works on the bytes of the file, copies all that it does not change as it is, and neither reads nor runs anything.
//!
//! ```text
//! pixels of `x` (u8) -> [Transpose] -> Cast to f32 -> Mul -> Add -> [Cast to f16] -> x
//! ```
//!
//! The graph's input gets a new name and the last node the old one. So no node of the model has to be touched, and subgraphs that
//! look at the input from inside of loops and branches see the same tensor as before.

use orchestra_core::batch_layout::TensorSpan;
use orchestra_core::{DType, Layout, PixelInput};

use super::graph_edit::{
    ATTRIBUTE_IS_INTEGERS, ATTRIBUTE_IS_TENSOR, EditError, FLOAT, FLOAT16, Node, attribute, child, integer,
    number, renamed_input, with_graph,
};
use super::protobuf::{Fields, Malformed, Message};

/// The nodes need numpy's broadcasting.
const OLDEST_OPSET: u64 = 7;

/// An input that takes pixels.
#[derive(Debug, Clone, Copy)]
pub struct Front<'a> {
    /// Rows of pixels; the tensor has the name of the model's input.
    pub span: &'a TensorSpan,
    /// What the graph makes of them.
    pub pixels: &'a PixelInput,
}

/// How the session names the input `name` of a model that takes pixels there.
pub fn session_name(name: &str) -> String {
    format!("orchestra.pixels.{name}")
}

/// The model with nodes in front of each of these inputs.
pub fn put_in_front(model: &[u8], fronts: &[Front<'_>]) -> Result<Vec<u8>, EditError> {
    with_graph(model, OLDEST_OPSET, |graph| edit_graph(graph, fronts))
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
                let tensor = &fronts[place].span.tensor;
                let pixels = renamed_input(input, &session_name(&tensor.name), tensor)?;
                edited.push_bytes(number::GRAPH_INPUT, &pixels);
            }
            _ => edited.push_field(&field),
        }
    }
    match replaced.iter().position(|done| !done) {
        Some(missing) => Err(EditError::NoInput(fronts[missing].span.tensor.name.clone())),
        None => Ok(edited.done()),
    }
}

fn place_of(input: &[u8], fronts: &[Front<'_>]) -> Result<Option<usize>, Malformed> {
    let Some(name) = child(input, number::VALUE_NAME)? else { return Ok(None) };
    Ok(fronts.iter().position(|front| front.span.tensor.name.as_bytes() == name))
}

/// The nodes from the pixels to the tensor that the model was made for.
fn nodes(front: &Front<'_>) -> Result<Vec<Vec<u8>>, EditError> {
    let Front { span, pixels } = *front;
    let name = &span.tensor.name;
    let channels = match span.tensor.fixed_row().as_deref() {
        Some(&[_, _, channels]) if span.tensor.dtype == DType::U8 => channels,
        _ => return Err(EditError::NoPixels(name.clone())),
    };
    let element = match pixels.dtype {
        DType::F32 => FLOAT,
        DType::F16 => FLOAT16,
        _ => return Err(EditError::NoPixels(name.clone())),
    };
    if [&pixels.factor, &pixels.offset].iter().any(|list| list.len() != channels) {
        return Err(EditError::NoPixels(name.clone()));
    }
    let chain = NodeChain { name, here: session_name(name), nodes: Vec::new() };
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
struct NodeChain<'a> {
    name: &'a str,
    here: String,
    nodes: Vec<Node>,
}

impl NodeChain<'_> {
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
        self.nodes.push(Node { operator, inputs, outputs: vec![output.clone()], attributes });
        output
    }

    /// All nodes as messages; the last one gives what the model takes.
    fn done(mut self) -> Vec<Vec<u8>> {
        if let Some(last) = self.nodes.last_mut() {
            last.outputs = vec![self.name.to_owned()];
        }
        let named = |(at, node): (usize, &Node)| node.message(&format!("orchestra.{at}.{}", self.name));
        self.nodes.iter().enumerate().map(named).collect()
    }
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
