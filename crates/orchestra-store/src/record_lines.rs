//! The lines of result files, of indexes of files and of `failures.jsonl`: which item each is a record of. `orchestra verify` and
//! the tests read records here, and each judges them against something else. What is independent of what:
//! this module believes the bytes of the file alone; it knows no journal, no list of items, and none of the code that wrote the file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use serde::Deserialize;

/// What every record names.
#[derive(Debug, Deserialize)]
pub struct RecordHead<'a> {
    #[serde(borrow)]
    pub item: Cow<'a, str>,
    pub index: u64,
    #[serde(borrow)]
    pub source: Cow<'a, str>,
}

/// Visits the lines of a file in their order, up to the first for which `visit` gives an error: where each begins, its bytes, and what it
/// names or what it is instead. Holds one line, and gives the file.
pub fn each_record<E: From<io::Error>>(
    path: &Path,
    mut visit: impl FnMut(u64, &[u8], Result<RecordHead<'_>, String>) -> Result<(), E>,
) -> Result<File, E> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut line, mut offset) = (Vec::new(), 0);
    while reader.read_until(b'\n', &mut line)? > 0 {
        let head = match line.last() {
            Some(b'\n') => serde_json::from_slice(&line).map_err(|error| format!("no record: {error}")),
            _ => Err("cut off".to_owned()),
        };
        visit(offset, &line, head)?;
        offset += line.len() as u64;
        line.clear();
    }
    Ok(reader.into_inner())
}
