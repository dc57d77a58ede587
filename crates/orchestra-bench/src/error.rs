//! Every way in which a measurement can end without a result. It says what happened; what it means for an exit code is the command's.

use std::io;

use orchestra_runtime::StartRunError;
use orchestra_source::ListError;
use thiserror::Error;

/// Why there are no figures.
#[derive(Debug, Error)]
pub enum BenchError {
    /// There is nothing to measure.
    #[error(
        "the workflow has no stage of kind `infer`: there is no model to measure; `orchestra run` runs it all the same"
    )]
    NoInferStage,
    /// The sources name nothing.
    #[error("the sources name no items: nothing can be measured")]
    NoItems,
    /// Not one of the items can be used.
    #[error("none of the {tried} items that were tried can be read and decoded; the first: {first}")]
    NothingDecodes {
        /// How many.
        tried: usize,
        /// Why the first one cannot.
        first: String,
    },
    /// The items of a source cannot be listed.
    #[error("the items of source `{source_name}` cannot be listed: {error}")]
    Listing {
        /// Which source.
        source_name: String,
        /// Why.
        error: ListError,
    },
    /// Memory, threads or files of ours.
    #[error("{doing} failed: {error}")]
    Io {
        /// What was tried, as a noun phrase.
        doing: String,
        /// What the system says.
        error: io::Error,
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
    /// The measured run did not start.
    #[error(transparent)]
    NotStarted(#[from] StartRunError),
    /// The measured run did not end well.
    #[error("the measured run ended with exit code {exit_code}: {}", problems.join("; "))]
    Run {
        /// As of `orchestra run`.
        exit_code: i32,
        /// What the run says.
        problems: Vec<String>,
    },
    /// Somebody asked for it.
    #[error("interrupted: nothing is left behind, and nothing was measured to its end")]
    Cancelled,
    /// A bug of ours.
    #[error("internal error: {0}; please report it")]
    Bug(String),
}

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The workflow file, or what it names.
    File,
    /// No item is of use.
    Items,
    /// A device, the runtime library or a model is not available.
    Unavailable,
    /// It may work later, or elsewhere.
    Surroundings,
    /// Somebody asked for it.
    Interrupted,
    /// Ours.
    Bug,
}

impl BenchError {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Io { doing, error }
    }

    /// What kind it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::NoInferStage | Self::NoItems | Self::Listing { .. } => Cause::File,
            Self::NothingDecodes { .. } => Cause::Items,
            Self::Worker { .. } | Self::NotStarted(StartRunError::Jpeg(_)) => Cause::Unavailable,
            Self::NotStarted(StartRunError::Listing { .. } | StartRunError::Changed { .. }) => Cause::File,
            Self::NotStarted(StartRunError::Actors(_)) | Self::Bug(_) => Cause::Bug,
            Self::Io { .. } | Self::NotStarted(_) => Cause::Surroundings,
            Self::Cancelled => Cause::Interrupted,
            Self::Run { exit_code, .. } => match exit_code {
                65 => Cause::Items,
                69 => Cause::Unavailable,
                70 => Cause::Bug,
                78 => Cause::File,
                130 => Cause::Interrupted,
                _ => Cause::Surroundings,
            },
        }
    }
}
