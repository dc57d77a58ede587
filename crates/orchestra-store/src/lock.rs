//! One run per output folder: an advisory lock that the kernel releases when its owner dies. Touches no other file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

/// Why an output folder cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another run owns it.
    #[error("output folder `{}` is in use by {}: wait for that run, stop it, or choose another `--output`",
        folder.display(), owner(*pid))]
    Busy {
        folder: PathBuf,
        /// The owner; `None` if it took the lock this very moment and has not signed it yet.
        pid: Option<u32>,
        since: Option<SystemTime>,
    },
    /// The folder or a file in it cannot be made or read.
    #[error("cannot use `{}` in the output folder: {source}; if it cannot be written, choose another folder with `--output`", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The held lock. Dropping it (or dying) releases it.
#[derive(Debug)]
pub(crate) struct FolderLock {
    file: File,
}

impl Drop for FolderLock {
    /// A process that this one has forked, for another run in it, holds the file until it is the program that it shall be. Closing the file
    /// would leave the lock with it.
    fn drop(&mut self) {
        let _ = self.file.unlock(); // What cannot be unlocked is closed next.
    }
}

impl FolderLock {
    /// Takes the lock file at `path`, on behalf of `folder`, and signs it with this process's id.
    pub(crate) fn take(path: &Path, folder: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let (pid, since) = signature(path);
                return Err(OpenError::Busy { folder: folder.to_owned(), pid, since });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        sign(&mut file).map_err(failed)?;
        Ok(Self { file })
    }
}

fn sign(file: &mut File) -> io::Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    file.set_len(0)?;
    file.write_all(format!("{} {since}\n", std::process::id()).as_bytes())
}

fn signature(path: &Path) -> (Option<u32>, Option<SystemTime>) {
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(64).read_to_string(&mut text));
    if read.is_err() {
        return (None, None);
    }
    let mut words = text.split_ascii_whitespace();
    let pid = words.next().and_then(|w| w.parse().ok());
    let since = words.next().and_then(|w| w.parse().ok()).map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
    (pid, since)
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |p| format!("process {p}"))
}

/// Makes `folder` with its parents.
pub(crate) fn make_folder(folder: &Path) -> Result<(), OpenError> {
    fs::create_dir_all(folder).map_err(|source| OpenError::Io { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_free_as_soon_as_it_is_dropped_also_while_a_forked_process_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = FolderLock::take(&path, folder.path()).unwrap();
        let of_a_fork = lock.file.try_clone().unwrap();
        assert!(matches!(FolderLock::take(&path, folder.path()), Err(OpenError::Busy { .. })));
        drop(lock);
        FolderLock::take(&path, folder.path()).unwrap();
        drop(of_a_fork);
    }
}
