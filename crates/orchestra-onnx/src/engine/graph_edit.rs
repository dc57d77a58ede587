//! Edits a model's graph on the bytes of its file: puts nodes before and behind its own, and replaces inputs and outputs. It copies all other
//! bytes as they are, because a model may have fields that orchestra does not know. It runs nothing.

use std::ops::Range;

use orchestra_core::TensorSpec;
use orchestra_core::onnx_file::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    element_type,
};
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use prost::{DecodeError, Message as _};

// Field numbers of onnx.proto3.
const MODEL_GRAPH: u32 = 7;
const MODEL_OPSET: u32 = 8;
const GRAPH_INPUT: u32 = 11;
const GRAPH_OUTPUT: u32 = 12;

/// Key and length of the graph take no more bytes than this.
const GRAPH_HEAD: usize = 16;

/// Why a model cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the file is no ONNX model: {0}")]
    Malformed(#[from] DecodeError),
    #[error("the file holds no graph, or several")]
    NoGraph,
    #[error("the model has no input `{0}`, or none with a batch dimension")]
    NoInput(String),
    #[error("the model has no output `{0}`")]
    NoOutput(String),
    #[error("its operators are of version `{found}`, and version `{needed}` or newer is needed")]
    OldOpset { found: i64, needed: i64 },
    #[error(
        "input `{0}` is not given rows of u8 `[height, width, channels]` with a factor and an offset per channel"
    )]
    NoPixels(String),
}

/// A model's file, and how its graph is to change.
pub struct GraphEdit<'a> {
    before_graph: &'a [u8],
    graph: &'a [u8],
    behind_graph: &'a [u8],
    /// The version of ONNX's own operators.
    pub opset: i64,
    /// Nodes that run before those of the model.
    pub first: Vec<NodeProto>,
    /// Nodes that run behind those of the model.
    pub last: Vec<NodeProto>,
    /// Inputs that come behind those of the model.
    pub more_inputs: Vec<ValueInfoProto>,
    replaced: Vec<Replaced>,
}

/// An input or output that another one stands in for.
struct Replaced {
    /// The number of the graph's field.
    number: u32,
    name: String,
    field: Vec<u8>,
}

impl<'a> GraphEdit<'a> {
    /// No change yet.
    pub fn of(model: &'a [u8]) -> Result<Self, EditError> {
        let (mut opset, mut graphs) = (1, Vec::new());
        for field in fields(model) {
            let MessageField { number, place, value } = field?;
            match (number, value) {
                (MODEL_GRAPH, Some(graph)) => graphs.push((place, graph)),
                (MODEL_OPSET, Some(set)) => {
                    let set = OperatorSetIdProto::decode(set)?;
                    opset = if set.is_onnx() { set.version } else { opset };
                }
                _ => {}
            }
        }
        let [(place, graph)] = &*graphs else { return Err(EditError::NoGraph) };
        Ok(Self {
            before_graph: &model[..place.start],
            graph,
            behind_graph: &model[place.end..],
            opset,
            first: Vec::new(),
            last: Vec::new(),
            more_inputs: Vec::new(),
            replaced: Vec::new(),
        })
    }

    /// Whether the operators of the model are of this version or newer.
    pub fn needs(&self, opset: i64) -> Result<(), EditError> {
        match self.opset >= opset {
            true => Ok(()),
            false => Err(EditError::OldOpset { found: self.opset, needed: opset }),
        }
    }

    /// Gives the model's input of the name of `tensor` another name, and the row and the element type of `tensor`. The dimension that counts items, at `axis`
    /// in the model, is its first one.
    pub fn replace_input(&mut self, tensor: &TensorSpec, name: &str, axis: usize) -> Result<(), EditError> {
        let missing = || EditError::NoInput(tensor.name.clone());
        let is_replaced = |r: &Replaced| r.number == GRAPH_INPUT && r.name == tensor.name;
        if self.replaced.iter().any(is_replaced) {
            return Err(missing());
        }
        let input = self.value(GRAPH_INPUT, &tensor.name)?.ok_or_else(missing)?;
        let batch = input.dims().and_then(|dims| dims.get(axis)).ok_or_else(missing)?.clone();
        let row = tensor.fixed_row().unwrap_or_default().into_iter().map(DimensionProto::fixed);
        let dims = std::iter::once(batch).chain(row).collect();
        let input = vec![ValueInfoProto::tensor(name, element_type(tensor.dtype), Some(dims))];
        let field = GraphProto { input, ..GraphProto::default() }.encode_to_vec();
        self.replaced.push(Replaced { number: GRAPH_INPUT, name: tensor.name.clone(), field });
        Ok(())
    }

