//! What runs in worker processes: a batch stage, its model, the devices and the workers on them.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::data::Column;
use orchestra_core::iteration::LoopInput;
use orchestra_core::{
    Code, DType, DeviceId, DeviceSpec, InputConstant, Iteration, ModelId, ReadOutput, SandboxRules,
    SessionTuning, TensorSpec, TextInput, Trim,
};
use serde::Serialize;

use super::ColumnRef;
use crate::{iteration, settings};

/// A model file and what is known of it without loading it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModelPlan {
    pub name: String,
    /// The file, absolute.
    pub path: PathBuf,
    /// SHA-256 of the file; with external weights, over that and the names and digests of the weight files.
    pub digest: [u8; 32],
    /// SHA-256 of the file alone: what a worker compares before it loads it.
    pub file_digest: [u8; 32],
    /// Its files of external weights, absolute, with the SHA-256 of each: compared, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<(PathBuf, [u8; 32])>,
    /// Inputs, from the file.
    pub inputs: Vec<TensorSpec>,
    /// Inputs that take texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub text_inputs: Vec<TextInput>,
    /// Inputs that are a single value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scalars: Vec<ScalarInput>,
    /// The axis along which items lie in an input, where that is not the first. `inputs` has the others in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batch_axes: Vec<(String, usize)>,
    /// Outputs that are tensors, as the file declares them. Dimensions that it does not state are `Dynamic`.
    pub outputs: Vec<TensorSpec>,
    /// Custom operator libraries, absolute, with the SHA-256 of each: a worker compares it before it loads one.
    pub custom_ops: Vec<(PathBuf, [u8; 32])>,
    /// Ceiling of the provider's memory arena in bytes.
    pub memory_limit: Option<u64>,
    /// Device memory of one worker in bytes, where the file declares it.
    pub memory: Option<u64>,
    /// Whether f32 products may be rounded to TF32 on a GPU.
    pub tf32: bool,
    /// What else it asks of its sessions.
    pub tuning: SessionTuning,
    /// What its workers may do.
    pub sandbox: SandboxRules,
    /// What is run instead of a model file; `path` is then its script, executable or source.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

impl ModelPlan {
    /// What messages call it: ``model `digits` ``, or what is run instead.
    pub fn in_words(&self) -> String {
        let what = match self.code {
            None => "model",
            Some(Code::Program(_)) => "script",
            Some(Code::Kernel(_)) => "kernel",
        };
        // Behind the stage that runs it.
        let name = self.name.rsplit('/').next().filter(|_| self.code.is_some());
        format!("{what} `{}`", name.unwrap_or(&self.name))
    }

    pub fn all_inputs(&self) -> impl Iterator<Item = &str> + Clone {
        self.input_names().chain(self.scalars.iter().map(|input| &*input.name))
    }

    /// Along which axis items lie in an input.
    pub fn batch_axis(&self, input: &str) -> usize {
        self.batch_axes.iter().find(|(name, _)| name == input).map_or(0, |(_, axis)| *axis)
    }

    /// Those of these inputs whose items do not lie along the first axis, and the axis.
    pub fn turned_inputs<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a TensorSpec>,
    ) -> Vec<(TensorSpec, usize)> {
        let turned = inputs.into_iter().map(|input| (input, self.batch_axis(&input.name)));
        turned.filter(|(_, axis)| *axis > 0).map(|(input, axis)| (input.clone(), axis)).collect()
    }

    /// Names of all that rows can feed.
    pub fn input_names(&self) -> impl Iterator<Item = &str> + Clone {
        let texts = self.text_inputs.iter().map(|input| &*input.name);
        self.inputs.iter().map(|input| &*input.name).chain(texts)
    }
}

/// An input without a dimension, which only a constant can feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScalarInput {
    pub name: String,
    /// `None`: it is a text.
    pub dtype: Option<DType>,
}

/// Inputs of texts that are no constants.
pub fn fed_texts<'a>(
    inputs: &'a [TextInput],
    constants: &'a [InputConstant],
) -> impl Iterator<Item = &'a TextInput> {
    inputs.iter().filter(|input| constants.iter().all(|constant| constant.input != input.name))
}

