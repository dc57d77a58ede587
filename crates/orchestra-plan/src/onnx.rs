//! What an ONNX file says about itself: inputs, outputs, versions, digest. Loads no weights and no ONNX Runtime.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Component, Path};

use orchestra_core::{DType, Dim, TensorSpec};
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, int64, skip_field};
use prost::{DecodeError, Message};
use sha2::{Digest, Sha256};

use crate::host::{MAX_METADATA, ModelError, ModelFile, Signature, digest_file, open_regular};
use crate::outputs::{Holds, ModelOutput, OutputDim};

/// Dimensions of a tensor. Records hold lists within lists, one for each.
const MAX_DIMS: usize = 64;

// The part of onnx.proto3 that is looked at; all other fields, weights among them, are skipped.

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializers: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    inputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    outputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "15")]
    sparse: Vec<SparseTensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, tag = "4")]
    operator: String,
    #[prost(string, tag = "7")]
    domain: String,
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(message, optional, boxed, tag = "5")]
    tensor: Option<Box<Tensor>>,
    #[prost(message, optional, boxed, tag = "6")]
    graph: Option<Box<Graph>>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct SparseTensor {
    #[prost(message, optional, tag = "1")]
    values: Option<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    kind: Option<TypeProto>,
}

/// Of a type that is no tensor, only which it is.
#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
    #[prost(message, optional, tag = "4")]
    sequence: Option<Anything>,
    #[prost(message, optional, tag = "5")]
    map: Option<Anything>,
    #[prost(message, optional, tag = "8")]
    sparse: Option<Anything>,
    #[prost(message, optional, tag = "9")]
    optional: Option<Anything>,
}

#[derive(Clone, PartialEq, Message)]
struct Anything {}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    element: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dims: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(int64, optional, tag = "1")]
    value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    symbol: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSet {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// Reads the model file at `path` as a stream: in memory are names and shapes, and never its weights.
pub fn read_model(path: &Path) -> Result<ModelFile, ModelError> {
    let file = open_regular(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ModelError::Missing,
        _ => ModelError::Unreadable(e),
    })?;
    let meta = file.metadata().map_err(ModelError::Unreadable)?;
    if meta.is_dir() {
        return Err(ModelError::NotOnnx("it is a folder".into()));
    }
    let mut stream = HashedStream::new(file, meta.len());
    let model = Model::read(&mut stream);
    if let Some(error) = stream.error {
        return Err(ModelError::Unreadable(error));
    }
    let model = model?;
    let mut weights = BTreeSet::new();
    model.graph.find_weights(&mut weights);
    let signature = model.signature()?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let file_digest = stream.hash.finalize().into();
    let sizes = weights.iter().filter_map(|name| folder.join(name).metadata().ok());
    let bytes = sizes.fold(meta.len(), |sum, weights| sum.saturating_add(weights.len()));
    let weights: Vec<_> =
        weights.into_iter().map(|name| weights_file(name, folder)).collect::<Result<_, _>>()?;
    let digest = with_weights(file_digest, &weights);
    Ok(ModelFile { digest, file_digest, weights, bytes, signature })
}

/// A file of external weights and its digest.
fn weights_file(name: String, folder: &Path) -> Result<(String, [u8; 32]), ModelError> {
    let error = |reason: String| ModelError::Weights { file: name.clone(), reason };
    if Path::new(&name).components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(error("it lies outside the folder of the model".into()));
    }
    let digest = digest_file(&folder.join(&name)).map_err(|e| error(e.to_string()))?;
    Ok((name, digest))
}

/// Folds the files of external weights into the digest.
fn with_weights(digest: [u8; 32], weights: &[(String, [u8; 32])]) -> [u8; 32] {
    if weights.is_empty() {
        return digest;
    }
    let mut all = Sha256::new_with_prefix(digest);
    for (name, weights) in weights {
        all.update((name.len() as u64).to_le_bytes());
        all.update(name);
        all.update(weights);
    }
    all.finalize().into()
}

