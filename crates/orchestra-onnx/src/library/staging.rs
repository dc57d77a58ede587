//! The folder in which a library is prepared, and the step that makes it visible. Nothing under its final name is ever
//! incomplete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::library::cache::{CacheRecord, RECORD, RecordedFile, checksum_of};
use crate::library::error::LibraryError;

/// A folder beside the final one, on the same disk; removed with all that is still in it when dropped. What a killed process leaves, the
/// next fetch removes.
pub(crate) struct Staging {
    pub(crate) root: PathBuf,
    /// Where pip puts the package.
    pub(crate) installed: PathBuf,
    /// What pip takes for its temporary folder: `/tmp` is often too small, or in memory.
    pub(crate) temporary: PathBuf,
    /// What gets the final name in the end.
    pub(crate) library: PathBuf,
    folder: TempDir,
}

impl Staging {
    /// Makes an empty one and removes those that killed processes left. The caller holds the lock for `name`, so none of that name is in
    /// use.
    pub(crate) fn new(root: &Path, name: &str) -> Result<Self, LibraryError> {
        // No name of a pin contains `--`: what begins so is of no other pin, whose lock we do not hold.
        let prefix = format!(".staging-{name}--");
        for entry in fs::read_dir(root).map_err(LibraryError::io("read", root))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_dir_all(entry.path()).map_err(LibraryError::io("remove", &entry.path()))?;
            }
        }
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(root);
        let folder = folder.map_err(LibraryError::io("create", root))?;
        let [installed, temporary, library] =
            ["installed", "temporary", "library"].map(|name| folder.path().join(name));
        for folder in [&installed, &temporary, &library] {
            fs::create_dir(folder).map_err(LibraryError::io("create", folder))?;
        }
        Ok(Self { root: root.to_owned(), installed, temporary, library, folder })
    }

    pub(crate) fn requirements(&self) -> PathBuf {
        self.folder.path().join("requirements.txt")
    }

    /// The size of the largest file that pip has written up to now: the wheel, before it is unpacked.
    pub(crate) fn downloaded_bytes(&self) -> u64 {
        largest(&self.temporary, 4)
    }

    /// Takes ONNX Runtime's library, its providers, and what they may be used for, out of the package.
    pub(crate) fn take_library(&self) -> Result<Vec<RecordedFile>, LibraryError> {
        let package = self.installed.join("onnxruntime");
        let folder = package.join("capi");
        let entries = fs::read_dir(&folder).map_err(LibraryError::io("read", &folder))?;
        let of_runtime = entries.flatten().map(|entry| entry.path()).filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime"))
        });
        let license = Some(package.join("LICENSE")).filter(|file| file.is_file());
        let mut files = Vec::new();
        for path in of_runtime.chain(license) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = path.metadata().map_err(LibraryError::io("read", &path))?.len();
            fs::rename(&path, self.library.join(&name)).map_err(LibraryError::io("move", &path))?;
            let taken = self.library.join(&name);
            let crc32 = checksum_of(&taken).map_err(LibraryError::io("read", &taken))?;
            files.push(RecordedFile { name, bytes, crc32 });
        }
        Ok(files)
    }

    /// Writes the record, makes all of it durable, and gives it its final name. A damaged folder of that name is replaced.
    pub(crate) fn publish(&self, target: &Path, record: &CacheRecord) -> Result<(), LibraryError> {
        let path = self.library.join(RECORD);
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::other);
        text.and_then(|text| fs::write(&path, text)).map_err(LibraryError::io("write", &path))?;
        self.sync()?;
        if target.exists() {
            fs::rename(target, self.folder.path().join("replaced"))
                .map_err(LibraryError::io("replace", target))?;
        }
        fs::rename(&self.library, target).map_err(LibraryError::io("create", target))?;
        self.sync()
    }

    /// Makes everything on the disk of the cache durable.
    fn sync(&self) -> Result<(), LibraryError> {
        let synced = File::open(&self.root).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
        synced.map_err(LibraryError::io("sync", &self.root))
    }
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
