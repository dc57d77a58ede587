//! The folder that a trial writes to. Dropping it removes it with all that is in it.

use std::path::Path;

use tempfile::TempDir;

use crate::error::TrialError;

/// A new folder whose name begins with `prefix`, in `parent` or else where temporary files go.
///
/// # Errors
/// It cannot be made.
pub fn scratch_folder(prefix: &str, parent: Option<&Path>) -> Result<TempDir, TrialError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    let made = parent.map_or_else(|| builder.tempdir(), |parent| builder.tempdir_in(parent));
    let place = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    made.map_err(TrialError::io(format!("making a folder in `{}`", place.display())))
}
