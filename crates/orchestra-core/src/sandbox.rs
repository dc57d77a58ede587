//! Whether workers are confined to what their work needs. It confines nothing itself.

use std::path::PathBuf;

use bincode::{Decode, Encode};
use serde::Serialize;

use crate::choices;

choices! {
    /// Whether a process gives up what its work does not need before it reads what others made.
    #[derive(Default, Encode, Decode, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum SandboxMode {
        /// they are not
        Off = "off",
        /// as far as the kernel can
        #[default]
        Auto = "auto",
        /// or they do not start
        Require = "require",
    }
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
