//! A model file as it is without being loaded, and why it can be none. Reads nothing.

use std::collections::BTreeMap;
use std::io;

use orchestra_core::{Dim, TensorSpec, TextInput};
use thiserror::Error;

use crate::outputs::{ModelOutput, ReaderBatches, RowStanding, UnreadableOutput};
use crate::plan::ScalarInput;

/// A model file, read but not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// SHA-256 of the file alone.
    pub file_digest: [u8; 32],
    /// SHA-256 of the file; with external weights, over that and the names and digests of the weight files.
    pub digest: [u8; 32],
    /// Its files of external weights, by their names in the folder of the model, with the SHA-256 of each.
    pub weights: Vec<(String, [u8; 32])>,
    /// Bytes of the file and of its external weights.
    pub bytes: u64,
    /// What it takes and gives.
    pub signature: Signature,
}

/// Inputs and outputs of a model as its file states them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// What must be fed. Weights that the file lists among its inputs are left out.
    pub inputs: Vec<TensorSpec>,
    /// The axis along which items lie in an input, where that is not the first. `inputs` has the others in their order.
    pub batch_axes: Vec<(String, usize)>,
    /// What must be fed of texts.
    pub text_inputs: Vec<TextInput>,
    /// What is a single value, and so the same for all items.
    pub scalars: Vec<ScalarInput>,
    /// What comes out.
    pub outputs: Vec<ModelOutput>,
    /// Version of the ONNX file format.
    pub ir_version: i64,
    /// Version of the default operator set; 0 where the file names none.
    pub opset: i64,
    /// What those who exported it wrote into it (`metadata_props`). No more than [`MAX_METADATA`] bytes are kept.
    pub metadata: BTreeMap<String, String>,
    /// For each output the operator that makes its numbers, where the graph tells; what changes their shape or type alone is left out.
    pub made_by: BTreeMap<String, String>,
    /// How often the graph and those within it use each operator, by its name, with its domain where that is not ONNX's own.
    pub operators: BTreeMap<String, u64>,
}

/// Behind the name of an operator that works as in training.
pub(crate) const TRAINING: &str = "(training)";

impl Signature {
    /// Along which axis items lie in an input.
    pub fn batch_axis(&self, input: &str) -> usize {
        self.batch_axes.iter().find(|(name, _)| name == input).map_or(0, |(_, axis)| *axis)
    }

    /// How many items its inputs take at once.
    pub fn batch(&self) -> Dim {
        let of_texts = || self.text_inputs.first().map(|input| input.batch);
        self.inputs.first().map(|input| input.batch).or_else(of_texts).unwrap_or(Dim::Dynamic)
    }

    /// The outputs that are tensors, as they seem to be by their declaration: with the batch as the first dimension. A dimension that the
    /// file does not state is `Dynamic`; an output of unknown rank has the row `[?]`.
    pub fn output_tensors(&self) -> Vec<TensorSpec> {
        let batch = self.batch();
        self.outputs.iter().filter_map(|output| output.tensor(batch)).collect()
    }

    /// Whether each output has a row for each item, by what the file says of it; or why no stage can read it.
    pub fn readable_outputs(&self) -> Vec<Result<bool, UnreadableOutput>> {
        let batch = self.batch();
        let batches =
            ReaderBatches { fixed: batch.fixed(), is_single: false, size_limit: None, fixes_open: false };
        let read = |output: &ModelOutput| {
            let read = output.stage_output(batch, batches, Err(None), self.has_zip_map())?;
            Ok(!matches!(read.standing, RowStanding::NoRows(_)))
        };
        self.outputs.iter().map(read).collect()
    }

    /// The classifier of a table gives a list of maps in place of a tensor.
    pub(crate) fn has_zip_map(&self) -> bool {
        self.operators.contains_key("ai.onnx.ml.ZipMap")
    }

    /// An operator that works as in training: it takes the batch for the world, and changes what it knows of it from run to run.
    pub fn training(&self) -> Option<&str> {
        self.operators.keys().find_map(|name| name.strip_suffix(TRAINING)).map(str::trim_end)
    }
}

/// Bytes of metadata of a model that are kept: class names and settings take kilobytes.
pub const MAX_METADATA: usize = 4 << 20;

/// Why a model cannot be planned with. Each completes "model `name`: ".
#[derive(Debug, Error)]
pub enum ModelError {
    /// No such file.
    #[error("the file does not exist")]
    Missing,
    /// It cannot be opened or read.
    #[error("the file cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is something else.
    #[error("the file is no ONNX model: {0}")]
    NotOnnx(String),
    /// It ends too early.
    #[error("the file is cut short: it ends inside a field, after {0} bytes")]
    Truncated(u64),
    /// A tensor that cannot be fed or taken.
    #[error("{0}")]
    Unsupported(String),
    /// A file of external weights is missing or unreadable.
    #[error("its weights `{file}` cannot be read: {reason}")]
    Weights {
        /// As the model names it, relative to the model's folder.
        file: String,
        reason: String,
    },
}
