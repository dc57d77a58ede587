//! A folder for files that a check has to hand over by path: one per thread, in memory where the machine has that. Holds no results.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A memory file system. What is written to it needs no disk, also when it is synced.
const IN_MEMORY: &str = "/dev/shm";

thread_local! {
    static FOLDER: TempDir = make().expect("a machine that runs tests has a folder for temporary files");
}

/// A path in the thread's folder. What lies there from an earlier input is the caller's to replace.
pub(crate) fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.path().join(name))
}

/// Writes a file into the thread's folder.
pub(crate) fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path(name);
    fs::write(&path, bytes).expect("the folder for temporary files takes a small file");
    path
}

/// An empty folder within the thread's folder.
pub(crate) fn empty_folder(name: &str) -> PathBuf {
    let path = path(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("a folder of ours can be removed");
    }
    fs::create_dir(&path).expect("the folder for temporary files takes a folder");
    path
}

fn make() -> std::io::Result<TempDir> {
    let builder = |folder: &Path| tempfile::Builder::new().prefix("orchestra-fuzz-").tempdir_in(folder);
    // A fuzzing script that sets TMPDIR wants it used: it cleans up behind a fuzzer that was killed.
    if std::env::var_os("TMPDIR").is_none()
        && let Ok(folder) = builder(Path::new(IN_MEMORY))
    {
        return Ok(folder);
    }
    builder(&std::env::temp_dir())
}
