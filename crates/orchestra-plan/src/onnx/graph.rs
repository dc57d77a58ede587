//! What a plan needs of a graph, read field by field in bounded memory: names and shapes. Weights and numbers pass by.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use orchestra_core::onnx_file::{StringStringEntryProto, ValueInfoProto, is_onnx};
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::HashedStream;
use crate::model_file::{ModelError, TRAINING};

/// Memory for names and shapes, in MiB. A model of 200,000 nodes takes about 60.
const MAX_MIB: usize = 256;
/// Graphs within graphs: no deeper than other decoders go.
const MAX_DEPTH: u32 = 32;
/// What a name takes beside its bytes, at most.
const NAME: usize = 64;
/// What a byte of a value takes, at most: a dimension without fields is two bytes in the file.
const PER_BYTE: usize = 32;

/// A graph, and of those within it operators and files alone.
#[derive(Default)]
pub(super) struct Graph {
    pub initializers: HashSet<String>,
    pub inputs: Vec<ValueInfoProto>,
    pub outputs: Vec<ValueInfoProto>,
    pub nodes: Vec<OperatorNode>,
    /// How often each operator is used.
    pub operators: BTreeMap<String, u64>,
    /// Files of external weights.
    pub weights: BTreeSet<String>,
    /// Bytes of memory, by estimate from above.
    pub taken: usize,
}

/// A node, as far as it says where numbers come from.
#[derive(Default)]
pub(super) struct OperatorNode {
    pub op_type: String,
    pub first_input: Option<String>,
    pub outputs: Vec<String>,
}

enum FieldValue {
    Number(u64),
    /// So many bytes follow in the stream, and in the message.
    Bytes(usize),
}

pub(super) fn not_onnx(error: impl ToString) -> ModelError {
    ModelError::NotOnnx(error.to_string())
}

/// The next field of the message after which `end` bytes remain.
fn next(stream: &mut HashedStream, end: u64) -> Result<Option<(u32, FieldValue)>, ModelError> {
    while stream.remaining > end {
        let (number, wire_type) = decode_key(stream).map_err(not_onnx)?;
        let field = match wire_type {
            WireType::Varint => FieldValue::Number(decode_varint(stream).map_err(not_onnx)?),
            WireType::LengthDelimited => {
                let length = decode_varint(stream).map_err(not_onnx)?;
                if stream.remaining.checked_sub(end).is_none_or(|most| length > most) {
                    return Err(not_onnx("a field is longer than what holds it"));
                }
                FieldValue::Bytes(length as usize) // no more than remain
            }
            _ => {
                skip_field(wire_type, number, stream, DecodeContext::default()).map_err(not_onnx)?;
                continue;
            }
        };
        return Ok(Some((number, field)));
    }
    if stream.remaining < end { Err(not_onnx("a field is longer than what holds it")) } else { Ok(None) }
}

fn skip(stream: &mut HashedStream, field: FieldValue) {
    if let FieldValue::Bytes(length) = field {
        stream.advance(length);
    }
}

impl Graph {
    /// Adds what the next `length` bytes say, a graph that lies within so many others.
    pub fn read(&mut self, stream: &mut HashedStream, length: usize, depth: u32) -> Result<(), ModelError> {
        if depth > MAX_DEPTH {
            return Err(not_onnx(format!("graphs lie within one another more than {MAX_DEPTH} deep")));
        }
        let end = stream.remaining - length as u64;
        while let Some((number, field)) = next(stream, end)? {
            match (number, field) {
                (1, FieldValue::Bytes(n)) => self.node(stream, n, depth)?,
                (5, FieldValue::Bytes(n)) => self.tensor(stream, n, depth == 0)?,
                (15, FieldValue::Bytes(n)) => self.sparse(stream, n, depth == 0)?,
                (11, FieldValue::Bytes(n)) if depth == 0 => {
                    let input = self.value(stream, n)?;
                    self.inputs.push(input);
                }
                (12, FieldValue::Bytes(n)) if depth == 0 => {
                    let output = self.value(stream, n)?;
                    self.outputs.push(output);
                }
                (_, field) => skip(stream, field),
            }
        }
        Ok(())
    }

