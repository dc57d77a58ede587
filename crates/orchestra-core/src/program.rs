//! A program that runs the batches of a stage and speaks the worker protocol itself, in whatever language. Plain data: it is started elsewhere.

use std::path::PathBuf;

use bincode::{Decode, Encode};
use serde::Serialize;

use crate::SandboxRules;

/// What to start, and what it needs. Its worker process becomes it, once it is confined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Program {
    /// The program, looked for in `PATH`, and its arguments. [`Program::TEXT`] as one of them stands for the file that holds `text`.
    pub command: Vec<String>,
    /// What the program reads as a file that lies on no disk.
    #[serde(skip)]
    pub text: String,
    /// The folder that it is started in, absolute.
    pub folder: PathBuf,
    /// Variables of the environment, besides the usual ones.
    pub env: Vec<(String, String)>,
    /// Files and folders that it reads, besides those of the system. Absolute.
    pub read: Vec<PathBuf>,
}

impl Program {
    /// The argument that stands for the file that holds [`Program::text`].
    pub const TEXT: &str = "{text}";
}

/// A program that lists the items of a source, or takes the parts of a sink. Its process speaks of rows instead of running batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptProgram {
    pub program: Program,
    /// What it may do.
    pub rules: SandboxRules,
    /// The file that people know it by.
    pub script: PathBuf,
    /// What its process is told with each part, in a form of its kind.
    pub told: String,
}
