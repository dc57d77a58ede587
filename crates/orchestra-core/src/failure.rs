//! What can go wrong with an item, a worker or a run, by class. Only the class decides about retries and exit codes.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// What an error means for the code that handles it.
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

crate::named_enum! {
    /// Why an item failed. The text of `as_str` is what `failures.jsonl` calls `kind`.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum FailureKind {
        /// The file could not be opened or read.
        Read = "read",
        /// What holds the items of its source does not answer, or takes nothing from us. It fails no item: it ends the run, which can go on.
        Unreachable = "unreachable",
        /// The bytes are no picture that we can decode.
        Decode = "decode",
        /// The picture's header claims more pixels than `limits.max_pixels`.
        TooLarge = "too_large",
        /// The model reported an error for this item alone.
        Model = "model",
        /// The item killed every worker that ran it, alone and in each batch around it, and at least two.
        Crash = "crash",
        /// The same, where the last worker was killed because the item ran beyond `limits.batch_timeout`.
        Timeout = "timeout",
        /// The item does not fit into the device's memory, even alone.
        OutOfMemory = "out_of_memory",
        /// The result could not be turned into a record.
        Result = "result",
    }
}

/// The end of an item that has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Name of the stage where it ended.
    pub stage: String,
    pub kind: FailureKind,
    /// What exactly, as a lowercase fragment that names the value, what was expected and what to do.
    pub error: String,
    /// How often the item was tried at that stage, from 1.
    pub attempts: u32,
}

/// Most bytes of words that another process says of an error. They go to the log, and to a record for each item.
pub const LONGEST_WORDS: usize = 8 << 10;

/// Cuts words to [`LONGEST_WORDS`], and says so at their end.
pub fn cut_words(words: &mut String) {
    const CUT: &str = " .. (cut)";
    if words.len() > LONGEST_WORDS {
        words.truncate(words.floor_char_boundary(LONGEST_WORDS - CUT.len()));
        words.shrink_to_fit();
        words.push_str(CUT);
    }
}

/// Why a value cannot be made of an item.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, thiserror::Error)]
#[error("{error}")]
pub struct ItemError {
    pub kind: FailureKind,
    /// What exactly, as a lowercase fragment.
    pub error: String,
}

impl ItemError {
    /// A refusal of kind [`FailureKind::Result`].
    pub fn result(error: impl Into<String>) -> Self {
        Self { kind: FailureKind::Result, error: error.into() }
    }

    /// That of a stage that needs a value which the item lacks.
    pub fn missing(name: &str) -> Self {
        Self::result(format!(
            "`{name}` is missing: drop such rows with a filter, keep = \"not is_missing({name})\", or fill it in with select, `or_else({name}, ..)`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_between_characters_and_short_ones_are_left() {
        let mut words = "\u{e9}".repeat(LONGEST_WORDS);
        cut_words(&mut words);
        assert!(
            (LONGEST_WORDS - 2..=LONGEST_WORDS).contains(&words.len()) && words.ends_with("\u{e9} .. (cut)")
        );
        let mut short = "x".repeat(LONGEST_WORDS);
        cut_words(&mut short);
        assert_eq!(short, "x".repeat(LONGEST_WORDS));
    }
}
