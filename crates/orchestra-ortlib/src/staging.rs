//! The folder in which a library is prepared, and the step that makes it visible. Nothing under its final name is ever
//! incomplete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cache::{RECORD, Record};
use crate::error::LibraryError;

/// A folder beside the final one, on the same disk; removed with all that is still in it when dropped.
pub(crate) struct Staging {
    root: PathBuf,
    path: PathBuf,
}

impl Staging {
    /// Makes an empty one and removes those that killed processes left. The caller holds the lock for `name`, so nobody else
    /// has one that is in use.
    pub(crate) fn new(root: &Path, name: &str) -> Result<Self, LibraryError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let prefix = format!(".staging-{name}-");
        for entry in fs::read_dir(root).map_err(LibraryError::io("read", root))?.flatten() {
            // `onnxruntime-1.31.1-` is also the start of another processor's name, whose lock we do not hold.
            let rest = entry.file_name().to_str().and_then(|n| n.strip_prefix(&prefix)).map(str::to_owned);
            if rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')) {
                fs::remove_dir_all(entry.path()).map_err(LibraryError::io("remove", &entry.path()))?;
            }
        }
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{prefix}{}-{unique}", std::process::id()));
        for folder in ["", "download", "temporary", "library"] {
            let folder = path.join(folder);
            fs::create_dir(&folder).map_err(LibraryError::io("create", &folder))?;
        }
        Ok(Self { root: root.to_owned(), path })
    }

    /// The cache, in which this folder lies.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where pip puts the wheel.
    pub(crate) fn download(&self) -> PathBuf {
        self.path.join("download")
    }

    /// What pip takes for its temporary folder: `/tmp` is often too small, or in memory.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.path.join("temporary")
    }

    /// What gets the final name in the end.
    pub(crate) fn library(&self) -> PathBuf {
        self.path.join("library")
    }

    pub(crate) fn requirements(&self) -> PathBuf {
        self.path.join("requirements.txt")
    }

    /// The size of the largest file that pip has written up to now. It writes the wheel to its temporary folder and then
    /// copies it, so a sum would count it twice.
    pub(crate) fn downloaded_bytes(&self) -> u64 {
        largest(&self.download(), 0).max(largest(&self.temporary(), 4))
    }

    /// Writes the record, makes all of it durable, and gives it its final name. A damaged folder of that name is replaced.
    pub(crate) fn publish(&self, target: &Path, record: &Record) -> Result<(), LibraryError> {
        let path = self.library().join(RECORD);
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::other);
        text.and_then(|text| durable(&path, &text)).map_err(LibraryError::io("write", &path))?;
        sync_folder(&self.library())?;
        if target.exists() {
            fs::rename(target, self.path.join("replaced")).map_err(LibraryError::io("replace", target))?;
        }
        fs::rename(self.library(), target).map_err(LibraryError::io("create", target))?;
        sync_folder(&self.root)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            // Nothing is lost: the next fetch removes it.
            tracing::warn!(path = %self.path.display(), %error, "failed to remove a temporary folder");
        }
    }
}

fn durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> Result<(), LibraryError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(LibraryError::io("sync", path))
}

fn largest(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => largest(&entry.path(), depth - 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    });
    sizes.max().unwrap_or_default()
}
