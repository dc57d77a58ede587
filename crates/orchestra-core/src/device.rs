//! Names of devices as users write them. Knows nothing of drivers.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// Where a worker's session runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
pub enum DeviceKind {
    /// ONNX Runtime's CPU provider.
    Cpu,
    /// ONNX Runtime's CUDA provider on one GPU.
    Cuda {
        /// NVML's UUID (`GPU-…` or `MIG-…`): what `CUDA_VISIBLE_DEVICES` of the worker is set to.
        uuid: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// As the user names it and as reports show it: `cpu`, `cpu:1`, `cuda:0`.
    pub name: String,
    pub kind: DeviceKind,
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
