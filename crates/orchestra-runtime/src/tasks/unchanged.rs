//! Whether a task is what it was: digests of what it depends on and of what it has left. It reads names, sizes and times, and no contents.
//! Names are relative to the folder of the workflow file: where that is moved with all it holds, a task is what it was.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use orchestra_plan::TaskPlan;
use sha2::{Digest, Sha256};

use crate::tasks::best::EarlierTasks;

/// Files of a folder that are looked at. What has more is told apart by the first of them.
const MAX_FILES: usize = 1_000_000;

/// The command, its folder and its variables, with the values of other tasks, the state of its inputs, and when those that it comes after have ended.
///
/// # Errors
/// The first input that is not there.
pub fn digest(task: &TaskPlan, folder: &Path, earlier: &EarlierTasks<'_>) -> Result<[u8; 32], PathBuf> {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    // No text of a command has the character that stands for the folder.
    let folder_text = folder.to_string_lossy();
    let relative = |text: &str| text.replace(&*folder_text, "\0");
    for word in &earlier.command {
        add(relative(word).as_bytes());
    }
    add(b"in");
    add(inside(&task.cwd, folder));
    for (name, value) in &earlier.env {
        add(name.as_bytes());
        add(relative(value).as_bytes());
    }
    add(b"leaves");
    task.outputs.iter().for_each(|output| add(inside(output, folder)));
    add(b"after");
    earlier.ends.iter().for_each(|end| add(&end.to_le_bytes()));
    add(&state(&task.inputs, folder)?);
    Ok(hash.finalize().into())
}

/// A path as it is told apart: relative, if it is in the folder; no other path is.
fn inside<'a>(path: &'a Path, folder: &Path) -> &'a [u8] {
    path.strip_prefix(folder).unwrap_or(path).as_os_str().as_encoded_bytes()
}

/// The state of files and folders: their sizes and when they were changed, with all that is below a folder.
pub fn state(paths: &[PathBuf], folder: &Path) -> Result<[u8; 32], PathBuf> {
    let mut hash = Sha256::new();
    for path in paths {
        let mut left = MAX_FILES;
        add(&mut hash, path, folder, &mut left).map_err(|_| path.clone())?;
    }
    Ok(hash.finalize().into())
}

/// Of a folder what lies in it counts.
fn contents(meta: &Metadata, hash: &mut Sha256) {
    if meta.is_dir() {
        return;
    }
    let changed = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    hash.update(meta.len().to_le_bytes());
    hash.update(changed.as_nanos().to_le_bytes());
}

fn add(hash: &mut Sha256, path: &Path, folder: &Path, left: &mut usize) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    let name = inside(path, folder);
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name);
    contents(&meta, hash);
    if !meta.is_dir() {
        return Ok(());
    }
    let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).take(*left);
    let mut entries = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    *left -= entries.len();
    entries.sort();
    for entry in entries {
        // A link to a folder may lead in a circle: where it leads is all that is looked at.
        if entry.is_symlink() && entry.is_dir() {
            hash.update(inside(&entry, folder));
            hash.update(inside(&fs::read_link(&entry)?, folder));
            continue;
        }
        // A link that leads nowhere, or a file that has just gone, is no part of it.
        drop(add(hash, &entry, folder, left));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_anywhere_below_a_folder_changes_its_state() {
        let folder = tempfile::tempdir().unwrap();
        let state = |paths: &[PathBuf]| state(paths, Path::new("/flows"));
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

    #[test]
    fn what_lies_in_a_folder_that_is_moved_is_what_it_was() {
        let place = tempfile::tempdir().unwrap();
        let (old, new) = (place.path().join("old"), place.path().join("new"));
        fs::create_dir_all(old.join("data/deep")).unwrap();
        fs::write(old.join("data/deep/x"), "1").unwrap();
        let outside = place.path().join("outside");
        fs::write(&outside, "1").unwrap();
        let of = |folder: &Path| state(&[folder.join("data"), outside.clone()], folder);
        let before = of(&old).unwrap();
        fs::rename(&old, &new).unwrap();
        assert_eq!(of(&new), Ok(before));
        fs::rename(new.join("data/deep"), new.join("data/other")).unwrap();
        assert_ne!(of(&new).unwrap(), before);
    }
}