settings! {
    /// `recycle` of a model or of a stage that runs a program: when a healthy worker is replaced.
    #[derive(Debug, Clone, Copy, Default, Serialize)]
    pub struct Recycle {
        /// after so many batches
        #[range(1, u64::MAX >> 1)]
        batches: Option<u64>,
        /// when its memory has grown by so much since its first batch
        #[serde(rename = "growth_bytes")]
        growth: Option<NonZeroU64>,
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct BatchPlan {
    pub model: ModelId,
    /// Columns of what comes before: those that the program or model takes beside its slots, and those that stages behind it still read.
    #[serde(rename = "carries")]
    pub passthrough_columns: Vec<ColumnRef>,
    /// The inputs of the model that are the same for all items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub constants: Vec<InputConstant>,
    /// What the program or model calls the first of these, and what they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Column>,
    /// Largest batch that the model runs, at least 1.
    pub max_batch: usize,
    /// Where batches grow up to that: how many rows the first ones have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grows_from: Option<usize>,
    /// The only batch size the model accepts, if it has one (then equal to `max_batch`): smaller batches are padded.
    pub fixed_batch: Option<usize>,
    /// How long the oldest item waits for the batch to fill.
    pub wait: Duration,
    /// The batch size that a worker on a GPU runs once before it is ready, and that smaller batches are padded to; `None` on the CPU.
    pub padded_to: Option<usize>,
    pub workers: Vec<WorkerPlan>,
    /// Batches that each worker runs at once, at least 1.
    pub streams: usize,
    /// Batches that wait at each worker beyond those, at least 1.
    pub ready: usize,
    /// Share of a device's workers relative to other stages on it; 1 to 100.
    pub priority: u32,
    /// When a worker is replaced although nothing failed.
    pub recycle: Recycle,
    pub outputs: Vec<ReadOutput>,
    /// How the model runs on its own outputs, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<Iteration>,
    /// The inputs of the loop that lie in no slot. The first `values` are what it steps through.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loop_inputs: Vec<LoopInput>,
    /// Whether the program may drop rows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drops: bool,
    /// The input of which the model computes no more than pictures fill. The layout then has an input more, where the picture of a row lies, and
    /// all rows of a slot are trimmed alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trim: Option<Trim>,
    /// The most that a batch may have of outputs of open shape, in bytes. They travel in frames, and are in no slot.
    #[serde(skip)]
    pub answer_bytes: usize,
    /// What all rows together may carry to and past the stage, but for pictures, in bytes.
    #[serde(skip)]
    pub carried_bytes: usize,
    /// Where rows lie, and how many slots there are.
    #[serde(skip)]
    pub layout: BatchLayout,
}

impl BatchPlan {
    /// The most rows of a batch before it is known that more are quick.
    pub fn first_batch(&self) -> usize {
        self.grows_from.map_or(self.max_batch, |first| first.min(self.max_batch))
    }

    /// The most slots that all workers together hold, running or ready.
    pub fn held_by_workers(&self) -> usize {
        let workers: usize = self.workers.iter().map(WorkerPlan::most).sum();
        workers * (self.streams + self.ready)
    }

    /// The inputs of texts that rows feed.
    pub fn text_inputs<'a>(&'a self, model: &'a ModelPlan) -> impl Iterator<Item = &'a TextInput> {
        fed_texts(&model.text_inputs, &self.constants)
    }

    /// The loop of the stage as its program is told of it: `{"rounds", "feed": [[input, output]], "until": [output, number, or equal]}`.
    pub fn told_loop(&self) -> Option<serde_json::Value> {
        self.iteration.as_ref().map(|iteration| iteration::settings(iteration, self))
    }

    /// The inputs of numbers that rows or loops feed, as they lie in slots or beside them.
    pub fn model_inputs(&self) -> impl Iterator<Item = &TensorSpec> {
        let in_slots = self.layout.inputs.iter().map(|span| &span.tensor);
        in_slots.chain(self.loop_inputs.iter().map(|input| &input.tensor))
    }

    /// What it takes, by the names of the model or program: what lies in slots, then what does not.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        let in_slots = self.layout.inputs.iter().map(|span| &*span.tensor.name);
        let values = self.values.iter().filter(|_| self.loop_inputs.is_empty()).map(|column| &*column.name);
        in_slots.chain(values).chain(self.loop_inputs.iter().map(|input| &*input.tensor.name))
    }

    /// How many answers of outputs of open shape the run may hold at once, at most: of all batches that are with workers, one that each worker is just sending,
    /// and one that waits to be worked on. `None`: there are none.
    pub(crate) fn open_answers(&self) -> Option<usize> {
        let workers: usize = self.workers.iter().map(WorkerPlan::most).sum();
        self.layout.outputs.contains(&None).then_some(self.held_by_workers() + workers + 1)
    }
}

/// Workers of one batch stage on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WorkerPlan {
    /// The device, by its place in the plan.
    pub device: DeviceId,
    /// How many processes the run starts with.
    pub count: usize,
    /// How many it may become in the run, once it is known what one takes of the GPU, or where it has work for more cores; `None`: it stays as it is.
    pub growth: Option<WorkerGrowth>,
    /// Intra-op threads of each, shared by the batches that it runs at once.
    pub threads: usize,
    /// Device memory of each in bytes, where the file declares it.
    pub memory: Option<u64>,
}

impl WorkerPlan {
    /// How many processes there may be.
    pub fn most(&self) -> usize {
        self.growth.map_or(self.count, |growth| growth.most)
    }
}

/// How far the workers of a stage may grow within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WorkerGrowth {
    /// No more than this, more than there are at first.
    pub most: usize,
    /// The file asks for that number: it is believed where nothing can be measured.
    pub is_asked: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct DevicePlan {
    /// Name and kind.
    pub spec: DeviceSpec,
    /// The product, where known; may be empty.
    pub product: String,
    /// Memory in bytes and what of it is free, where known.
    pub memory: Option<DeviceMemory>,
    /// Cores that its workers share; of a GPU none.
    pub cores: usize,
    /// Where its workers are kept, on a machine with several NUMA nodes.
    #[serde(rename = "near")]
    pub cpu_affinity: Option<NodeCores>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeCores {
    /// The kernel's number for the node.
    pub node: u32,
    /// Its cores that this process may use.
    pub cores: Vec<u32>,
}

/// Memory of a device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    pub total: u64,
    /// Bytes that were free when the plan was made.
    pub free: u64,
    /// What the plan leaves unused (`devices.headroom`).
    pub headroom: u64,
    /// What more than one worker of each model leaves to commands with a share of it.
    pub of_shares: u64,
}
