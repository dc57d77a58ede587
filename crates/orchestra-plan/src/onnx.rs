//! What an ONNX file says about itself: inputs, outputs, versions, digest. Loads no weights and no ONNX Runtime.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, BufReader, Read};
use std::path::{Component, Path};

use orchestra_core::{DType, Dim, TensorSpec};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::host::{ModelError, ModelFile, Signature, digest_file, open_regular};
use crate::protobuf::{FieldValue, ScanError, Scanner};

/// Longest name, shape or similar that is believed.
const SMALL: u64 = 1 << 20;
/// Dimensions of a tensor. Records hold lists within lists, one for each.
const MAX_DIMS: usize = 64;
/// Subgraphs within subgraphs that are followed.
const MAX_DEPTH: usize = 32;

// Field numbers of onnx.proto3.
mod number {
    pub const MODEL_IR_VERSION: u32 = 1;
    pub const MODEL_GRAPH: u32 = 7;
    pub const MODEL_OPSET: u32 = 8;
    pub const GRAPH_NODE: u32 = 1;
    pub const GRAPH_INITIALIZER: u32 = 5;
    pub const GRAPH_INPUT: u32 = 11;
    pub const GRAPH_OUTPUT: u32 = 12;
    pub const GRAPH_SPARSE: u32 = 15;
    pub const NODE_ATTRIBUTE: u32 = 5;
    pub const ATTRIBUTE_TENSOR: u32 = 5;
    pub const ATTRIBUTE_GRAPH: u32 = 6;
    pub const ATTRIBUTE_TENSORS: u32 = 10;
    pub const ATTRIBUTE_GRAPHS: u32 = 11;
    pub const SPARSE_VALUES: u32 = 1;
    pub const TENSOR_NAME: u32 = 8;
    pub const TENSOR_EXTERNAL: u32 = 13;
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    kind: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

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

/// Reads the model file at `path` as a stream, in memory that does not depend on its size.
///
/// # Errors
/// See [`ModelError`].
pub fn read_model(path: &Path) -> Result<ModelFile, ModelError> {
    let file = open_regular(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ModelError::Missing,
        _ => ModelError::Unreadable(e),
    })?;
    let meta = file.metadata().map_err(ModelError::Unreadable)?;
    if meta.is_dir() {
        return Err(ModelError::NotOnnx("it is a folder".into()));
    }
    let (found, digest) = scan(file)?;
    let signature = found.signature()?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let file_digest = digest;
    let digest = with_weights(digest, &found.weights, folder)?;
    let weights = found.weights.iter().filter_map(|name| folder.join(name).metadata().ok());
    let bytes = weights.fold(meta.len(), |sum, weights| sum.saturating_add(weights.len()));
    Ok(ModelFile { digest, file_digest, bytes, signature })
}

/// Folds the files of external weights into the digest.
fn with_weights(digest: [u8; 32], weights: &BTreeSet<String>, folder: &Path) -> Result<[u8; 32], ModelError> {
    if weights.is_empty() {
        return Ok(digest);
    }
    let mut all = Sha256::new_with_prefix(digest);
    for name in weights {
        let error = |reason: String| ModelError::Weights { file: name.clone(), reason };
        if Path::new(name).components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(error("it lies outside the folder of the model".into()));
        }
        let weights = digest_file(&folder.join(name)).map_err(|e| error(e.to_string()))?;
        all.update((name.len() as u64).to_le_bytes());
        all.update(name);
        all.update(weights);
    }
    Ok(all.finalize().into())
}

#[derive(Default)]
struct Found {
    has_graph: bool,
    ir_version: i64,
    opset: i64,
    inputs: Vec<ValueInfo>,
    outputs: Vec<ValueInfo>,
    initializers: HashSet<String>,
    /// Names of files with external weights.
    weights: BTreeSet<String>,
}

