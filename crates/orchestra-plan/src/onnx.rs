//! What an ONNX file says about itself: inputs, outputs, versions, digest. Loads no weights and no ONNX Runtime.

mod batch_axes;
mod graph;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use orchestra_core::onnx_file::{
    DimensionProto, OperatorSetIdProto, STRING, StringStringEntryProto, TypeProto, ValueInfoProto, dtype_of,
};
use orchestra_core::{DType, Dim, MAX_RANK, TensorSpec, TextInput};
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, int64, skip_field};
use sha2::{Digest, Sha256};

use self::graph::{Graph, not_onnx};
use crate::files::{digest_file, open_regular};
use crate::model_file::{MAX_METADATA, ModelError, ModelFile, Signature};
use crate::outputs::{ModelOutput, OutputDim, OutputType};
use crate::plan::ScalarInput;

/// Inputs that are fed, or outputs. Each is compared with others, and may be an error of its own.
const MAX_TENSORS: usize = 4096;
/// Nodes that only pass numbers on, one after another.
const MAX_PASSED_ON: usize = 100;

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
    let model = OnnxModel::read(&mut stream);
    if let Some(error) = stream.error {
        return Err(ModelError::Unreadable(error));
    }
    let model = model?;
    let weights = &model.graph.weights;
    let signature = model.signature()?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let file_digest = stream.hash.finalize().into();
    let sizes = weights.iter().filter_map(|name| folder.join(name).metadata().ok());
    let bytes = sizes.fold(meta.len(), |sum, weights| sum.saturating_add(weights.len()));
    let mut known = HashMap::new();
    let weights: Vec<_> =
        weights.iter().map(|name| weights_file(name, folder, &mut known)).collect::<Result<_, _>>()?;
    let digest = with_weights(file_digest, &weights);
    Ok(ModelFile { digest, file_digest, weights, bytes, signature })
}

/// A file of external weights and its digest. It may be a link, as in caches that hold files by their digests. A file of several names is read
/// once: `known` has digests by device and inode.
fn weights_file(
    name: &str,
    folder: &Path,
    known: &mut HashMap<(u64, u64), [u8; 32]>,
) -> Result<(String, [u8; 32]), ModelError> {
    let error = |reason: String| ModelError::Weights { file: name.to_owned(), reason };
    if Path::new(name).components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(error("it lies outside the folder of the model".into()));
    }
    let path = folder.join(name);
    let mut digest = || {
        let meta = path.metadata()?;
        let file = (meta.dev(), meta.ino());
        if let Some(digest) = known.get(&file) {
            return Ok(*digest);
        }
        let digest = digest_file(&path)?;
        known.insert(file, digest);
        Ok(digest)
    };
    let digest = digest().map_err(|e: io::Error| error(e.to_string()))?;
    Ok((name.to_owned(), digest))
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
struct OnnxModel {
    ir_version: i64,
    opset: i64,
    graph: Graph,
    metadata: BTreeMap<String, String>,
    /// Bytes of the entries that were read into `metadata`.
    metadata_bytes: usize,
}

