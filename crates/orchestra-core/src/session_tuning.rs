//! What a model asks of its sessions beyond the usual. Says what is wanted; the worker knows how.

use std::path::PathBuf;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::choices;

/// The wishes of `[models.*]` about its sessions. The default is what every model gets that says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct SessionTuning {
    /// How cuDNN finds the kernels of a convolution.
    pub conv_search: ConvSearch,
    /// The execution provider on a GPU.
    pub provider: Provider,
}

choices! {
    /// How cuDNN finds the kernels of a convolution for a shape: what ONNX Runtime calls `cudnn_conv_algo_search`. With cuDNN 9 none of them runs kernels to
    /// compare them; they are the modes A and B of cuDNN's heuristics.
    #[derive(Default, Encode, Decode, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ConvSearch {
        /// as the heuristics of cuDNN say
        #[default]
        Heuristic = "heuristic",
        /// takes longer for each shape that is new and may find faster ones
        Exhaustive = "exhaustive",
    }
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
