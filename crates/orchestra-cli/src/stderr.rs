//! Standard error: progress, messages, the summary. Nobody may be there to read it (`2>&1 | head`, a closed terminal, a full disk):
//! that must change neither the run nor its exit code, so nothing here fails or panics.

use std::io::Write as _;

/// Writes a text as it is.
pub fn say(text: &str) {
    // See above: whoever does not read it does not miss it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes a line.
pub fn say_line(text: &str) {
    say(&format!("{text}\n"));
}
