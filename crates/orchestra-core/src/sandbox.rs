//! Whether workers are confined to what their work needs. It confines nothing itself.

use std::path::PathBuf;

use bincode::{Decode, Encode};
use serde::Serialize;

/// Whether a process gives up what its work does not need before it reads what others made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// It keeps all that its user may do.
    Off,
    /// As far as the kernel can.
    #[default]
    Auto,
    /// Or it does not start.
    Require,
}

/// What the workers of a model may do beyond what their engine needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct SandboxRules {
    /// Whether they are confined.
    pub mode: SandboxMode,
    /// Files and folders that they may read, absolute.
    pub read: Vec<PathBuf>,
    /// Files and folders that they may read and write, absolute.
    pub write: Vec<PathBuf>,
    /// Variables of the environment that they get besides the usual ones.
    pub env: Vec<String>,
}
