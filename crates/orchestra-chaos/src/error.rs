//! Every way in which a trial under faults can end without an audit. It says what happened; what it means for an exit code is the command's.

use orchestra_trial::{Cause, TrialError};
use thiserror::Error;

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ChaosError {
    /// There is nothing to strike.
    #[error("the workflow has no stage of kind `infer`: it has no workers that could be killed")]
    NoInferStage,
    /// Not one of the items gets through, so nothing could be lost.
    #[error("none of the {items} items is done even without faults; the first: {first}")]
    NothingDone {
        /// How many.
        items: u64,
        /// Why the first one is not.
        first: String,
    },
    /// Before a run, or because somebody asked for it.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// A run did not come to its end.
    #[error("the run {which} ended with exit code {exit_code}: {}", problems.join("; "))]
    Run {
        /// Which run: `without faults` or `with faults`.
        which: &'static str,
        /// As of `orchestra run`.
        exit_code: i32,
        /// What the run says.
        problems: Vec<String>,
    },
}

impl ChaosError {
    /// What kind it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::NoInferStage => Cause::File,
            Self::NothingDone { .. } => Cause::Items,
            Self::Trial(error) => error.cause(),
            Self::Run { exit_code, .. } => Cause::of_exit_code(*exit_code),
        }
    }
}
