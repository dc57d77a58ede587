//! What an ONNX file says about itself: inputs, outputs, versions, digest. Loads no weights and no ONNX Runtime.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Component, Path};

use orchestra_core::onnx_file::{
    DimensionProto, GraphProto, OperatorSetIdProto, STRING, StringStringEntryProto, TensorShapeProto,
    TypeProto, ValueInfoProto, dtype_of, is_onnx,
};
use orchestra_core::{DType, Dim, MAX_RANK, TensorSpec};
use prost::bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, int64, skip_field};
use prost::{DecodeError, Message};
use sha2::{Digest, Sha256};

use crate::files::{digest_file, open_regular};
use crate::model_file::{MAX_METADATA, ModelError, ModelFile, Signature, TRAINING};
use crate::outputs::{Holds, ModelOutput, OutputDim};

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
    find_weights(&model.graph, &mut weights);
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

    /// Gives nothing: fields of bytes are weights, which pass by and are not kept.
    fn copy_to_bytes(&mut self, n: usize) -> Bytes {
        self.advance(n);
        Bytes::new()
    }
}

#[derive(Default)]
struct Model {
    ir_version: i64,
    opset: i64,
    graph: GraphProto,
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
                let set = OperatorSetIdProto::decode(stream.take(length))?;
                if set.is_onnx() {
                    self.opset = set.version;
                }
            }
            14 if self.metadata_bytes + length <= MAX_METADATA => {
                self.metadata_bytes += length;
                let mut entry = vec![0; length];
                stream.copy_to_slice(&mut entry);
                // Few workflows read metadata, so an entry that cannot be decoded is left out and no error.
                if let Ok(entry) = StringStringEntryProto::decode(&*entry) {
                    self.metadata.insert(entry.key, entry.value);
                }
            }
            _ => stream.advance(length),
        }
        Ok(Some(number == 7))
    }

    fn signature(&self) -> Result<Signature, ModelError> {
        let GraphProto { initializer, sparse_initializer, .. } = &self.graph;
        let values = sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
        let given: HashSet<&str> = initializer.iter().chain(values).map(|tensor| &*tensor.name).collect();
        let fed: Vec<&ValueInfoProto> =
            self.graph.input.iter().filter(|i| !given.contains(&*i.name)).collect();
        let inputs = fed.iter().map(|info| input(info)).collect::<Result<Vec<_>, _>>()?;
        let batches: HashSet<&str> = fed.iter().filter_map(|info| batch_name(info)).collect();
        let is_input = |name: &str| self.graph.input.iter().any(|input| input.name == name);
        let output = |info: &ValueInfoProto| output(info, &batches, is_input(&info.name));
        let outputs = self.graph.output.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        if inputs.is_empty() || outputs.is_empty() {
            let what = if inputs.is_empty() { "input" } else { "output" };
            return Err(ModelError::Unsupported(format!("the model has no {what}")));
        }
        let mut operators = BTreeMap::new();
        count_operators(&self.graph, &mut operators);
        let metadata = self.metadata.clone();
        let (ir_version, opset, made_by) = (self.ir_version, self.opset, made_by(&self.graph));
        Ok(Signature { inputs, outputs, ir_version, opset, metadata, made_by, operators })
    }
}

/// For each output the operator that makes its numbers.
fn made_by(graph: &GraphProto) -> BTreeMap<String, String> {
    const PASS_ON: [&str; 7] =
        ["Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"];
    let mut made = HashMap::new();
    for node in &graph.node {
        made.extend(node.output.iter().map(|output| (&**output, node)));
    }
    let maker = |output: &ValueInfoProto| {
        let mut name = &*output.name;
        // A graph has no loops; a file may say anything.
        for _ in 0..graph.node.len() {
            let node = made.get(name)?;
            match node.input.first() {
                Some(from) if PASS_ON.contains(&&*node.op_type) => name = from,
                _ => return Some((output.name.clone(), node.op_type.clone())),
            }
        }
        None
    };
    graph.output.iter().filter_map(maker).collect()
}

/// Counts the operators of all graphs. No deeper than the decoder goes.
fn count_operators(graph: &GraphProto, found: &mut BTreeMap<String, u64>) {
    for node in &graph.node {
        let trains = || node.attribute.iter().any(|a| a.name == "training_mode" && a.i != 0);
        let name = match is_onnx(&node.domain) {
            true if trains() => format!("{} {TRAINING}", node.op_type),
            true => node.op_type.clone(),
            false => format!("{}.{}", node.domain, node.op_type),
        };
        *found.entry(name).or_default() += 1;
        for graph in node.attribute.iter().flat_map(|a| a.graphs.iter().chain(a.g.as_deref())) {
            count_operators(graph, found);
        }
    }
}

