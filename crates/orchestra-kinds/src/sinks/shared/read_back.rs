//! Lines of JSON that say of which item they are. Reads them, and writes none.

use std::error::Error;
use std::path::Path;

use orchestra_plan::ReadRecord;
use orchestra_store::each_record;

/// Reads lines that say of which item they are: those of `jsonl`, of `failures.jsonl`, and of an index of files.
pub fn read_lines(file: &Path, each: &mut dyn FnMut(ReadRecord<'_>)) -> Result<(), String> {
    let mut number = 0;
    let read = each_record::<Box<dyn Error>>(file, |_, _, head| {
        number += 1;
        let head = head.map_err(|error| format!("line {number} is {error}"))?;
        each(ReadRecord { source: &head.source, index: head.index, item: &head.item });
        Ok(())
    });
    read.map(drop).map_err(|error| error.to_string())
}
