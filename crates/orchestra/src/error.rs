//! Why something does not start, and why a request has no answer. Each error has a class, so that a service can say what it means.

use std::error::Error;
use std::fmt;

use orchestra_core::{Failure, FailureKind};
use orchestra_launch::LibraryError;
use orchestra_runtime::{ProcessError, StartFlowError, StartRunError};
use thiserror::Error;

use crate::workflow::WorkflowError;

/// Why a run, a model or a flow did not start. Nothing runs then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The workflow is wrong, or names what is not here: a file, a device.
    #[error(transparent)]
    Workflow(#[from] WorkflowError),
    /// What the program asks for is wrong, or the file of its model, or the workflow cannot be read again or takes no requests: the text says what.
    #[error("{0}")]
    Options(String),
    /// ONNX Runtime is not there, and could not be fetched.
    #[error("{0}")]
    OnnxRuntime(StartErrorSource),
    /// No worker could be started: no device is left, there is no memory, no program is there to be one, or ONNX Runtime refuses the model.
    #[error("{0}")]
    Workers(StartErrorSource),
    /// The output folder, the journal or the items of a run.
    #[error("{0}")]
    Run(StartErrorSource),
}

/// What is behind a [`StartError`].
#[derive(Debug)]
pub struct StartErrorSource(Box<dyn Error + Send + Sync>);

impl fmt::Display for StartErrorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&for_programs(&self.0.to_string()))
    }
}

/// What options of the command are for a program.
const FLAGS: [(&str, &str); 3] = [
    ("`--fresh`", "an empty output folder"),
    ("`--output`", "`Workflow::output`"),
    ("`--retry-failed`", "`orchestra run`, which can try failed items again"),
];

/// What a run says of itself, without options of the command.
pub(crate) fn for_programs(text: &str) -> String {
    FLAGS.iter().fold(text.to_owned(), |text, (flag, words)| text.replace(flag, words))
}

impl StartError {
    pub(crate) fn options(error: impl fmt::Display) -> Self {
        Self::Options(error.to_string())
    }

    pub(crate) fn workers(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Workers(StartErrorSource(error.into()))
    }

    pub(crate) fn run(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Run(StartErrorSource(error.into()))
    }

    /// The output folder belongs to a run that goes on.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        let Self::Run(source) = self else { return false };
        source.0.downcast_ref::<StartRunError>().is_some_and(StartRunError::is_in_use)
    }

    /// That run is one of this program.
    pub(crate) fn is_in_use_here(&self) -> bool {
        let Self::Run(source) = self else { return false };
        source
            .0
            .downcast_ref::<StartRunError>()
            .is_some_and(|error| error.owner() == Some(std::process::id()))
    }
}

impl From<LibraryError> for StartError {
    fn from(error: LibraryError) -> Self {
        Self::OnnxRuntime(StartErrorSource(error.into()))
    }
}

impl From<StartRunError> for StartError {
    fn from(error: StartRunError) -> Self {
        Self::run(error)
    }
}

impl From<StartFlowError> for StartError {
    fn from(error: StartFlowError) -> Self {
        match error {
            StartFlowError::NotAsked | StartFlowError::Sources(_) => Self::options(error),
            error => Self::workers(error),
        }
    }
}

impl From<orchestra_launch::LaunchError> for StartError {
    fn from(error: orchestra_launch::LaunchError) -> Self {
        match error {
            orchestra_launch::LaunchError::Library(error) => error.into(),
            orchestra_launch::LaunchError::Run(error) => error.into(),
            orchestra_launch::LaunchError::Executable(_) => Self::workers(error),
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It is not what the model or the graph takes. The text says what was found and what is expected. Nothing ran.
    #[error("{0}")]
    Input(String),
    /// An item has no result: a stage refuses it, or it kills processes. Others of the request may have run.
    #[error(transparent)]
    Failed(ItemFailure),
    /// The rows of an output have different shapes. Send one row per request.
    #[error(
        "output `{output}` has rows of shapes {first:?} and {other:?}, which cannot be stacked; send one row per request"
    )]
    Ragged {
        /// The name of the output.
        output: String,
        /// The shape of the first row.
        first: Vec<usize>,
        /// That of a later one.
        other: Vec<usize>,
    },
    /// As many requests wait as may wait.
    #[error("{most} requests wait already; try again later")]
    Overloaded {
        /// How many may.
        most: usize,
    },
    /// There was no answer in time.
    #[error("there was no answer in time")]
    Deadline,
    /// It takes no requests any more, for this reason.
    #[error("it has ended: {0}")]
    Closed(String),
}

/// An item that has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("row {row} failed after {attempts} {} at stage `{stage}`: {error}", if *attempts == 1 { "attempt" } else { "attempts" })]
pub struct ItemFailure {
    /// Which row of the request, from 0.
    pub row: usize,
    /// The stage at which it ended.
    pub stage: String,
    /// Of what kind, as `failures.jsonl` calls it: `decode`, `model`, `crash`, ..
    pub kind: &'static str,
    /// What is wrong with it, in words.
    pub error: String,
    /// How often it was tried there.
    pub attempts: u32,
    is_input: bool,
}

impl RequestError {
    /// The same request may succeed later, here or elsewhere.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Overloaded { .. } | Self::Deadline | Self::Closed(_))
    }

    /// The request is at fault, and will fail wherever it is sent.
    #[must_use]
    pub fn is_client_fault(&self) -> bool {
        match self {
            Self::Input(_) | Self::Ragged { .. } => true,
            Self::Failed(failure) => failure.is_input,
            Self::Overloaded { .. } | Self::Deadline | Self::Closed(_) => false,
        }
    }
}

impl From<ProcessError> for RequestError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Input(why) => Self::Input(why),
            ProcessError::Failed { row, failure } => Self::Failed(ItemFailure::of(row, failure)),
            ProcessError::Overloaded(most) => Self::Overloaded { most },
            ProcessError::Deadline => Self::Deadline,
            ProcessError::Over(why) => Self::Closed(why),
            other => Self::Closed(other.to_string()),
        }
    }
}

impl ItemFailure {
    fn of(row: usize, failure: Failure) -> Self {
        let Failure { stage, kind, error, attempts } = failure;
        // What the bytes or the model's own words say of the item; anything else may be the machine's fault.
        let is_input = matches!(
            kind,
            FailureKind::Decode | FailureKind::TooLarge | FailureKind::Model | FailureKind::Result
        );
        Self { row, stage, kind: kind.as_str(), error, attempts, is_input }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_of_the_command_is_left_in_what_a_program_is_told() {
        let flag = |text: &str| text.split('`').any(|word| word.starts_with("--"));
        let mut n_flags = 0;
        orchestra_testkit::production::each_source(|path, text| {
            let path = path.to_str().unwrap();
            // What runs and journals say; the command itself says more.
            if !["/orchestra-runtime/", "/orchestra-store/"].iter().any(|of| path.contains(of)) {
                return;
            }
            for line in text.lines().filter(|line| !line.trim().starts_with("//") && flag(line)) {
                n_flags += 1;
                assert!(!flag(&for_programs(line)), "{path}: {line}");
            }
        });
        assert!(n_flags > 10, "{n_flags}");
    }
}
