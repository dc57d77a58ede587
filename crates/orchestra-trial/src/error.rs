//! Every way in which a trial can end before it has begun or because somebody asked for it. What it means for an exit code is the
//! command's.

use std::io;

use orchestra_runtime::StartRunError;
use orchestra_source::ListError;
use thiserror::Error;

/// Why there is no trial.
#[derive(Debug, Error)]
pub enum TrialError {
    /// The sources name nothing.
    #[error("the sources name no items: there is nothing to run")]
    NoItems,
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
    /// The run did not start.
    #[error(transparent)]
    NotStarted(#[from] StartRunError),
    /// Somebody asked for it.
    #[error("interrupted: nothing is left behind, and nothing was brought to its end")]
    Cancelled,
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

impl TrialError {
    /// Says what was being done, as a noun phrase.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Io { doing, error }
    }

    /// What kind it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::NoItems | Self::Listing { .. } => Cause::File,
            Self::NotStarted(StartRunError::Listing { .. } | StartRunError::Changed { .. }) => Cause::File,
            Self::NotStarted(StartRunError::Actors(_)) => Cause::Bug,
            Self::Io { .. } | Self::NotStarted(_) => Cause::Surroundings,
            Self::Cancelled => Cause::Interrupted,
        }
    }
}

impl Cause {
    /// What the exit code of a run that did not end well says.
    #[must_use]
    pub fn of_exit_code(exit_code: i32) -> Self {
        match exit_code {
            65 => Self::Items,
            69 => Self::Unavailable,
            70 => Self::Bug,
            78 => Self::File,
            130 => Self::Interrupted,
            _ => Self::Surroundings,
        }
    }
}
