//! What a model asks of its sessions beyond the usual. Says what is wanted; the worker knows how.

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
}
