//! Replaces a small file as a whole: a reader sees the old text or the new, also after a power cut. Not for files that grow.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// How the names of neighbours end.
const ENDING: &str = ".tmp";

/// Writes `bytes` to a neighbour of `path`, makes it durable and renames it over `path`.
///
/// # Errors
/// Whatever the file system says. `path` is then unchanged and nothing is left beside it.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// The same of what `write` writes; gives what it gives.
pub(crate) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let neighbour = path.with_file_name(format!("{}{}{ENDING}", prefix_of(path)?, std::process::id()));
    let written = write_and_rename(&neighbour, path, write);
    if written.is_err() {
        // The first error is what the caller must hear of; there may be nothing to remove.
        let _ = fs::remove_file(&neighbour);
    }
    written
}

/// Removes what processes that were killed in the middle of [`write_atomic`] have left beside `path`. Only for a caller that knows that nothing else
/// writes it now.
pub(crate) fn remove_leftovers(path: &Path) -> io::Result<()> {
    let (Some(folder), prefix) = (path.parent(), prefix_of(path)?) else { return Ok(()) };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let process = name.to_str().and_then(|n| n.strip_prefix(&*prefix)?.strip_suffix(ENDING));
        if process.is_some_and(is_process) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether it is the name of a neighbour, of whatever file.
pub(crate) fn is_neighbour(name: &str) -> bool {
    let of_file = name.strip_prefix('.').and_then(|n| n.strip_suffix(ENDING)?.rsplit_once('.'));
    of_file.is_some_and(|(file, process)| !file.is_empty() && is_process(process))
}

fn is_process(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// How the names of neighbours begin; the id of the process and [`ENDING`] follow.
fn prefix_of(path: &Path) -> io::Result<String> {
    let name = path.file_name().and_then(|n| n.to_str());
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    Ok(format!(".{name}."))
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

fn write_and_rename<T>(
    neighbour: &Path,
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<T>,
) -> io::Result<T> {
    let mut file = File::create(neighbour)?;
    let written = write(&mut file)?;
    file.sync_all()?;
    fs::rename(neighbour, path)?;
    sync_folder_of(path).map(|()| written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_text_replaces_the_old_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        write_atomic(&path, b"a long first text").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_killed_processes_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let kept = [
            "run.json",
            ".run.json",
            ".run.json.tmp",
            ".run.json.x.tmp",
            ".run.json.1.tmp.txt",
            ".other.1.tmp",
        ];
        for name in kept.iter().chain(&[".run.json.1.tmp", ".run.json.4711.tmp"]) {
            fs::write(dir.path().join(name), b"half").unwrap();
        }
        remove_leftovers(&path).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let mut kept = kept;
        kept.sort();
        assert_eq!(left, kept);
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
