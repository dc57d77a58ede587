//! Names in an output folder, and the refusal of what stands in their place.

use std::io;

use thiserror::Error;

/// The folder in it for what only the next run needs.
pub(crate) const PRIVATE: &str = ".orchestra";
/// Of the run, in that folder.
pub(crate) const JOURNAL: &str = "journal";

/// What stands in the place of a file of the run, and no run has made.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct ForeignFile(pub String);

pub(crate) fn foreign(what: &str) -> io::Error {
    io::Error::other(ForeignFile(format!("it is {what}, and no run has made it; remove it")))
}

/// Whether it is for what stands in the output folder and no run has made: the next start fails, too.
pub fn is_foreign(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<ForeignFile>())
}
