//! Objects of a store that a run writes. What speaks to the store is handed in; nothing here knows a protocol.

use crate::catalog::{ListError, ObjectStore};

/// Writes objects. None is ever deleted.
pub trait ObjectOutput: ObjectStore {
    /// Reads an object whole; `None`: there is none of exactly this URL. Blocks.
    fn read(&self, url: &str) -> Result<Option<StoredObject>, ListError>;

    /// Writes an object, unless there is one of this URL; gives whether it did. A reader sees all of it or none. Blocks.
    ///
    /// # Errors
    /// As [`ObjectOutput::read`]. It may have been written all the same.
    fn create(&self, url: &str, bytes: Vec<u8>) -> Result<bool, ListError>;

    /// Writes an object in place of what was read; gives whether that was still there. Blocks.
    fn replace(&self, url: &str, bytes: Vec<u8>, before: &StoredObject) -> Result<bool, ListError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    pub bytes: Vec<u8>,
    /// What its store calls this state of it: S3 and Azure by an e-tag,
    pub e_tag: Option<String>,
    /// Google by a number.
    pub version: Option<String>,
}
