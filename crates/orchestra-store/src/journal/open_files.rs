//! Opens the files of a run, each its own, and cuts them to what counts.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::append_file::AppendFile;
use super::entry::resolve;
use super::placed::lies_below;
use super::start::{BeginError, failed};
use crate::atomic::sync_folder_of;
use crate::folder::OutputFolder;
use crate::layout::foreign;

/// Opens or makes them; two that are one are refused.
pub(super) fn open_files(folder: &OutputFolder, files: &[PathBuf]) -> Result<Vec<AppendFile>, BeginError> {
    if files.len() > usize::from(u16::MAX) {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "a run has at most 65535 files");
        return Err(BeginError::Io { path: folder.path().to_owned(), source });
    }
    let mut names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut open = Vec::with_capacity(files.len());
    for file in files {
        let path = resolve(folder.path(), file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        if !lies_below(&path, folder.path()).map_err(failed(&path))? {
            return Err(BeginError::Io {
                path,
                source: foreign("outside of the output folder, or behind a link out of it"),
            });
        }
        let file = AppendFile::open(&path).map_err(failed(&path))?;
        sync_folder_of(&path).map_err(failed(&path))?;
        let identity = file.identity().map_err(failed(&path))?;
        if let Some(first) = names.insert(identity, path.clone()) {
            return Err(BeginError::SameFile { first, second: path });
        }
        open.push(file);
    }
    Ok(open)
}

/// Takes links away that stand in the place of files, where the run may replace what is there. What they lead to stays.
pub(super) fn remove_links(folder: &Path, files: &[PathBuf]) -> Result<(), BeginError> {
    for path in files.iter().map(|file| resolve(folder, file)).filter(|path| path.is_symlink()) {
        fs::remove_file(&path).map_err(failed(&path))?;
    }
    Ok(())
}

/// Cuts the files to `lengths` and says how many bytes that cost.
pub(super) fn cut_files(
    files: &mut [AppendFile],
    lengths: &[u64],
    is_finished: bool,
) -> Result<u64, BeginError> {
    let too_long = |f: &AppendFile, len: u64| f.len() > len;
    if let Some((file, _)) = files.iter().zip(lengths).find(|(f, len)| is_finished && too_long(f, **len)) {
        return Err(BeginError::Grown(file.path().to_owned()));
    }
    let mut cut_bytes = 0;
    for (file, len) in files.iter_mut().zip(lengths) {
        cut_bytes += file.len().saturating_sub(*len);
        file.cut(*len).map_err(failed(file.path()))?;
    }
    Ok(cut_bytes)
}
