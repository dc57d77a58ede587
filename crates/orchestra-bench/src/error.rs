//! Every way in which a measurement can end without a result. It says what happened; what it means for an exit code is the command's.

use orchestra_trial::{Cause, TrialError};
use thiserror::Error;

/// Why there are no figures.
#[derive(Debug, Error)]
pub enum BenchError {
    /// There is nothing to measure.
    #[error(
        "the workflow has no stage of kind `infer`: there is no model to measure; `orchestra run` runs it all the same"
    )]
    NoInferStage,
    /// Not one of the items can be used.
    #[error("none of the {tried} items that were tried can be read and decoded; the first: {first}")]
    NothingDecodes {
        /// How many.
        tried: usize,
        /// Why the first one cannot.
        first: String,
    },
    /// A worker cannot serve.
    #[error("a worker of stage `{stage}` on {device} {what}")]
    Worker {
        /// Which stage.
        stage: String,
        /// Where.
        device: String,
        /// What happened, as the rest of the sentence.
        what: String,
    },
    /// Before a run, or because somebody asked for it.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// The measured run did not end well.
    #[error("the measured run ended with exit code {exit_code}: {}", problems.join("; "))]
    Run {
        /// As of `orchestra run`.
        exit_code: i32,
        /// What the run says.
        problems: Vec<String>,
    },
    /// A part that was measured in a process of its own gave no figures.
    #[error("{said}")]
    Part {
        /// What kind of error it is.
        cause: Cause,
        /// What that process said last, or how it ended.
        said: String,
    },
    /// A bug of ours.
    #[error("internal error: {0}; please report it")]
    Bug(String),
}

impl BenchError {
    pub(crate) fn cancelled() -> Self {
        Self::Trial(TrialError::Cancelled)
    }

    /// What kind it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::Trial(error) => error.cause(),
            Self::NoInferStage => Cause::File,
            Self::NothingDecodes { .. } => Cause::Items,
            Self::Worker { .. } => Cause::Unavailable,
            Self::Part { cause, .. } => *cause,
            Self::Bug(_) => Cause::Bug,
            Self::Run { exit_code, .. } => Cause::of_exit_code(*exit_code),
        }
    }
}
