//! Builds ONNX files node by node. Checks nothing: a wrong model is a useful test, too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use orchestra_core::onnx_file::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, STRING,
    StringStringEntryProto, TensorProto, ValueInfoProto, element_type,
};
use orchestra_core::{DType, Dim, TensorSpec, TextInput};
use prost::Message as _;

/// Version of the file format that is written.
pub const IR_VERSION: i64 = 8;
/// Version of ONNX's own operators.
pub const OPSET: i64 = 17;

#[derive(Debug, Clone)]
pub enum Attribute {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
}

#[derive(Debug, Clone, Default)]
pub struct ModelBuilder {
    graph: GraphProto,
    custom_domains: Vec<String>,
    metadata: Vec<StringStringEntryProto>,
}

impl ModelBuilder {
    pub fn new(name: &str) -> Self {
        Self { graph: GraphProto { name: name.to_owned(), ..GraphProto::default() }, ..Self::default() }
    }

    /// Adds an input; its first dimension is the batch's.
    pub fn input(mut self, spec: &TensorSpec) -> Self {
        self.graph.input.push(value_info(spec));
        self
    }

    /// An input whose items lie along this axis.
    pub fn input_along(mut self, axis: usize, spec: &TensorSpec) -> Self {
        let mut info = value_info(spec);
        let tensor = info.kind.as_mut().and_then(|kind| kind.tensor_type.as_mut());
        if let Some(shape) = tensor.and_then(|tensor| tensor.shape.as_mut()) {
            let batch = shape.dim.remove(0);
            shape.dim.insert(axis, batch);
        }
        self.graph.input.push(info);
        self
    }

    /// An input that is a single value.
    pub fn scalar_input(mut self, name: &str, dtype: DType) -> Self {
        self.graph.input.push(ValueInfoProto::tensor(name, element_type(dtype), Some(Vec::new())));
        self
    }

    /// Declares inputs and outputs as bfloat16, which no [`DType`] is.
    pub fn bfloat16(mut self, names: &[&str]) -> Self {
        let infos = self.graph.input.iter_mut().chain(&mut self.graph.output);
        for info in infos.filter(|info| names.contains(&&*info.name)) {
            if let Some(tensor) = info.kind.as_mut().and_then(|kind| kind.tensor_type.as_mut()) {
                tensor.elem_type = 16;
            }
        }
        self
    }

    pub fn text_input(mut self, input: &TextInput) -> Self {
        self.graph.input.push(texts_info(input));
        self
    }

    /// Adds an output; its first dimension is the batch's.
    pub fn output(mut self, spec: &TensorSpec) -> Self {
        self.graph.output.push(value_info(spec));
        self
    }

    /// Adds an output of texts, which has this name and shape.
    pub fn text_output(mut self, like: &TextInput) -> Self {
        self.graph.output.push(texts_info(like));
        self
    }

    /// Adds a constant f32 tensor.
    pub fn constant(mut self, name: &str, shape: &[usize], elements: &[f32]) -> Self {
        let name = name.to_owned();
        self.graph.initializer.push(TensorProto { name, ..TensorProto::f32s(shape, elements) });
        self
    }

    /// Adds a constant f32 tensor whose elements are all that a file beside the model holds.
    pub fn external(mut self, name: &str, shape: &[usize], file: &str) -> Self {
        self.graph.initializer.push(TensorProto {
            dims: shape.iter().map(|d| *d as i64).collect(),
            data_type: element_type(DType::F32),
            name: name.to_owned(),
            external_data: vec![StringStringEntryProto {
                key: "location".to_owned(),
                value: file.to_owned(),
            }],
            data_location: 1,
            ..TensorProto::default()
        });
        self
    }

    /// Adds a node of ONNX's own operators.
    pub fn node(self, op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attribute)]) -> Self {
        self.node_of("", op, inputs, outputs, attributes)
    }

    /// Adds a node of an operator of `domain`, version 1.
    pub fn node_of(
        mut self,
        domain: &str,
        op: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, Attribute)],
    ) -> Self {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        self.graph.node.push(NodeProto {
            input: owned(inputs),
            output: owned(outputs),
            name: format!("{op}_{}", self.graph.node.len()),
            op_type: op.to_owned(),
            attribute: attributes.iter().map(|(name, a)| attribute(name, a)).collect(),
            domain: domain.to_owned(),
        });
        if !domain.is_empty() && !self.custom_domains.iter().any(|d| d == domain) {
            self.custom_domains.push(domain.to_owned());
        }
        self
    }

    /// Adds an entry of the metadata.
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.push(StringStringEntryProto { key: key.to_owned(), value: value.to_owned() });
        self
    }

    pub fn encode(&self) -> Vec<u8> {
        let own = OperatorSetIdProto { domain: String::new(), version: OPSET };
        let custom = self.custom_domains.iter().map(|d| OperatorSetIdProto { domain: d.clone(), version: 1 });
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "orchestra-testkit".to_owned(),
            graph: Some(self.graph.clone()),
            opset_import: std::iter::once(own).chain(custom).collect(),
            metadata_props: self.metadata.clone(),
        };
        model.encode_to_vec()
    }

    /// Writes `<name>.onnx` into `folder` and gives its path.
    pub fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(format!("{}.onnx", self.graph.name));
        fs::write(&path, self.encode()).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(path)
    }
}

fn value_info(spec: &TensorSpec) -> ValueInfoProto {
    info(&spec.name, element_type(spec.dtype), spec.batch, &spec.row)
}

fn texts_info(of: &TextInput) -> ValueInfoProto {
    info(&of.name, STRING, of.batch, &of.row)
}

fn info(name: &str, elements: i32, batch: Dim, row: &[Dim]) -> ValueInfoProto {
    let dim = |(i, dim): (usize, Dim)| match dim {
        Dim::Fixed(n) => DimensionProto::fixed(n),
        Dim::Dynamic if i == 0 => DimensionProto::named("batch"),
        Dim::Dynamic => DimensionProto::named(&format!("{name}_{i}")),
    };
    let dims = std::iter::once(batch).chain(row.iter().copied()).enumerate().map(dim);
    ValueInfoProto::tensor(name, elements, Some(dims.collect()))
}

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    match value {
        Attribute::Int(i) => AttributeProto::int(name, *i),
        Attribute::Ints(ints) => AttributeProto::ints(name, ints),
        Attribute::Float(f) => AttributeProto::float(name, *f),
    }
}
