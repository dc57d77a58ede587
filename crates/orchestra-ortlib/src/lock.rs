//! A lock between the processes of one user, so that only one of them downloads. Held by an open file: it ends with its owner,
//! however that ends, and its file stays behind on purpose (to delete it would let two owners in).

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::child::TICK;
use crate::error::LibraryError;
use crate::library::Progress;

/// The lock, for as long as it lives.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or waits for its present owner.
    pub(crate) fn take(path: &Path, progress: &mut dyn Progress) -> Result<Self, LibraryError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(LibraryError::io("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(refused(path, error)),
        }
        progress.note("waiting for another orchestra to finish downloading");
        let (sender, receiver) = sync_channel(1);
        // A waiting `flock` cannot be interrupted, so it waits in a thread. If we give up first, that thread gets the lock in
        // its turn, finds nobody who wants it, and closes the file.
        thread::spawn(move || {
            let locked = loop {
                match flock(&file, FlockOperation::LockExclusive) {
                    Err(Errno::INTR) => {}
                    other => break other,
                }
            };
            drop(sender.send(locked.map(|()| file)));
        });
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(Ok(file)) => return Ok(Self { _file: file }),
                Ok(Err(error)) => return Err(refused(path, error)),
                Err(RecvTimeoutError::Timeout) if progress.cancelled() => {
                    return Err(LibraryError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(refused(path, Errno::INTR)),
            }
        }
    }
}

fn refused(path: &Path, error: Errno) -> LibraryError {
    LibraryError::io("lock", path)(error.into())
}
