//! A gate that a test closes: after so many rows, counted over all workers, the operator waits in the next batch until the test opens it.
//! So a run cannot end before a test has done to it what it came for, however quick the one and slow the other is.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

/// The variable that names the folder of the gate. Without the file [`LIMIT`] in it the gate is open.
pub const GATE: &str = "ORCHESTRA_TEST_GATE";
/// How many rows may pass, as text.
pub const LIMIT: &str = "limit";
/// One byte for each row that has come so far.
pub const ROWS: &str = "rows";
/// One byte for each batch that waits, or has waited, since the gate was closed.
pub const WAITING: &str = "waiting";
/// How often a batch that waits looks whether the gate is open.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits where a test asks for that. A batch that begins before the limit is reached passes as a whole.
pub(crate) fn pass(rows: i64) {
    // Rows that a plan tries the model with are none of the run.
    let is_probe = std::env::var_os("ORCHESTRA_PROBE").is_some();
    let Some(folder) = std::env::var_os(GATE).filter(|_| !is_probe) else { return };
    let folder = Path::new(&folder);
    let Some(limit) = fs::read_to_string(folder.join(LIMIT)).ok().and_then(|text| text.parse().ok()) else {
        return;
    };
    if came_before(&folder.join(ROWS), rows).is_ok_and(|before: u64| before >= limit) {
        drop(append(&folder.join(WAITING), 1));
        // Looked at, and not waited for by a lock or a pipe: a test may open the gate, or end, at any moment.
        while folder.join(LIMIT).exists() {
            std::thread::park_timeout(LOOK_EVERY);
        }
    }
}

/// Adds rows to the count; how many there were.
fn came_before(count: &Path, rows: i64) -> io::Result<u64> {
    let rows = usize::try_from(rows).unwrap_or(0);
    Ok(append(count, rows)?.saturating_sub(rows as u64))
}

/// Appends so many bytes; how many there are then.
fn append(file: &Path, bytes: usize) -> io::Result<u64> {
    let mut file = File::options().append(true).create(true).open(file)?;
    // One write, so that two workers do not count each other's bytes twice; behind it stands the offset of this file.
    file.write_all(&vec![b'.'; bytes])?;
    file.stream_position()
}