    fn node(&mut self, stream: &mut HashedStream, length: usize, depth: u32) -> Result<(), ModelError> {
        let (mut node, mut domain, mut trains) = (OperatorNode::default(), String::new(), false);
        let end = stream.remaining - length as u64;
        while let Some((number, field)) = next(stream, end)? {
            match (number, field) {
                (1, FieldValue::Bytes(n)) if depth == 0 && node.first_input.is_none() => {
                    node.first_input = Some(self.name(stream, n)?);
                }
                (2, FieldValue::Bytes(n)) if depth == 0 => node.outputs.push(self.name(stream, n)?),
                (4, FieldValue::Bytes(n)) => node.op_type = self.name(stream, n)?,
                (5, FieldValue::Bytes(n)) => trains |= self.attribute(stream, n, depth)?,
                (7, FieldValue::Bytes(n)) => domain = self.name(stream, n)?,
                (_, field) => skip(stream, field),
            }
        }
        let name = match is_onnx(&domain) {
            true if trains => format!("{} {TRAINING}", node.op_type),
            true => node.op_type.clone(),
            false => format!("{domain}.{}", node.op_type),
        };
        *self.operators.entry(name).or_default() += 1;
        if depth == 0 {
            self.take(size_of::<OperatorNode>())?;
            self.nodes.push(node);
        }
        Ok(())
    }

    /// Whether the attribute makes its node work as in training.
    fn attribute(
        &mut self,
        stream: &mut HashedStream,
        length: usize,
        depth: u32,
    ) -> Result<bool, ModelError> {
        const MODE: &str = "training_mode";
        let (mut is_mode, mut is_set) = (false, false);
        let end = stream.remaining - length as u64;
        while let Some((number, field)) = next(stream, end)? {
            match (number, field) {
                (1, FieldValue::Bytes(n)) if n == MODE.len() => is_mode = self.name(stream, n)? == MODE,
                (3, FieldValue::Number(i)) => is_set = i != 0,
                (5 | 10, FieldValue::Bytes(n)) => self.tensor(stream, n, false)?,
                (6 | 11, FieldValue::Bytes(n)) => self.read(stream, n, depth + 1)?,
                (_, field) => skip(stream, field),
            }
        }
        Ok(is_mode && is_set)
    }

    fn sparse(
        &mut self,
        stream: &mut HashedStream,
        length: usize,
        is_initializer: bool,
    ) -> Result<(), ModelError> {
        let end = stream.remaining - length as u64;
        while let Some((number, field)) = next(stream, end)? {
            match (number, field) {
                (1, FieldValue::Bytes(n)) => self.tensor(stream, n, is_initializer)?,
                (_, field) => skip(stream, field),
            }
        }
        Ok(())
    }

    fn tensor(
        &mut self,
        stream: &mut HashedStream,
        length: usize,
        is_initializer: bool,
    ) -> Result<(), ModelError> {
        let end = stream.remaining - length as u64;
        while let Some((number, field)) = next(stream, end)? {
            match (number, field) {
                (8, FieldValue::Bytes(n)) if is_initializer => {
                    let name = self.name(stream, n)?;
                    self.initializers.insert(name);
                }
                (13, FieldValue::Bytes(n)) => {
                    self.take(NAME.saturating_add(n))?;
                    let entry = StringStringEntryProto::decode(stream.take(n)).map_err(not_onnx)?;
                    if entry.key == "location" {
                        self.weights.insert(entry.value);
                    }
                }
                (_, field) => skip(stream, field),
            }
        }
        Ok(())
    }

    fn value(&mut self, stream: &mut HashedStream, length: usize) -> Result<ValueInfoProto, ModelError> {
        self.take(size_of::<ValueInfoProto>().saturating_add(length.saturating_mul(PER_BYTE)))?;
        ValueInfoProto::decode(stream.take(length)).map_err(not_onnx)
    }

    fn name(&mut self, stream: &mut HashedStream, length: usize) -> Result<String, ModelError> {
        self.take(NAME.saturating_add(length))?;
        let mut name = vec![0; length];
        stream.copy_to_slice(&mut name);
        String::from_utf8(name).map_err(not_onnx)
    }

    fn take(&mut self, bytes: usize) -> Result<(), ModelError> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken > MAX_MIB << 20 {
            let message = format!("the names and shapes in its graph take more than {MAX_MIB} MiB");
            return Err(ModelError::Unsupported(message));
        }
        Ok(())
    }
}
