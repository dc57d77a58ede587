//! Whole files that the journal puts into the output folder: one named after its item, a numbered part of the rows of many, or the state that such
//! rows were folded into. A reader sees such a file whole or not at all.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use bincode::{Decode, Encode};

use crate::atomic::NEIGHBOUR;
use crate::journal::frame::crc_of;
use crate::layout::PRIVATE;

/// A file of a commit, a part file, or a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedFile {
    /// Where, relative to the output folder: names of folders and files only. What is there is replaced.
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

impl PlacedFile {
    pub(crate) fn entry(&self) -> PlacedRecord {
        let (bytes, crc) = (self.bytes.len() as u64, crc32fast::hash(&self.bytes));
        PlacedRecord { path: self.path.as_os_str().as_bytes().to_vec(), bytes, crc }
    }

    /// Whether the path stays inside the output folder.
    pub(crate) fn is_inside(&self) -> bool {
        is_inside(&self.path)
    }

    /// Whether it is named as a part file: in the output folder or a folder of it, `NAME-00017.EXTENSION`.
    pub(crate) fn is_part(&self) -> bool {
        is_part(&self.path)
    }

    /// Puts it where it shall be by `put`, and makes the folders of it.
    pub(crate) fn write(&self, folder: &Path, put: fn(&Path, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let path = folder.join(&self.path);
        match put(&path, &self.bytes) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(folder)).and_then(|()| put(&path, &self.bytes))
            }
            done => done,
        }
    }
}

/// What the journal knows of a file.
#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct PlacedRecord {
    path: Vec<u8>,
    bytes: u64,
    crc: u32,
}

impl PlacedRecord {
    /// Where it lies; `None` where the path leads out of the folder.
    pub(crate) fn path(&self, folder: &Path) -> Option<PathBuf> {
        let path = PathBuf::from(std::ffi::OsString::from_vec(self.path.clone()));
        (is_inside(&path) || is_part(&path) || is_state(&path)).then(|| folder.join(path))
    }

    /// Whether it is named as a state.
    pub(crate) fn is_state(&self) -> bool {
        is_state(Path::new(std::ffi::OsStr::from_bytes(&self.path)))
    }

    /// Whether it is named as a part file.
    pub(crate) fn is_part(&self) -> bool {
        is_part(Path::new(std::ffi::OsStr::from_bytes(&self.path)))
    }

    /// Whether the file is as it was written.
    pub(crate) fn is_there(&self, folder: &Path) -> io::Result<bool> {
        let Some(path) = self.path(folder) else { return Ok(false) };
        // A file that is not as long as it was need not be read.
        match fs::symlink_metadata(&path) {
            Ok(m) if m.is_file() && m.len() == self.bytes => {
                Ok(crc_of(&fs::File::open(&path)?, 0, self.bytes)? == self.crc)
            }
            Ok(_) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// In a folder of the output folder, and in none that is hidden, as the journal's own is.
fn is_inside(path: &Path) -> bool {
    let mut parts = path.components();
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let first = parts.next().filter(is_plain).map(|part| part.as_os_str().as_bytes().starts_with(b"."));
    first == Some(false) && parts.clone().next().is_some() && parts.all(|part| is_plain(&part))
}

/// Names of folders and files only, the first not hidden, and the last one a name, a number of at least five digits and an extension. No file of
/// the run that is not a part has such a name.
fn is_part(path: &Path) -> bool {
    let mut parts = path.components();
    let first = parts.next().is_some_and(|part| !part.as_os_str().as_bytes().starts_with(b"."));
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let number = path.file_stem().and_then(|stem| {
        let stem = stem.as_bytes();
        let dash = stem.iter().rposition(|byte| *byte == b'-')?;
        Some(&stem[dash + 1..])
    });
    let is_number = number.is_some_and(|n| n.len() >= 5 && n.iter().all(u8::is_ascii_digit));
    first && is_plain && is_number && path.extension().is_some()
}

const FOLD: &str = "fold-";
const STATE: &str = "state-";

/// The state of this number of `fold-NAME` in the private folder: `state-NAME.0` or `state-NAME.1` beside it. `None` for any other file.
pub(crate) fn state_path(file: &Path, number: u64) -> Option<PathBuf> {
    let name = file.strip_prefix(PRIVATE).ok()?.to_str()?.strip_prefix(FOLD)?;
    Some(Path::new(PRIVATE).join(format!("{STATE}{name}.{}", number % 2)))
}

fn is_state(path: &Path) -> bool {
    let mut parts = path.components();
    let folder = parts.next().is_some_and(|part| part.as_os_str() == PRIVATE);
    let name = parts.next().filter(|part| matches!(part, Component::Normal(_)));
    let is_named = name.is_some_and(|part| part.as_os_str().as_bytes().starts_with(STATE.as_bytes()));
    folder && is_named && parts.next().is_none()
}

/// Whether a file of a journal's header lies below the output folder whatever is there: names of folders and files only, without a way up.
pub(crate) fn is_below(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Whether the folder of `path` is `folder` or below it, links followed; not where there is none.
pub(crate) fn lies_below(path: &Path, folder: &Path) -> io::Result<bool> {
    let real = |path: &Path| match path.canonicalize() {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        found => found.map(Some),
    };
    let parent = path.parent().map_or(Ok(None), real)?;
    Ok(parent.zip(real(folder)?).is_some_and(|(parent, folder)| parent.starts_with(folder)))
}

/// Removes a file that was placed, and the neighbour that was to become it. It may be gone. Where the user has put a link in its place, the link goes and its target stays. Where the
/// user has put a link in the place of a folder, so that the file lies outside of `folder`, it stays.
pub(crate) fn remove_placed(path: &Path, folder: &Path) -> io::Result<()> {
    if !lies_below(path, folder)? {
        return Ok(());
    }
    let Some(parent) = path.parent() else { return Ok(()) };
    drop(fs::remove_file(parent.join(NEIGHBOUR))); // There is one only where a run was killed while it wrote.
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        // A folder that stands there now is not ours.
        Err(_) if path.is_dir() => Ok(()),
        removed => removed,
    }
}

/// Removes the folders of `path` below `folder` that are empty now.
pub(crate) fn remove_empty_folders(path: &Path, folder: &Path) {
    let mut at = path.parent();
    while let Some(parent) = at.filter(|parent| *parent != folder && parent.starts_with(folder)) {
        drop(fs::remove_file(parent.join(NEIGHBOUR)));
        if fs::remove_dir(parent).is_err() {
            return; // Something of the user's is in it.
        }
        at = parent.parent();
    }
}
