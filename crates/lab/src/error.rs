//! Every way in which an experiment ends without a report. Each has the exit code that a run would have.

use std::io;

use orchestra_runtime::StartRunError;
use orchestra_store::ListError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum LabError {
    #[error(
        "no stage of the workflow runs in worker processes, so there is nothing to measure; `orchestra run` runs it all the same"
    )]
    NoBatchStage,
    /// The audit counts one record of each item in each sink.
    #[error(
        "an item has not exactly one record in sink `{sink}`: stage `{stage}` makes none or several rows of one, or one of all; chaos can \
         audit a workflow whose items have one record in each sink, for example with a stage that brings parts together behind one that splits"
    )]
    NotOneRecord { sink: String, stage: String },
    #[error(
        "batches of `{size}` cannot be measured: those of stage `{stage}` have up to `{max}` rows; raise its `batch.max`, or name smaller ones"
    )]
    BatchSize { size: usize, stage: String, max: usize },
    #[error("the sources name no items: there is nothing to run")]
    NoItems,
    #[error("the items of source `{source_name}` cannot be listed: {error}")]
    Listing { source_name: String, error: ListError },
    #[error("none of the {tried} items that were tried can be read and decoded; the first: {first}")]
    NothingDecodes { tried: usize, first: String },
    /// No item gets through, so none could be lost.
    #[error("none of the {items} items is done even without faults; the first: {first}")]
    NothingDone { items: u64, first: String },
    /// A worker that was measured alone failed.
    #[error("a worker of stage `{stage}` on {device} {what}")]
    Worker {
        stage: String,
        device: String,
        /// What happened, as the rest of the sentence.
        what: String,
    },
    /// Memory, threads or files of the experiment.
    #[error("{doing} failed: {error}")]
    Io {
        /// What was tried, as a noun phrase.
        doing: String,
        error: io::Error,
    },
    #[error(transparent)]
    NotStarted(#[from] StartRunError),
    /// A run ended in another way than with all items done or failed.
    #[error("the {run} ended with exit code {exit_code}: {}", problems.join("; "))]
    Run {
        run: &'static str,
        /// As of `orchestra run`.
        exit_code: i32,
        problems: Vec<String>,
    },
    /// [`Cancel`](crate::Cancel) was called.
    #[error("interrupted: nothing is left behind, and nothing was brought to its end")]
    Cancelled,
}

impl LabError {
    /// Says what was tried, as a noun phrase.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Io { doing, error }
    }

    /// What the command ends with: as `orchestra run` in the same case.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NoBatchStage | Self::NotOneRecord { .. } | Self::NoItems | Self::Listing { .. } => 78,
            Self::BatchSize { .. } => 2,
            Self::NothingDecodes { .. } | Self::NothingDone { .. } => 65,
            Self::Worker { .. } => 69,
            Self::NotStarted(StartRunError::Listing { .. } | StartRunError::Changed { .. }) => 78,
            Self::NotStarted(StartRunError::Actors(_)) => 70,
            Self::Io { .. } | Self::NotStarted(_) => 75,
            Self::Cancelled => 130,
            Self::Run { exit_code, .. } => *exit_code,
        }
    }
}
