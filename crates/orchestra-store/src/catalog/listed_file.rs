//! What a list says of a file, as a record of the list has it. Reads nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::PassedOverCounts;

/// What a list says of a file behind the last of its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// Of the file as it was before it was read.
    pub version: u64,
    pub n_items: u64,
    pub passed_over: PassedOverCounts,
    /// The beginning of a SHA-256 over all records before it, and this one.
    pub digest: u64,
}

impl ListedFile {
    /// Its digest, behind records of which `digest` is that.
    pub fn digest(&self, mut digest: Sha256, name: &str, path: &Path) -> u64 {
        let numbers = [self.version, self.n_items].into_iter().chain(self.passed_over.to_list());
        numbers.for_each(|n| digest.update(n.to_le_bytes()));
        digest.update(name);
        digest.update(path.as_os_str().as_bytes());
        let digest: [u8; 32] = digest.finalize().into();
        digest.iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    /// As a list has it in place of a locator: the path, `#`, and numbers.
    pub fn locator(&self, path: &Path) -> Vec<u8> {
        let passed_over = self.passed_over.to_list().map(|n| format!(",{n}")).collect::<String>();
        let numbers = format!("#{},{},{}{passed_over}", self.version, self.n_items, self.digest);
        [path.as_os_str().as_bytes(), numbers.as_bytes()].concat()
    }

    /// The path and the numbers of such a locator, which may be damaged.
    pub fn read(locator: &[u8]) -> Option<(&Path, Self)> {
        let at = locator.iter().rposition(|byte| *byte == b'#')?;
        let numbers = std::str::from_utf8(&locator[at + 1..]).ok()?;
        let numbers = numbers.split(',').map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let ([version, n_items, digest], passed_over) = numbers.split_first_chunk()?;
        let passed_over = PassedOverCounts::from_list(passed_over.iter().copied());
        let file = Self { version: *version, n_items: *n_items, passed_over, digest: *digest };
        Some((Path::new(OsStr::from_bytes(&locator[..at])), file))
    }
}
