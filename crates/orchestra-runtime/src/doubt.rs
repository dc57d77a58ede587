//! The note in an output folder that its records may be wrong.

use std::fs;
use std::io;
use std::path::Path;

use orchestra_store::OutputFolder;

/// In the private folder: why no record of the run can be believed.
const DOUBT: &str = "doubt";

/// Notes that records of the run may be wrong, for this reason: no start goes on with them.
pub fn doubt(output: &Path, why: &str) {
    if let Err(error) = fs::write(output.join(OutputFolder::private_file(DOUBT)), why) {
        tracing::warn!(%error, "that records may be wrong could not be noted");
    }
}

/// See [`doubt`].
pub fn doubted(output: &Path) -> Option<String> {
    fs::read_to_string(output.join(OutputFolder::private_file(DOUBT))).ok()
}

/// The records that it was about are gone.
pub fn forget(output: &Path) -> io::Result<()> {
    fs::remove_file(output.join(OutputFolder::private_file(DOUBT)))
}
