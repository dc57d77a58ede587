//! What a model asks of its sessions beyond the usual. Says what is wanted; the worker knows how.

use std::path::PathBuf;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// The wishes of `[models.*]` about its sessions. The default is what every model gets that says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct SessionTuning {
    /// Whether every run gives back the memory that it leaves unused in the session's arena. Without it only warm-up does, and the first
    /// run after one that did not fit.
    pub shrink: bool,
    /// Whether the sizes that a GPU is warmed up with are recorded as CUDA graphs.
    pub cuda_graphs: bool,
    /// Whether a worker sleeps until its GPU is done, instead of asking all the time.
    pub blocking_sync: bool,
    /// Whether the rows of the next batch go to a GPU while it computes this one.
    pub overlap: bool,
    /// How cuDNN finds the kernels of a convolution.
    pub conv_search: ConvSearch,
    /// The execution provider on a GPU.
    pub provider: Provider,
    /// Whether many of its nodes may stay on the cores while the others run on a GPU.
    pub allow_cpu_nodes: bool,
}

/// How cuDNN finds the kernels of a convolution for a shape: what ONNX Runtime calls `cudnn_conv_algo_search`. With cuDNN 9 none of them runs kernels to
/// compare them; they are the modes of cuDNN's heuristics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConvSearch {
    /// Mode A.
    #[default]
    Heuristic,
    /// Mode B: more exact, and slower for each shape that is new.
    Exhaustive,
    /// A list that depends on no shape: quick for each shape that is new, and kernels may be slow. `DEFAULT` in ONNX Runtime.
    Fallback,
}

/// Which of ONNX Runtime's execution providers takes a model's nodes on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    #[default]
    Cuda,
    /// TensorRT's; what it does not take runs on CUDA.
    TensorRt(TensorRt),
}

/// How TensorRT compiles a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct TensorRt {
    /// Whether it may work in f16 where the model says f32.
    pub fp16: bool,
    /// The folder for what it has compiled of this model; `None`: it is compiled at every start.
    pub engines: Option<PathBuf>,
}
