//! Whether a task is what it was: digests of what it depends on and of what it has left. It reads names, sizes and times, and no contents.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use orchestra_plan::TaskPlan;
use sha2::{Digest, Sha256};

/// Files of a folder that are looked at. What has more is told apart by the first of them.
const MAX_FILES: usize = 1_000_000;

/// The command, its folder, its working tree where it has one, and its variables, the state of its inputs, and when those that it comes after have ended.
///
/// # Errors
/// The first input that is not there.
pub fn digest(
    task: &TaskPlan,
    tree: Option<[u8; 32]>,
    ends: impl Iterator<Item = u64>,
) -> Result<[u8; 32], PathBuf> {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for word in &task.command {
        add(word.as_bytes());
    }
    add(b"in");
    add(task.cwd.as_os_str().as_encoded_bytes());
    for (name, value) in &task.env {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    add(b"leaves");
    task.outputs.iter().for_each(|output| add(output.as_os_str().as_encoded_bytes()));
    if let Some(tree) = tree {
        add(b"tree");
        add(&tree);
    }
    add(b"after");
    ends.for_each(|end| add(&end.to_le_bytes()));
    add(&state(&task.inputs)?);
    Ok(hash.finalize().into())
}

/// The state of files and folders: their sizes and when they were changed, with all that is below a folder.
pub fn state(paths: &[PathBuf]) -> Result<[u8; 32], PathBuf> {
    let mut hash = Sha256::new();
    for path in paths {
        let mut left = MAX_FILES;
        add(&mut hash, path, &mut left).map_err(|_| path.clone())?;
    }
    Ok(hash.finalize().into())
}

fn add(hash: &mut Sha256, path: &Path, left: &mut usize) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    let name = path.as_os_str().as_encoded_bytes();
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name);
    if !meta.is_dir() {
        let changed =
            meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        hash.update(meta.len().to_le_bytes());
        hash.update(changed.as_nanos().to_le_bytes());
        return Ok(());
    }
    let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).take(*left);
    let mut entries = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    *left -= entries.len();
    entries.sort();
    for entry in entries {
        // A link to a folder may lead in a circle: where it leads is all that is looked at.
        if entry.is_symlink() && entry.is_dir() {
            hash.update(entry.as_os_str().as_encoded_bytes());
            hash.update(fs::read_link(&entry)?.as_os_str().as_encoded_bytes());
            continue;
        }
        // A link that leads nowhere, or a file that has just gone, is no part of it.
        drop(add(hash, &entry, left));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_anywhere_below_a_folder_changes_its_state() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().to_owned()];
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let before = state(&paths).unwrap();
        assert_eq!(state(&paths), Ok(before));
        fs::write(folder.path().join("a/b/c"), "1").unwrap();
        let with_file = state(&paths).unwrap();
        assert_ne!(with_file, before);
        fs::write(folder.path().join("a/b/c"), "12").unwrap();
        assert_ne!(state(&paths).unwrap(), with_file);
        let gone = folder.path().join("gone");
        assert_eq!(state(std::slice::from_ref(&gone)), Err(gone));
    }
}