/// A file as decoders read it. What passes is digested. After an error zeros follow, which are no protocol buffers and soon end the decoding.
struct HashedStream {
    file: File,
    hash: Sha256,
    error: Option<io::Error>,
    buffer: Vec<u8>,
    /// The part of `buffer` that comes next; empty only at the end.
    next: Range<usize>,
    remaining: u64,
}

impl HashedStream {
    fn new(file: File, length: u64) -> Self {
        let buffer = vec![0; 1 << 16];
        let mut stream =
            Self { file, hash: Sha256::new(), error: None, buffer, next: 0..0, remaining: length };
        stream.fill();
        stream
    }

    fn fill(&mut self) {
        let most = self.buffer.len().min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        match self.file.read_exact(&mut self.buffer[..most]) {
            Ok(()) => self.hash.update(&self.buffer[..most]),
            Err(error) => {
                self.error.get_or_insert(error);
                self.buffer.fill(0);
            }
        }
        self.next = 0..most;
    }
}

impl Buf for HashedStream {
    fn remaining(&self) -> usize {
        usize::try_from(self.remaining).unwrap_or(usize::MAX)
    }

    fn chunk(&self) -> &[u8] {
        &self.buffer[self.next.clone()]
    }

    fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let here = n.min(self.next.len());
            self.next.start += here;
            self.remaining -= here as u64;
            n -= here;
            if self.next.is_empty() {
                self.fill();
            }
        }
    }
}

#[derive(Default)]
struct Model {
    ir_version: i64,
    opset: i64,
    graph: Graph,
    metadata: BTreeMap<String, String>,
    /// Bytes of the entries that were read into `metadata`.
    metadata_bytes: usize,
}

impl Model {
    fn read(stream: &mut HashedStream) -> Result<Self, ModelError> {
        let length = stream.remaining;
        if stream.chunk().starts_with(b"version https://git-lfs") {
            return Err(ModelError::NotOnnx("it is a Git LFS pointer; fetch it with `git lfs pull`".into()));
        }
        // A model starts with its `ir_version`; text or a picture does not.
        match stream.chunk() {
            [] => return Err(ModelError::NotOnnx("it is empty".into())),
            [0x08, ..] => {}
            _ => return Err(ModelError::NotOnnx("it does not begin like one".into())),
        }
        let (mut model, mut has_graph) = (Self::default(), false);
        while stream.has_remaining() {
            let field = model.field(stream);
            match field.map_err(|error| ModelError::NotOnnx(error.to_string())) {
                Ok(Some(is_graph)) => has_graph |= is_graph,
                Err(error) if stream.has_remaining() => return Err(error),
                Ok(None) | Err(_) => return Err(ModelError::Truncated(length)),
            }
        }
        if has_graph { Ok(model) } else { Err(ModelError::NotOnnx("it holds no graph".into())) }
    }

    /// Reads a field; whether it was the graph. `None`: the file ends within it.
    fn field(&mut self, stream: &mut HashedStream) -> Result<Option<bool>, DecodeError> {
        let (number, wire_type) = decode_key(stream)?;
        if wire_type != WireType::LengthDelimited {
            match number {
                1 => int64::merge(wire_type, &mut self.ir_version, stream, DecodeContext::default())?,
                _ => skip_field(wire_type, number, stream, DecodeContext::default())?,
            }
            return Ok(Some(false));
        }
        let length = decode_varint(stream)?;
        if length > stream.remaining {
            return Ok(None);
        }
        let length = length as usize; // no more than remain
        match number {
            7 => self.graph.merge(stream.take(length))?,
            8 => {
                let set = OperatorSet::decode(stream.take(length))?;
                if set.domain.is_empty() || set.domain == "ai.onnx" {
                    self.opset = set.version;
                }
            }
            14 if self.metadata_bytes + length <= MAX_METADATA => {
                self.metadata_bytes += length;
                let mut entry = vec![0; length];
                stream.copy_to_slice(&mut entry);
                // Few workflows read metadata, so an entry that cannot be decoded is left out and no error.
                if let Ok(entry) = KeyValue::decode(&*entry) {
                    self.metadata.insert(entry.key, entry.value);
                }
            }
            _ => stream.advance(length),
        }
        Ok(Some(number == 7))
    }