/// Adds the names of all files of external weights. No deeper than the decoder goes.
fn find_weights(graph: &GraphProto, found: &mut BTreeSet<String>) {
    let attributes = || graph.node.iter().flat_map(|node| &node.attribute);
    let values = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
    let of_nodes = attributes().flat_map(|a| a.tensors.iter().chain(a.t.as_deref()));
    for entry in graph.initializer.iter().chain(values).chain(of_nodes).flat_map(|t| &t.external_data) {
        if entry.key == "location" {
            found.insert(entry.value.clone());
        }
    }
    for graph in attributes().flat_map(|a| a.graphs.iter().chain(a.g.as_deref())) {
        find_weights(graph, found);
    }
}

fn input(info: &ValueInfoProto) -> Result<TensorSpec, ModelError> {
    let (dtype, shape) = tensor_type(info)?;
    let Some(shape) = shape else {
        let message =
            format!("its input `{}` has no shape; export the model with the shapes of its inputs", info.name);
        return Err(ModelError::Unsupported(message));
    };
    row(info, dtype, &shape).ok_or_else(|| {
        let message =
            format!("its input `{}` is a single value, and the first dimension of an input is the batch; make a constant of it and export the model again, or export it with the shape `[batch]` (in PyTorch: `dynamic_axes`)", info.name);
        ModelError::Unsupported(message)
    })
}

/// The name of the first dimension of an input.
fn batch_name(info: &ValueInfoProto) -> Option<&str> {
    info.dims()?.first()?.dim_param.as_deref().filter(|name| !name.is_empty())
}

fn output(info: &ValueInfoProto, batches: &HashSet<&str>, is_input: bool) -> Result<ModelOutput, ModelError> {
    let kind = info.kind.as_ref();
    let tensor = kind.and_then(|kind| kind.tensor_type.as_ref());
    let holds = match tensor {
        Some(tensor) if tensor.elem_type == STRING => Holds::Text,
        Some(tensor) => {
            let element = tensor.elem_type;
            dtype_of(element).map_or_else(|| Holds::Other(element_name(element)), Holds::Tensor)
        }
        None => Holds::Other(kind.map_or("unknown", no_tensor)),
    };
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    check_rank("output", info, shape)?;
    let dim = |dim: &DimensionProto| match (fixed(dim), &dim.dim_param) {
        (Some(n), _) => OutputDim::Fixed(n),
        (None, Some(name)) if batches.contains(&**name) => OutputDim::Batch,
        (None, _) => OutputDim::Open,
    };
    let dims = shape.map(|shape| shape.dim.iter().map(dim).collect());
    Ok(ModelOutput { name: info.name.clone(), holds, dims, is_input })
}

fn no_tensor(kind: &TypeProto) -> &'static str {
    match kind {
        TypeProto { sequence_type: Some(_), .. } => "sequence",
        TypeProto { map_type: Some(_), .. } => "map",
        TypeProto { sparse_tensor_type: Some(_), .. } => "sparse tensor",
        TypeProto { optional_type: Some(_), .. } => "optional",
        _ => "unknown",
    }
}

/// The length of a dimension that has one. Some exporters write 0 or -1 where it is open.
fn fixed(dim: &DimensionProto) -> Option<usize> {
    dim.dim_value.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
}

fn row(info: &ValueInfoProto, dtype: DType, shape: &TensorShapeProto) -> Option<TensorSpec> {
    let dim = |d: &DimensionProto| fixed(d).map_or(Dim::Dynamic, Dim::Fixed);
    let (batch, row) = shape.dim.split_first()?;
    Some(TensorSpec { name: info.name.clone(), dtype, row: row.iter().map(dim).collect(), batch: dim(batch) })
}

/// Element type and shape of an input.
fn tensor_type(info: &ValueInfoProto) -> Result<(DType, Option<TensorShapeProto>), ModelError> {
    let unsupported = |found: &str| {
        let known = DType::ALL.map(DType::name).join(", ");
        let message = format!(
            "its input `{}` is of type {found}; tensors of {known} are supported: export the model with an input of one of these, and a `Cast` behind it",
            info.name
        );
        ModelError::Unsupported(message)
    };
    let tensor = info.kind.as_ref().and_then(|t| t.tensor_type.as_ref());
    let tensor = tensor.ok_or_else(|| unsupported("sequence, map or optional"))?;
    let dtype = dtype_of(tensor.elem_type).ok_or_else(|| unsupported(element_name(tensor.elem_type)))?;
    check_rank("input", info, tensor.shape.as_ref())?;
    Ok((dtype, tensor.shape.clone()))
}

fn check_rank(what: &str, info: &ValueInfoProto, shape: Option<&TensorShapeProto>) -> Result<(), ModelError> {
    let n_dims = shape.map_or(0, |shape| shape.dim.len());
    if n_dims <= MAX_RANK {
        return Ok(());
    }
    let message =
        format!("its {what} `{}` has {n_dims} dimensions; at most {MAX_RANK} are supported", info.name);
    Err(ModelError::Unsupported(message))
}

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