fn scan(input: impl Read) -> Result<(Found, [u8; 32]), ModelError> {
    let mut hashing = Hashing { input, hash: Sha256::new(), start: Vec::new(), bytes: 0 };
    let mut found = Found::default();
    let result = found.model(&mut Scanner::new(BufReader::with_capacity(1 << 16, &mut hashing)));
    let (start, bytes) = (hashing.start, hashing.bytes);
    match result {
        Ok(()) if found.has_graph => Ok((found, hashing.hash.finalize().into())),
        _ if start.is_empty() => Err(ModelError::NotOnnx("it is empty".into())),
        _ if start.starts_with(b"version https://git-lfs") => {
            Err(ModelError::NotOnnx("it is a Git LFS pointer; fetch it with `git lfs pull`".into()))
        }
        Err(ScanError::Io(e)) => Err(ModelError::Unreadable(e)),
        // A model starts with its `ir_version`; text or a picture does not.
        Err(ScanError::Truncated) if start[0] == 0x08 || found.has_graph => Err(ModelError::Truncated(bytes)),
        Err(ScanError::Malformed(reason)) => Err(ModelError::NotOnnx(reason)),
        Ok(()) | Err(ScanError::Truncated) => Err(ModelError::NotOnnx("it holds no graph".into())),
    }
}

/// Digests what is read through it, and keeps the first bytes.
struct Hashing<R> {
    input: R,
    hash: Sha256,
    start: Vec<u8>,
    bytes: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        if self.start.len() < 64 {
            self.start.extend_from_slice(&buffer[..n.min(64)]);
        }
        Ok(n)
    }
}

impl Found {
    fn model<R: Read>(&mut self, s: &mut Scanner<R>) -> Result<(), ScanError> {
        while let Some((n, value)) = s.field(u64::MAX)? {
            match (n, value) {
                (number::MODEL_IR_VERSION, FieldValue::Varint(v)) => self.ir_version = v.cast_signed(),
                (number::MODEL_GRAPH, FieldValue::Bytes { end }) => {
                    self.has_graph = true;
                    self.graph(s, end, 0)?;
                }
                (number::MODEL_OPSET, FieldValue::Bytes { end }) => {
                    let set: OperatorSet = decode(&s.bytes(end, SMALL)?)?;
                    if set.domain.is_empty() || set.domain == "ai.onnx" {
                        self.opset = set.version;
                    }
                }
                (_, value) => s.skip(value)?,
            }
        }
        Ok(())
    }

    fn graph<R: Read>(&mut self, s: &mut Scanner<R>, end: u64, depth: usize) -> Result<(), ScanError> {
        if depth > MAX_DEPTH {
            return Err(ScanError::Malformed("graphs within graphs without end".into()));
        }
        while let Some((n, value)) = s.field(end)? {
            let FieldValue::Bytes { end } = value else { continue };
            match n {
                number::GRAPH_NODE => self.node(s, end, depth)?,
                number::GRAPH_INITIALIZER => {
                    let name = self.tensor(s, end)?;
                    // The weights of a subgraph are its own affair.
                    if depth == 0 {
                        self.initializers.insert(name);
                    }
                }
                number::GRAPH_SPARSE => {
                    while let Some((n, value)) = s.field(end)? {
                        match (n, value) {
                            (number::SPARSE_VALUES, FieldValue::Bytes { end }) => {
                                let name = self.tensor(s, end)?;
                                self.initializers.insert(name);
                            }
                            (_, value) => s.skip(value)?,
                        }
                    }
                }
                number::GRAPH_INPUT if depth == 0 => self.inputs.push(decode(&s.bytes(end, SMALL)?)?),
                number::GRAPH_OUTPUT if depth == 0 => self.outputs.push(decode(&s.bytes(end, SMALL)?)?),
                _ => s.skip(value)?,
            }
        }
        Ok(())
    }

    fn node<R: Read>(&mut self, s: &mut Scanner<R>, end: u64, depth: usize) -> Result<(), ScanError> {
        while let Some((n, value)) = s.field(end)? {
            let (number::NODE_ATTRIBUTE, FieldValue::Bytes { end }) = (n, value) else {
                s.skip(value)?;
                continue;
            };
            while let Some((n, value)) = s.field(end)? {
                match (n, value) {
                    (number::ATTRIBUTE_TENSOR | number::ATTRIBUTE_TENSORS, FieldValue::Bytes { end }) => {
                        self.tensor(s, end)?;
                    }
                    (number::ATTRIBUTE_GRAPH | number::ATTRIBUTE_GRAPHS, FieldValue::Bytes { end }) => {
                        self.graph(s, end, depth + 1)?;
                    }
                    (_, value) => s.skip(value)?,
                }
            }
        }
        Ok(())
    }