    fn signature(&self) -> Result<Signature, ModelError> {
        let Graph { initializers, sparse, .. } = &self.graph;
        let values = sparse.iter().filter_map(|sparse| sparse.values.as_ref());
        let given: HashSet<&str> = initializers.iter().chain(values).map(|tensor| &*tensor.name).collect();
        let fed: Vec<&ValueInfo> = self.graph.inputs.iter().filter(|i| !given.contains(&*i.name)).collect();
        let inputs = fed.iter().map(|info| input(info)).collect::<Result<Vec<_>, _>>()?;
        let batches: HashSet<&str> = fed.iter().filter_map(|info| batch_name(info)).collect();
        let is_input = |name: &str| self.graph.inputs.iter().any(|input| input.name == name);
        let output = |info: &ValueInfo| output(info, &batches, is_input(&info.name));
        let outputs = self.graph.outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        if inputs.is_empty() || outputs.is_empty() {
            let what = if inputs.is_empty() { "input" } else { "output" };
            return Err(ModelError::Unsupported(format!("the model has no {what}")));
        }
        let mut operators = BTreeMap::new();
        self.graph.count_operators(&mut operators);
        let metadata = self.metadata.clone();
        Ok(Signature { inputs, outputs, ir_version: self.ir_version, opset: self.opset, metadata, operators })
    }
}

impl Graph {
    /// Counts the operators of all graphs. No deeper than the decoder goes.
    fn count_operators(&self, found: &mut BTreeMap<String, u64>) {
        for node in &self.nodes {
            let name = match &*node.domain {
                "" | "ai.onnx" => node.operator.clone(),
                domain => format!("{domain}.{}", node.operator),
            };
            *found.entry(name).or_default() += 1;
            for graph in node.attributes.iter().flat_map(|a| a.graphs.iter().chain(a.graph.as_deref())) {
                graph.count_operators(found);
            }
        }
    }

    /// Adds the names of all files of external weights. No deeper than the decoder goes.
    fn find_weights(&self, found: &mut BTreeSet<String>) {
        let attributes = || self.nodes.iter().flat_map(|node| &node.attributes);
        let values = self.sparse.iter().filter_map(|sparse| sparse.values.as_ref());
        let of_nodes = attributes().flat_map(|a| a.tensors.iter().chain(a.tensor.as_deref()));
        for entry in self.initializers.iter().chain(values).chain(of_nodes).flat_map(|t| &t.external) {
            if entry.key == "location" {
                found.insert(entry.value.clone());
            }
        }
        for graph in attributes().flat_map(|a| a.graphs.iter().chain(a.graph.as_deref())) {
            graph.find_weights(found);
        }
    }
}

fn input(info: &ValueInfo) -> Result<TensorSpec, ModelError> {
    let (dtype, shape) = tensor_type(info)?;
    let Some(shape) = shape else {
        let message =
            format!("its input `{}` has no shape; export the model with the shapes of its inputs", info.name);
        return Err(ModelError::Unsupported(message));
    };
    row(info, dtype, &shape).ok_or_else(|| {
        let message =
            format!("its input `{}` is a single value; its first dimension must be the batch", info.name);
        ModelError::Unsupported(message)
    })
}

/// The name of the first dimension of an input.
fn batch_name(info: &ValueInfo) -> Option<&str> {
    let first = info.kind.as_ref()?.tensor.as_ref()?.shape.as_ref()?.dims.first()?;
    first.symbol.as_deref().filter(|name| !name.is_empty())
}

