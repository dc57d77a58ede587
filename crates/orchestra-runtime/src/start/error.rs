//! Why a run could not be started.

use std::io;
use std::path::PathBuf;

use orchestra_plan::Plan;
use orchestra_store::{BeginError, CommitError, DiscardError, ListError, OpenError, is_foreign};
use ractor::SpawnErr;
use thiserror::Error;

use crate::flow::uploads::store_error;
use crate::panics::{lacks_threads, no_threads};

/// Why a run could not be started.
#[derive(Debug, Error)]
pub enum StartRunError {
    #[error(transparent)]
    Folder(#[from] OpenError),
    #[error("the run in `{}` cannot be continued, because since then {}; use `--fresh` to start over (this discards {done} finished items) or another `--output`",
        folder.display(), changes.join(", "))]
    Changed {
        folder: PathBuf,
        changes: Vec<String>,
        /// Items that `--fresh` discards.
        done: u64,
    },
    #[error("the run in `{}` cannot be continued, because any of its {done} finished items may be wrong: {why}. When that is done, use `--fresh` to start over or another `--output`",
        folder.display())]
    Doubted {
        folder: PathBuf,
        why: String,
        /// Items that `--fresh` discards.
        done: u64,
    },
    #[error("the journal in `{}` cannot be read: {why}; use `--fresh` to start over or another `--output`", folder.display())]
    Unreadable { folder: PathBuf, why: String },
    #[error("the items of source `{source_name}` cannot be listed: {error}{}", error.remedy())]
    Listing { source_name: String, error: ListError },
    #[error("sink `{sink_name}` cannot write to its bucket: {}", store_error(error))]
    Bucket { sink_name: String, error: ListError },
    #[error(
        "`{url}` of sink `{sink_name}` holds results of another run, which stay as they are: choose another prefix, or remove them"
    )]
    Taken { sink_name: String, url: String },
    #[error("the earlier run in `{}` cannot be discarded: {error}", folder.display())]
    Discard { folder: PathBuf, error: DiscardError },
    #[error(transparent)]
    Journal(#[from] BeginError),
    /// The results cannot be made durable.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Failed items are to be done again, and their records cannot be taken back.
    #[error(
        "the failed items cannot be done again: sink `{0}` has written their failures to a bucket, whose objects stay as they are; start over with \
        `--fresh`, and give that sink a `path` in the output folder"
    )]
    Sealed(String),
    /// Rows that an earlier run has left cannot be used.
    #[error("the run in this output folder cannot go on: {0}")]
    Rows(String),
    #[error(
        "nothing is said to run the batches of stage `{0}`; `RunOptions::engines` needs an engine for each batch stage of the plan"
    )]
    NoEngine(String),
    #[error(
        "the items of source `{0}` are requests, and a run has none: a program that embeds orchestra asks them (docs/guide/library.md); to run this \
        graph over files, let the source list them, `kind = \"images\"`, and the sinks write them, `kind = \"jsonl\"`"
    )]
    Asked(String),
    #[error("nothing is said to start the commands of tasks; `RunOptions::keepers` needs a launcher")]
    NoKeeper,
    #[error("the journal of tasks in `{}` cannot be used: {error}", folder.display())]
    Tasks { folder: PathBuf, error: io::Error },
    #[error("the run cannot be started: {0}")]
    Io(#[from] io::Error),
    #[error("the run cannot be started: {}", if lacks_threads(&.0.to_string()) { no_threads(&.0.to_string()) } else { format!("{}; this is a bug", .0) })]
    Actors(#[from] SpawnErr),
}

impl StartRunError {
    /// Whether the system starts no further thread or process for this user.
    pub fn lacks_threads(&self) -> bool {
        lacks_threads(&self.to_string())
    }

    /// Whether the output folder belongs to a run that goes on.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Folder(OpenError::Busy { .. }))
    }

    /// The process whose run has the output folder.
    pub fn owner(&self) -> Option<u32> {
        match self {
            Self::Folder(OpenError::Busy { pid, .. }) => *pid,
            _ => None,
        }
    }

    /// Whether it is for what stands in the output folder: no run has made it, or its files do not agree. The next start fails, too.
    pub fn is_of_folder(&self) -> bool {
        match self {
            Self::Folder(OpenError::Io { source: error, .. })
            | Self::Journal(BeginError::Io { source: error, .. })
            | Self::Discard { error: DiscardError { source: error, .. }, .. }
            | Self::Tasks { error, .. } => is_foreign(error),
            Self::Journal(_) | Self::Listing { error: ListError::Damaged { .. }, .. } => true,
            _ => false,
        }
    }
}

pub(super) fn tasks_error(plan: &Plan, error: io::Error) -> StartRunError {
    StartRunError::Tasks { folder: plan.output.clone(), error }
}

pub(super) fn discard_error(plan: &Plan, error: DiscardError) -> StartRunError {
    StartRunError::Discard { folder: plan.output.clone(), error }
}
