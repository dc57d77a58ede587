//! What can go wrong with an item, a worker or a run, by class. Only the class decides about retries and exit codes.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// What an error means for whoever handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorClass {
    /// The item (or the file) is at fault: never retried.
    Input,
    /// Another attempt may succeed.
    Transient,
    /// Another attempt on this device cannot succeed.
    Permanent,
    /// Too much at once (memory, queue): try less.
    Overload,
    /// The run is ending.
    Shutdown,
}

/// Why an item failed. The text of `as_str` is what `failures.jsonl` calls `kind`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The file could not be opened or read.
    Read,
    /// The bytes are no picture that we can decode.
    Decode,
    /// The picture's header claims more pixels than `limits.max_pixels`.
    TooLarge,
    /// The model reported an error for this item alone.
    Model,
    /// The item killed every worker that ran it, alone and in each batch around it, and at least two.
    Crash,
    /// The same, where the last worker was killed because the item ran beyond `limits.batch_timeout`.
    Timeout,
    /// The item does not fit into the device's memory, even alone.
    OutOfMemory,
    /// The result could not be turned into a record.
    Result,
}

impl FailureKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [FailureKind; 8] = [
        FailureKind::Read,
        FailureKind::Decode,
        FailureKind::TooLarge,
        FailureKind::Model,
        FailureKind::Crash,
        FailureKind::Timeout,
        FailureKind::OutOfMemory,
        FailureKind::Result,
    ];

    /// The name in `failures.jsonl`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FailureKind::Read => "read",
            FailureKind::Decode => "decode",
            FailureKind::TooLarge => "too_large",
            FailureKind::Model => "model",
            FailureKind::Crash => "crash",
            FailureKind::Timeout => "timeout",
            FailureKind::OutOfMemory => "out_of_memory",
            FailureKind::Result => "result",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The end of an item that has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Name of the stage where it ended.
    pub stage: String,
    /// Why.
    pub kind: FailureKind,
    /// What exactly, as a lowercase fragment that names the value, what was expected and what to do.
    pub error: String,
    /// How often the item was tried at that stage, from 1.
    pub attempts: u32,
}