impl OnnxModel {
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
            match field {
                Ok(Some(is_graph)) => has_graph |= is_graph,
                Err(error) if stream.has_remaining() => return Err(error),
                Ok(None) | Err(_) => return Err(ModelError::Truncated(length)),
            }
        }
        if has_graph { Ok(model) } else { Err(ModelError::NotOnnx("it holds no graph".into())) }
    }

    /// Reads a field; whether it was the graph. `None`: the file ends within it.
    fn field(&mut self, stream: &mut HashedStream) -> Result<Option<bool>, ModelError> {
        let (number, wire_type) = decode_key(stream).map_err(not_onnx)?;
        if wire_type != WireType::LengthDelimited {
            let context = DecodeContext::default();
            let read = match number {
                1 => int64::merge(wire_type, &mut self.ir_version, stream, context),
                _ => skip_field(wire_type, number, stream, context),
            };
            return read.map(|()| Some(false)).map_err(not_onnx);
        }
        let length = decode_varint(stream).map_err(not_onnx)?;
        if length > stream.remaining {
            return Ok(None);
        }
        let length = length as usize; // no more than remain
        match number {
            7 => self.graph.read(stream, length, 0)?,
            8 => {
                let set = OperatorSetIdProto::decode(stream.take(length)).map_err(not_onnx)?;
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
        let Graph { initializers, operators, .. } = &self.graph;
        let fed: Vec<&ValueInfoProto> =
            self.graph.inputs.iter().filter(|i| !initializers.contains(&*i.name)).collect();
        for (what, n) in [("inputs", fed.len()), ("outputs", self.graph.outputs.len())] {
            if n > MAX_TENSORS {
                let message = format!("it has {n} {what}; at most {MAX_TENSORS} are supported");
                return Err(ModelError::Unsupported(message));
            }
        }
        let (scalars, of_items): (Vec<_>, Vec<_>) = fed.iter().partition(|info| info.dims() == Some(&[]));
        let scalars = scalars.into_iter().map(scalar).collect::<Result<Vec<_>, _>>()?;
        let (texts, tensors): (Vec<_>, Vec<_>) = of_items.into_iter().partition(|info| is_text(info));
        let axes = batch_axes::batch_axes(&tensors);
        let tensors = tensors.into_iter().zip(axes);
        let batch_axes: Vec<(String, usize)> = tensors
            .clone()
            .filter(|(_, axis)| *axis > 0)
            .map(|(info, axis)| (info.name.clone(), axis))
            .collect();
        let batches: HashSet<&str> = tensors
            .clone()
            .chain(texts.iter().map(|info| (*info, 0)))
            .filter_map(|(info, axis)| name_of(info.dims()?.get(axis)?))
            .collect();
        let inputs = tensors.map(tensor_input).collect::<Result<Vec<_>, _>>()?;
        let text_inputs = texts.into_iter().map(text_input).collect::<Result<Vec<_>, _>>()?;
        let names: HashSet<&str> = self.graph.inputs.iter().map(|input| &*input.name).collect();
        let output = |info: &ValueInfoProto| output(info, &batches, names.contains(&*info.name));
        let outputs = self.graph.outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        let n_fed = inputs.len() + text_inputs.len();
        if n_fed == 0 || outputs.is_empty() {
            let what = match () {
                () if n_fed > 0 => "output",
                () if fed.is_empty() => "input",
                () => "input but single values, and so no items",
            };
            return Err(ModelError::Unsupported(format!("the model has no {what}")));
        }
        let (operators, metadata) = (operators.clone(), self.metadata.clone());
        let (ir_version, opset, made_by) = (self.ir_version, self.opset, made_by(&self.graph));
        Ok(Signature {
            inputs,
            batch_axes,
            text_inputs,
            scalars,
            outputs,
            ir_version,
            opset,
            metadata,
            made_by,
            operators,
        })
    }
}

/// For each output the operator that makes its numbers.
fn made_by(graph: &Graph) -> BTreeMap<String, String> {
    const PASS_ON: [&str; 7] =
        ["Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"];
    let mut made = HashMap::new();
    for node in &graph.nodes {
        made.extend(node.outputs.iter().map(|output| (&**output, node)));
    }
    let maker = |output: &ValueInfoProto| {
        let mut name = &*output.name;
        // A graph has no loops; a file may say anything.
        for _ in 0..MAX_PASSED_ON {
            let node = made.get(name)?;
            match &node.first_input {
                Some(from) if PASS_ON.contains(&&*node.op_type) => name = from,
                _ => return Some((output.name.clone(), node.op_type.clone())),
            }
        }
        None
    };
    graph.outputs.iter().filter_map(maker).collect()
}

fn is_text(info: &ValueInfoProto) -> bool {
    let tensor = info.kind.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    tensor.is_some_and(|tensor| tensor.elem_type == STRING)
}

fn text_input(info: &&ValueInfoProto) -> Result<TextInput, ModelError> {
    let TensorSpec { name, row, batch, .. } = input(info, DType::U8, 0)?;
    let input = TextInput { name, row, batch };
    if input.n_texts() <= TextInput::MAX_TEXTS {
        return Ok(input);
    }
    let most = TextInput::MAX_TEXTS;
    let message =
        format!("its input `{}` is {input}; at most {most} texts for each item are supported", input.name);
    Err(ModelError::Unsupported(message))
}

fn tensor_input((info, axis): (&&ValueInfoProto, usize)) -> Result<TensorSpec, ModelError> {
    input(info, dtype(info)?, axis)
}

fn scalar(info: &&ValueInfoProto) -> Result<ScalarInput, ModelError> {
    let dtype = if is_text(info) { None } else { Some(dtype(info)?) };
    Ok(ScalarInput { name: info.name.clone(), dtype })
}

/// An input whose items lie along this axis.
fn input(info: &ValueInfoProto, dtype: DType, axis: usize) -> Result<TensorSpec, ModelError> {
    check_rank("input", info, info.dims())?;
    let Some(dims) = info.dims() else {
        let message =
            format!("its input `{}` has no shape; export the model with the shapes of its inputs", info.name);
        return Err(ModelError::Unsupported(message));
    };
    let mut row: Vec<Dim> = dims.iter().map(|dim| fixed(dim).map_or(Dim::Dynamic, Dim::Fixed)).collect();
    let batch = if axis < row.len() { row.remove(axis) } else { Dim::Dynamic };
    Ok(TensorSpec { name: info.name.clone(), dtype, row, batch })
}

/// The name of a dimension that is open.
fn name_of(dim: &DimensionProto) -> Option<&str> {
    dim.dim_param.as_deref().filter(|name| !name.is_empty() && fixed(dim).is_none())
}

fn output(info: &ValueInfoProto, batches: &HashSet<&str>, is_input: bool) -> Result<ModelOutput, ModelError> {
    let kind = info.kind.as_ref();
    let tensor = kind.and_then(|kind| kind.tensor_type.as_ref());
    let holds = match tensor {
        Some(tensor) if tensor.elem_type == STRING => OutputType::Text,
        Some(tensor) => {
            let element = tensor.elem_type;
            dtype_of(element).map_or_else(|| OutputType::Other(element_name(element)), OutputType::Tensor)
        }
        None => OutputType::Other(kind.map_or("unknown", no_tensor)),
    };
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    check_rank("output", info, info.dims())?;
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

/// Element type of an input.
fn dtype(info: &ValueInfoProto) -> Result<DType, ModelError> {
    let unsupported = |found: &str| {
        let known = DType::ALL.map(DType::name).join(", ");
        let message = format!(
            "its input `{}` is of type {found}; tensors of {known} and text are supported: export the model with an input of one of these, and a `Cast` behind it",
            info.name
        );
        ModelError::Unsupported(message)
    };
    let tensor = info.kind.as_ref().and_then(|t| t.tensor_type.as_ref());
    let tensor = tensor.ok_or_else(|| unsupported("sequence, map or optional"))?;
    dtype_of(tensor.elem_type).ok_or_else(|| unsupported(element_name(tensor.elem_type)))
}

fn check_rank(what: &str, info: &ValueInfoProto, dims: Option<&[DimensionProto]>) -> Result<(), ModelError> {
    let n_dims = dims.map_or(0, <[_]>::len);
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
