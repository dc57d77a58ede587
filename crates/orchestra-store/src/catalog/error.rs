//! Why a source cannot be listed. Text only: nothing here decides what happens next.

use std::io;
use std::path::PathBuf;

use bincode::{Decode, Encode};
use thiserror::Error;

use super::PassedOverCounts;

/// Why a source cannot be listed, or a listing not be read.
#[derive(Debug, Error)]
pub enum ListError {
    /// An entry names a file that does not exist.
    #[error("`{pattern}` does not exist (looked for `{}`)", path.display())]
    NoSuchFile { pattern: String, path: PathBuf },
    /// A glob matches nothing, or a folder holds nothing.
    #[error("`{pattern}` matches no file under `{}`", under.display())]
    NoMatch {
        pattern: String,
        /// The folder that was searched.
        under: PathBuf,
    },
    /// A URL names no object.
    #[error("{}", no_object(url, under.as_deref()))]
    NoObject {
        url: String,
        /// What was searched, where its store can be searched.
        under: Option<String>,
    },
    /// A store gives its objects in no order, so that those of several entries cannot be told apart.
    #[error("`{url}`: the store lists `{behind}` out of order; give each entry a source of its own")]
    Unordered {
        url: String,
        /// An object that should have come earlier.
        behind: String,
    },
    /// A store cannot be asked what it has.
    #[error("`{url}`: {reason}")]
    Store { url: String, reason: String, help: String, trouble: StoreTrouble },
    /// A glob cannot be understood.
    #[error("`{pattern}` is no valid pattern: {reason}")]
    BadPattern { pattern: String, reason: String },
    /// A file or folder below an entry cannot be read.
    #[error("`{pattern}`: `{}` cannot be read: {error}", path.display())]
    Unreadable { pattern: String, path: PathBuf, error: io::Error },
    /// A file that holds several items cannot be read, or is none of its kind.
    #[error("`{}` cannot be read: {reason}", path.display())]
    BadFile { path: PathBuf, reason: String },
    /// The script of a source does not list its items.
    #[error("script `{}` {reason}", path.display())]
    Script { path: PathBuf, reason: String },
    /// All that a file holds was passed over.
    #[error("`{}` holds no item: all of it was passed over ({passed_over}); {help}", path.display())]
    AllPassedOver { path: PathBuf, passed_over: Box<PassedOverCounts>, help: String },
    /// The manifest cannot be read.
    #[error("manifest `{manifest}` cannot be read: {error}")]
    ManifestUnreadable {
        /// The manifest's path, or `standard input`.
        manifest: String,
        error: io::Error,
    },
    /// A row of the manifest makes no sense.
    #[error("manifest `{manifest}`, line {line}: {reason}")]
    BadRow {
        /// The manifest's path, or `standard input`.
        manifest: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// The manifest names nothing.
    #[error("manifest `{manifest}` names no item")]
    EmptyManifest {
        /// The manifest's path, or `standard input`.
        manifest: String,
    },
    /// The list on disk cannot be written or read.
    #[error("failed to {doing} the list `{}`: {error}", path.display())]
    ListFile {
        path: PathBuf,
        /// `read` or `write`.
        doing: &'static str,
        error: io::Error,
    },
    /// The list on disk is not one of ours, or is cut short.
    #[error("the list `{}` is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: &'static str },
    /// The source has more items than it may have.
    #[error("it has more than `limits.max_items = {most}` items: `{}` is one too many; raise the limit if they are meant", path.display())]
    TooMany { most: u64, path: PathBuf },
    /// The caller asked to stop.
    #[error("listing was stopped")]
    Stopped,
    /// No process can be started that looks into files.
    #[error("`{}` cannot be looked into: {reason}", path.display())]
    NoProcess { path: PathBuf, reason: String },
    #[error("the thread that lists them panicked; this is a bug")]
    Panicked,
}

/// Why a store has not said what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum StoreTrouble {
    /// It does not answer now, and may later.
    Passing,
    /// It takes no such credentials, or has no such bucket: until that is mended it says nothing.
    ItemError,
    /// What it was asked makes no sense: the entry is wrong.
    Mistake,
}

impl ListError {
    /// That a file which holds several items cannot be read.
    pub fn bad_file(path: &std::path::Path, reason: impl ToString) -> Self {
        ListError::BadFile { path: path.into(), reason: reason.to_string() }
    }

    /// What to do about it, behind its text. The run does not go on without a file that cannot be listed: its items could not be counted.
    pub fn remedy(&self) -> &'static str {
        match self {
            ListError::BadFile { .. } | ListError::Unreadable { .. } => {
                "; mend it, or move it away, and start again"
            }
            ListError::Script { .. } => "; mend it, and start again",
            _ => "",
        }
    }

    /// Whether a store does not answer now, and may later.
    pub fn may_pass(&self) -> bool {
        matches!(self, ListError::Store { trouble: StoreTrouble::Passing, .. })
    }

    /// Whether what the user named is at fault, and not how or where lists are kept, or a store that does not answer now.
    pub fn is_of_source(&self) -> bool {
        !matches!(
            self,
            ListError::ListFile { .. }
                | ListError::Damaged { .. }
                | ListError::NoProcess { .. }
                | ListError::Panicked
                | ListError::Store { trouble: StoreTrouble::Passing | StoreTrouble::ItemError, .. }
        )
    }
}

fn no_object(url: &str, under: Option<&str>) -> String {
    match under {
        None => format!("there is no `{url}`"),
        Some(under) if under.trim_end_matches('/') == url.trim_end_matches('/') && !url.ends_with('/') => {
            format!("`{url}` names no object, and none begins with `{under}`")
        }
        Some(under) => format!("`{url}` matches no object below `{under}`"),
    }
}
