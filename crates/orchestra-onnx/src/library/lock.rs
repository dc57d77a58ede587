//! A lock between the processes of one user, so that only one of them downloads. Held by an open file: it ends with its owner,
//! however that ends, and its file stays behind on purpose (to delete it would let two owners in).

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::thread;

use crate::library::child::TICK;
use crate::library::error::LibraryError;
use crate::library::found::Progress;

/// Takes the lock, or waits for its present owner. It is held for as long as the file is open.
pub(crate) fn take(path: &Path, progress: &mut dyn Progress) -> Result<File, LibraryError> {
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = opened.map_err(LibraryError::io("open", path))?;
    let mut has_said = false;
    // A lock that is waited for cannot be given up, so it is asked for again and again.
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(LibraryError::io("lock", path)(error)),
            Err(TryLockError::WouldBlock) if progress.cancelled() => return Err(LibraryError::Cancelled),
            Err(TryLockError::WouldBlock) if has_said => thread::park_timeout(TICK),
            Err(TryLockError::WouldBlock) => {
                progress.note("waiting for another orchestra to finish downloading");
                has_said = true;
            }
        }
    }
}
