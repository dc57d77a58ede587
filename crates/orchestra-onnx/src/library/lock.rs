//! A lock between the processes of one user, so that only one of them downloads. Held by an open file: it ends with its owner,
//! however that ends, and its file stays behind on purpose (to delete it would let two owners in).

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::{io, thread};

use crate::library::child::TICK;
use crate::library::error::LibraryError;
use crate::library::found::Progress;

/// Takes the lock, or waits for its present owner. It is held for as long as the file is open.
pub(crate) fn take(path: &Path, progress: &mut dyn Progress) -> Result<File, LibraryError> {
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = opened.map_err(LibraryError::io("open", path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(LibraryError::io("lock", path)(error)),
    }
    progress.note("waiting for another orchestra to finish downloading");
    let (sender, receiver) = sync_channel(1);
    // A waiting lock cannot be interrupted, so it waits in a thread. If we give up first, that thread gets the lock in its turn, finds
    // that nothing receives it, and closes the file.
    thread::spawn(move || {
        let locked = loop {
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                locked => break locked,
            }
        };
        drop(sender.send(locked.map(|()| file)));
    });
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(locked) => return locked.map_err(LibraryError::io("lock", path)),
            Err(RecvTimeoutError::Timeout) if progress.cancelled() => return Err(LibraryError::Cancelled),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(LibraryError::io("lock", path)(io::ErrorKind::Interrupted.into()));
            }
        }
    }
}
