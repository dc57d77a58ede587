//! Shared libraries: the names of those that one is linked against. It loads none.

use std::io::Cursor;

use orchestra_onnx::untrusted::libraries_needed;

use crate::memory::measured;

/// What reading one may take: its tables, and the names of the most entries that are believed.
const MOST: usize = 4 << 20;

/// A library names what it needs or is explained, in bounded memory.
pub fn elf(bytes: &[u8]) {
    let (read, taken) = measured(|| libraries_needed(&mut Cursor::new(bytes)));
    assert!(taken.peak <= MOST, "{taken:?} for a library of {} bytes", bytes.len());
    match read {
        Ok(names) => assert!(names.iter().all(|name| name.len() <= bytes.len())),
        Err(why) => assert!(!why.is_empty()),
    }
}