    /// Leaves the input of this name out: a node gives what it gave.
    pub fn remove_input(&mut self, name: &str) -> Result<(), EditError> {
        let missing = || EditError::NoInput(name.to_owned());
        self.value(GRAPH_INPUT, name)?.ok_or_else(missing)?;
        self.replaced.push(Replaced { number: GRAPH_INPUT, name: name.to_owned(), field: Vec::new() });
        Ok(())
    }

    /// Declares `with` in place of the model's output `name`, whatever stood in for that before.
    pub fn replace_output(&mut self, name: &str, with: ValueInfoProto) -> Result<(), EditError> {
        let missing = || EditError::NoOutput(name.to_owned());
        self.value(GRAPH_OUTPUT, name)?.ok_or_else(missing)?;
        self.replaced.retain(|r| r.number != GRAPH_OUTPUT || r.name != name);
        let field = GraphProto { output: vec![with], ..GraphProto::default() }.encode_to_vec();
        self.replaced.push(Replaced { number: GRAPH_OUTPUT, name: name.to_owned(), field });
        Ok(())
    }

    /// The file as it is edited: one copy, with room for it from the start, because models have gigabytes.
    pub fn apply(self) -> Result<Vec<u8>, EditError> {
        let first = GraphProto { node: self.first, ..GraphProto::default() }.encode_to_vec();
        let last = GraphProto { node: self.last, input: self.more_inputs, ..GraphProto::default() };
        let last = last.encode_to_vec();
        let (mut graph, mut copied) = (vec![&*first], 0);
        for field in fields(self.graph) {
            let MessageField { number, place, value } = field?;
            let Some(value) = value.filter(|_| self.replaced.iter().any(|r| r.number == number)) else {
                continue;
            };
            let name = ValueInfoProto::decode(value)?.name;
            if let Some(new) = self.replaced.iter().find(|r| r.number == number && r.name == name) {
                graph.extend([&self.graph[copied..place.start], &new.field]);
                copied = place.end;
            }
        }
        graph.extend([&self.graph[copied..], &last]);
        let length: usize = graph.iter().map(|part| part.len()).sum();
        let around = self.before_graph.len() + self.behind_graph.len();
        let mut model = Vec::with_capacity(around + GRAPH_HEAD + length);
        model.extend_from_slice(self.before_graph);
        encode_key(MODEL_GRAPH, WireType::LengthDelimited, &mut model);
        encode_varint(length as u64, &mut model);
        graph.into_iter().for_each(|part| model.extend_from_slice(part));
        model.extend_from_slice(self.behind_graph);
        Ok(model)
    }

    /// The input or output of this name.
    fn value(&self, number: u32, name: &str) -> Result<Option<ValueInfoProto>, DecodeError> {
        for field in fields(self.graph) {
            let field = field?;
            if let Some(value) = field.value.filter(|_| field.number == number) {
                let value = ValueInfoProto::decode(value)?;
                if value.name == name {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }
}

struct MessageField<'a> {
    number: u32,
    /// Where key and value are in the message.
    place: Range<usize>,
    /// Text, bytes, or another message; `None` of numbers.
    value: Option<&'a [u8]>,
}

/// The fields of a message in their order. Ends after the first that is none.
fn fields(message: &[u8]) -> impl Iterator<Item = Result<MessageField<'_>, DecodeError>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let start = message.len() - rest.len();
        let read = next_field(&mut rest);
        if read.is_err() {
            rest = &[];
        }
        let place = start..message.len() - rest.len();
        Some(read.map(|(number, value)| MessageField { number, place, value }))
    })
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Option<&'a [u8]>), DecodeError> {
    let (number, wire_type) = decode_key(rest)?;
    let mut value = *rest;
    skip_field(wire_type, number, rest, DecodeContext::default())?;
    value = &value[..value.len() - rest.len()];
    if wire_type != WireType::LengthDelimited {
        return Ok((number, None));
    }
    decode_varint(&mut value)?;
    Ok((number, Some(value)))
}

/// A node with one output, after which it is named.
pub fn node(
    op_type: &str,
    inputs: &[&str],
    output: &str,
    attributes: impl IntoIterator<Item = AttributeProto>,
) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        output: vec![output.to_owned()],
        name: format!("orchestra.{op_type}.{output}"),
        op_type: op_type.to_owned(),
        attribute: attributes.into_iter().collect(),
        ..NodeProto::default()
    }
}

/// A node that gives a constant. An initialiser would have to be an input, too, in files of the oldest versions.
pub fn constant(output: &str, tensor: TensorProto) -> NodeProto {
    node("Constant", &[], output, [AttributeProto::tensor("value", tensor)])
}

#[cfg(test)]
#[path = "graph_edit_tests.rs"]
mod tests;