    /// Gives the name of a tensor, and notes where its data lie when that is in another file.
    fn tensor<R: Read>(&mut self, s: &mut Scanner<R>, end: u64) -> Result<String, ScanError> {
        let mut name = String::new();
        while let Some((n, value)) = s.field(end)? {
            match (n, value) {
                (number::TENSOR_NAME, FieldValue::Bytes { end }) => {
                    name = String::from_utf8_lossy(&s.bytes(end, SMALL)?).into_owned();
                }
                (number::TENSOR_EXTERNAL, FieldValue::Bytes { end }) => {
                    let entry: KeyValue = decode(&s.bytes(end, SMALL)?)?;
                    if entry.key == "location" {
                        self.weights.insert(entry.value);
                    }
                }
                (_, value) => s.skip(value)?,
            }
        }
        Ok(name)
    }

    fn signature(&self) -> Result<Signature, ModelError> {
        let inputs = self.inputs.iter().filter(|i| !self.initializers.contains(&i.name));
        let inputs = inputs.map(input).collect::<Result<Vec<_>, _>>()?;
        let outputs = self.outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        if inputs.is_empty() || outputs.is_empty() {
            let what = if inputs.is_empty() { "input" } else { "output" };
            return Err(ModelError::Unsupported(format!("the model has no {what}")));
        }
        Ok(Signature { inputs, outputs, ir_version: self.ir_version, opset: self.opset })
    }
}

fn input(info: &ValueInfo) -> Result<TensorSpec, ModelError> {
    let (dtype, shape) = tensor_type("input", info)?;
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

fn output(info: &ValueInfo) -> Result<TensorSpec, ModelError> {
    let (dtype, shape) = tensor_type("output", info)?;
    let Some(shape) = shape else {
        let name = info.name.clone();
        return Ok(TensorSpec { name, dtype, row: vec![Dim::Dynamic], batch: Dim::Dynamic });
    };
    row(info, dtype, &shape).ok_or_else(|| {
        let message =
            format!("its output `{}` is one value for a whole batch; remove it from the model", info.name);
        ModelError::Unsupported(message)
    })
}

fn row(info: &ValueInfo, dtype: DType, shape: &Shape) -> Option<TensorSpec> {
    // Some exporters write 0 or -1 for a dimension that is open.
    let dim = |d: &Dimension| match d.value.and_then(|n| usize::try_from(n).ok()) {
        Some(n) if n > 0 => Dim::Fixed(n),
        _ => Dim::Dynamic,
    };
    let (batch, row) = shape.dims.split_first()?;
    Some(TensorSpec { name: info.name.clone(), dtype, row: row.iter().map(dim).collect(), batch: dim(batch) })
}

fn tensor_type(what: &str, info: &ValueInfo) -> Result<(DType, Option<Shape>), ModelError> {
    let unsupported = |found: &str| {
        let known = DType::ALL.map(DType::name).join(", ");
        let message =
            format!("its {what} `{}` is of type {found}; tensors of {known} are supported", info.name);
        ModelError::Unsupported(message)
    };
    let tensor = info.kind.as_ref().and_then(|t| t.tensor.as_ref());
    let tensor = tensor.ok_or_else(|| unsupported("sequence, map or optional"))?;
    let dtype = match tensor.element {
        1 => DType::F32,
        2 => DType::U8,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        other => return Err(unsupported(element_name(other))),
    };
    let n_dims = tensor.shape.as_ref().map_or(0, |s| s.dims.len());
    if n_dims > MAX_DIMS {
        let message =
            format!("its {what} `{}` has {n_dims} dimensions; at most {MAX_DIMS} are supported", info.name);
        return Err(ModelError::Unsupported(message));
    }
    Ok((dtype, tensor.shape.clone()))
}

fn element_name(element: i32) -> &'static str {
    match element {
        3 => "int8",
        4 => "uint16",
        5 => "int16",
        8 => "string",
        11 => "double",
        12 => "uint32",
        13 => "uint64",
        14 | 15 => "complex",
        16 => "bfloat16",
        17..=20 => "float8",
        21 | 22 => "4-bit integer",
        _ => "unknown",
    }
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, ScanError> {
    M::decode(bytes).map_err(|e| ScanError::Malformed(e.to_string()))
}

#[cfg(test)]
mod tests;
