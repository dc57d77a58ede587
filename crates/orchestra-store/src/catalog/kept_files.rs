//! The files of an earlier list, as they were when they were listed: of one that is the same now the items are in that list, and it is not listed again. Reads
//! the earlier list, and no file.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{ListError, ListingReader, PassedOverCounts};

/// The files of an earlier list, in some 70 bytes each.
#[derive(Default)]
pub(crate) struct KeptFiles {
    files: HashMap<[u8; 16], KeptFile>,
    /// Files that are kept, and their items.
    n_files: usize,
    n_items: u64,
}

struct KeptFile {
    /// `None`: it stands twice in the list.
    version: Option<u64>,
    /// Of its name, which depends on all that the source names.
    name: [u8; 16],
    n_items: u64,
    passed_over: Option<Box<PassedOverCounts>>,
    is_kept: bool,
}

/// A digest of a path, and short.
pub(crate) fn key(path: &[u8]) -> [u8; 16] {
    let digest: [u8; 32] = Sha256::digest(path).into();
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    key
}

impl KeptFiles {
    /// All files of a list; none is kept yet. Of a list that is damaged there are none. Goes back to its beginning.
    pub fn of(list: &mut ListingReader) -> Result<Self, ListError> {
        let kept = Self::read(list).unwrap_or_default();
        list.rewind()?;
        Ok(kept)
    }

    fn read(list: &mut ListingReader) -> Result<Self, ListError> {
        let (mut kept, mut digest) = (Self::default(), Sha256::new());
        while let Some(record) = list.read_record()? {
            if let Some((name, path, file)) = list.file(&record)? {
                if file.digest != file.digest(digest.clone(), name, path) {
                    return Ok(Self::default());
                }
                let file = KeptFile {
                    version: Some(file.version),
                    name: key(name.as_bytes()),
                    n_items: file.n_items,
                    passed_over: (file.passed_over.total() > 0).then(|| Box::new(file.passed_over)),
                    is_kept: false,
                };
                let twice = |other: &mut KeptFile| other.version = None;
                kept.files.entry(key(path.as_os_str().as_bytes())).and_modify(twice).or_insert(file);
            }
            list.record().iter().for_each(|bytes| digest.update(bytes));
        }
        Ok(kept)
    }

    /// The version of which the list has the items of a file of this name. A file that is named twice is listed the second time.
    pub fn version_of(&self, name: &str, path: &Path) -> Option<u64> {
        let file = self.files.get(&key(path.as_os_str().as_bytes()))?;
        file.version.filter(|_| !file.is_kept && file.name == key(name.as_bytes()))
    }

    /// The file has that version: its items stay where they are in the list. What it holds besides.
    pub fn keep(&mut self, path: &Path) -> PassedOverCounts {
        let Some(file) = self.files.get_mut(&key(path.as_os_str().as_bytes())) else {
            return PassedOverCounts::default();
        };
        file.is_kept = true;
        self.n_files += 1;
        self.n_items = self.n_items.saturating_add(file.n_items);
        file.passed_over.as_deref().copied().unwrap_or_default()
    }

    pub fn n_items(&self) -> u64 {
        self.n_items
    }

    /// Whether the items of this file stay.
    pub fn is_kept(&self, path: &[u8]) -> bool {
        self.n_files > 0 && self.files.get(&key(path)).is_some_and(|file| file.is_kept)
    }

    /// Whether all files are kept of a list of so many items.
    pub fn are_all(&self, n_items: u64) -> bool {
        self.n_files > 0 && self.n_files == self.files.len() && self.n_items == n_items
    }
}
