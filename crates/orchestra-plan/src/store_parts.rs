//! Records of kinds that append to a file, or that give each a file, on their way to a store: many of them make a part. Writes nothing.

use std::sync::Arc;

use orchestra_core::data::{ItemError, Value};
use orchestra_core::shapes::{Encoder, ItemInfo, PartFiles};

/// Rows of a part, where nothing is said: of small records few parts, and 64 MiB of larger ones come first.
const ROWS_PER_FILE: u64 = 100_000;

/// The encoder of a kind that makes no parts, as one that does.
#[derive(Debug)]
pub(crate) struct RecordParts {
    encoder: Arc<dyn Encoder>,
    rows_per_file: u64,
}

impl RecordParts {
    pub fn new(encoder: Arc<dyn Encoder>, rows_per_file: Option<u64>) -> Self {
        Self { encoder, rows_per_file: rows_per_file.unwrap_or(ROWS_PER_FILE) }
    }
}

impl Encoder for RecordParts {
    fn is_json_lines(&self) -> bool {
        self.encoder.is_json_lines()
    }

    fn extension(&self) -> Option<&str> {
        self.encoder.extension()
    }

    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        self.encoder.encode(item, row, out)
    }

    fn part_files(&self) -> Option<&dyn PartFiles> {
        Some(self)
    }
}

impl PartFiles for RecordParts {
    fn rows_per_file(&self) -> u64 {
        self.rows_per_file
    }

    /// The head of a file, then the records as they would stand in one that grows.
    fn file(&self, records: &[&[u8]]) -> Result<Vec<u8>, ItemError> {
        let mut file = self.encoder.header();
        file.reserve_exact(records.iter().map(|record| record.len()).sum());
        records.iter().for_each(|record| file.extend_from_slice(record));
        Ok(file)
    }
}