fn output(info: &ValueInfo, batches: &HashSet<&str>, is_input: bool) -> Result<ModelOutput, ModelError> {
    let kind = info.kind.as_ref();
    let tensor = kind.and_then(|kind| kind.tensor.as_ref());
    let holds = match tensor {
        Some(tensor) if tensor.element == STRING => Holds::Text,
        Some(tensor) => {
            known(tensor.element).map_or_else(|| Holds::Other(element_name(tensor.element)), Holds::Tensor)
        }
        None => Holds::Other(kind.map_or("unknown", no_tensor)),
    };
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    check_rank("output", info, shape)?;
    let dim = |dim: &Dimension| match (fixed(dim), &dim.symbol) {
        (Some(n), _) => OutputDim::Fixed(n),
        (None, Some(name)) if batches.contains(&**name) => OutputDim::Batch,
        (None, _) => OutputDim::Open,
    };
    let dims = shape.map(|shape| shape.dims.iter().map(dim).collect());
    Ok(ModelOutput { name: info.name.clone(), holds, dims, is_input })
}

fn no_tensor(kind: &TypeProto) -> &'static str {
    match kind {
        TypeProto { sequence: Some(_), .. } => "sequence",
        TypeProto { map: Some(_), .. } => "map",
        TypeProto { sparse: Some(_), .. } => "sparse tensor",
        TypeProto { optional: Some(_), .. } => "optional",
        _ => "unknown",
    }
}

/// The length of a dimension that has one. Some exporters write 0 or -1 where it is open.
fn fixed(dim: &Dimension) -> Option<usize> {
    dim.value.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
}

fn row(info: &ValueInfo, dtype: DType, shape: &Shape) -> Option<TensorSpec> {
    let dim = |d: &Dimension| fixed(d).map_or(Dim::Dynamic, Dim::Fixed);
    let (batch, row) = shape.dims.split_first()?;
    Some(TensorSpec { name: info.name.clone(), dtype, row: row.iter().map(dim).collect(), batch: dim(batch) })
}

/// Element type and shape of an input.
fn tensor_type(info: &ValueInfo) -> Result<(DType, Option<Shape>), ModelError> {
    let unsupported = |found: &str| {
        let known = DType::ALL.map(DType::name).join(", ");
        let message =
            format!("its input `{}` is of type {found}; tensors of {known} are supported", info.name);
        ModelError::Unsupported(message)
    };
    let tensor = info.kind.as_ref().and_then(|t| t.tensor.as_ref());
    let tensor = tensor.ok_or_else(|| unsupported("sequence, map or optional"))?;
    let dtype = known(tensor.element).ok_or_else(|| unsupported(element_name(tensor.element)))?;
    check_rank("input", info, tensor.shape.as_ref())?;
    Ok((dtype, tensor.shape.clone()))
}

fn check_rank(what: &str, info: &ValueInfo, shape: Option<&Shape>) -> Result<(), ModelError> {
    let n_dims = shape.map_or(0, |shape| shape.dims.len());
    if n_dims <= MAX_DIMS {
        return Ok(());
    }
    let message =
        format!("its {what} `{}` has {n_dims} dimensions; at most {MAX_DIMS} are supported", info.name);
    Err(ModelError::Unsupported(message))
}

fn known(element: i32) -> Option<DType> {
    Some(match element {
        1 => DType::F32,
        2 => DType::U8,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        _ => return None,
    })
}

/// Texts, as onnx.proto3 numbers element types.
const STRING: i32 = 8;

fn element_name(element: i32) -> &'static str {
    match element {
        3 => "int8",
        4 => "uint16",
        8 => "string",
        12 => "uint32",
        13 => "uint64",
        14 | 15 => "complex",
        16 => "bfloat16",
        17..=20 => "float8",
        21 | 22 => "4-bit integer",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests;
