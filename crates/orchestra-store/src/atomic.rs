//! Replaces a file as a whole: a reader sees the old bytes or the new. Not for files that grow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// What a file is called until it is whole. One thread at a time writes in an output folder, so one name is enough.
pub(crate) const NEIGHBOUR: &str = ".placing.tmp";

/// Replaces the file at `path`, also across a power cut: it then has the old bytes or these.
///
/// # Errors
/// Whatever the file system says. `path` is then unchanged and nothing is left beside it.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// Replaces the file at `path`: a reader sees the old bytes or these. They are durable only after the file system is synced.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_and_rename(path, |file| file.write_all(bytes))
}

/// As [`write_atomic`], with what `write` writes; gives what it gives.
pub(crate) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let written = write_and_rename(path, |file| {
        let written = write(file)?;
        file.sync_all()?;
        Ok(written)
    })?;
    sync_folder_of(path)?;
    Ok(written)
}

fn write_and_rename<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let neighbour = path.with_file_name(NEIGHBOUR);
    let create = || OpenOptions::new().write(true).create_new(true).open(&neighbour);
    let mut file = match create() {
        // A killed run has left it, or it is a link of the user's: the name goes, and the link is not followed.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&neighbour).and_then(|()| create())
        }
        created => created,
    }?;
    let written = write(&mut file).and_then(|written| fs::rename(&neighbour, path).map(|()| written));
    if written.is_err() {
        drop(fs::remove_file(&neighbour)); // The first error is what the caller must hear of.
    }
    written
}

/// Makes the names in the folder of `path` durable, where the file system can.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    match File::open(folder)?.sync_all() {
        // Some network and user-space file systems cannot sync folders; their names are as durable as they make them.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_text_replaces_the_old_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        write_atomic(&path, b"a long first text").unwrap();
        fs::write(dir.path().join(NEIGHBOUR), b"a killed run has left this").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_the_old_text_and_no_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        fs::create_dir(&path).unwrap();
        assert!(write_atomic(&path, b"text").is_err());
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
