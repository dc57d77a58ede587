//! Entries of `paths`: what each stands for, and the files below it. Sorts nothing and opens no file.

use std::io;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use walkdir::{DirEntry, WalkDir};

use crate::ListError;

/// Characters that make a path a glob.
const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// The folder that each output folder of a run holds.
const OUTPUT_MARK: &str = ".orchestra";

/// An entry of `paths`, understood.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As written.
    pub pattern: String,
    /// The folder that names are relative to, as far as this entry decides. Absolute.
    pub root: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    File(PathBuf),
    Folder,
    Glob(Glob),
}

#[derive(Debug)]
struct Glob {
    matcher: GlobMatcher,
    /// Folders below the root that can matter.
    max_depth: usize,
    takes_hidden: bool,
}

impl Entry {
    /// Looks at the file system to tell a file from a folder from a glob.
    pub fn resolve(base: &Path, pattern: &str) -> Result<Self, ListError> {
        if pattern.is_empty() {
            return Err(bad(pattern, "it is empty"));
        }
        if pattern.contains('\0') {
            return Err(bad(pattern, "a path cannot hold a NUL character"));
        }
        let path = base.join(pattern);
        let (root, kind) = match std::fs::metadata(&path) {
            Ok(m) if m.is_dir() => (physical(&path), Kind::Folder),
            Ok(_) => file(&path),
            // A link that leads nowhere exists: it is listed and fails by name.
            Err(_) if path.symlink_metadata().is_ok() => file(&path),
            Err(_) if pattern.contains(GLOB_CHARACTERS) => glob(base, pattern)?,
            Err(e) if is_missing(&e) => return Err(ListError::NoSuchFile { pattern: pattern.into(), path }),
            Err(error) => return Err(ListError::Unreadable { pattern: pattern.into(), path, error }),
        };
        Ok(Self { pattern: pattern.into(), root, kind })
    }

    /// Gives every file of this entry, in no particular order, until `visit` says no. Returns whether there was any.
    pub fn walk(&self, visit: &mut dyn FnMut(PathBuf) -> Result<bool, ListError>) -> Result<bool, ListError> {
        let (max_depth, takes_hidden) = match &self.kind {
            Kind::File(path) => return visit(path.clone()).map(|_| true),
            Kind::Folder => (usize::MAX, false),
            Kind::Glob(g) => (g.max_depth, g.takes_hidden),
        };
        let mut found = false;
        let walk = WalkDir::new(&self.root).follow_links(true).min_depth(1).max_depth(max_depth).into_iter();
        let enters =
            |e: &DirEntry| e.depth() == 0 || ((takes_hidden || !is_hidden(e.path())) && !is_output_folder(e));
        for entry in walk.filter_entry(enters) {
            let path = match entry {
                Ok(entry) if entry.file_type().is_file() => entry.into_path(),
                Ok(_) => continue,
                Err(e) => match self.unreadable(e)? {
                    Some(path) if takes_hidden || !is_hidden(&path) => path,
                    _ => continue,
                },
            };
            if !self.matches(&path) {
                continue;
            }
            found = true;
            if !visit(path)? {
                break;
            }
        }
        Ok(found)
    }

    fn matches(&self, path: &Path) -> bool {
        match &self.kind {
            Kind::Glob(g) => path.strip_prefix(&self.root).is_ok_and(|relative| g.matcher.is_match(relative)),
            _ => true,
        }
    }

    /// What an error of the walk means: a link that leads nowhere is a file that will fail by name; a link back to a folder above
    /// is walked already; a file that vanished meanwhile is no file; anything else would lose items silently.
    fn unreadable(&self, error: walkdir::Error) -> Result<Option<PathBuf>, ListError> {
        if error.loop_ancestor().is_some() {
            return Ok(None);
        }
        let path = error.path().unwrap_or(&self.root).to_owned();
        match path.symlink_metadata() {
            Ok(m) if m.is_symlink() && path != self.root => Ok(Some(path)),
            Err(e) if is_missing(&e) => Ok(None),
            _ => {
                let error = error.into_io_error().unwrap_or_else(|| io::Error::other("cannot be walked"));
                Err(ListError::Unreadable { pattern: self.pattern.clone(), path, error })
            }
        }
    }
}

/// The deepest folder that holds all of `roots`.
pub(crate) fn common_root<'a>(mut roots: impl Iterator<Item = &'a Path>) -> PathBuf {
    let Some(first) = roots.next() else { return PathBuf::from("/") };
    roots.fold(first.to_owned(), |common, root| {
        common.components().zip(root.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
    })
}

fn file(path: &Path) -> (PathBuf, Kind) {
    let folder = physical(path.parent().unwrap_or(Path::new("/")));
    let file = match path.file_name() {
        Some(name) => folder.join(name),
        None => physical(path),
    };
    (folder, Kind::File(file))
}

fn glob(base: &Path, pattern: &str) -> Result<(PathBuf, Kind), ListError> {
    let split = match pattern.find(GLOB_CHARACTERS) {
        Some(at) => pattern[..at].rfind('/').map_or(0, |slash| slash + 1),
        None => 0,
    };
    let (prefix, rest) = pattern.split_at(split);
    let root = physical(&base.join(prefix));
    let rest = rest.trim_end_matches('/');
    let matcher = GlobBuilder::new(rest)
        .literal_separator(true)
        .build()
        .map_err(|e| bad(pattern, &e.kind().to_string()))?
        .compile_matcher();
    let max_depth = if rest.contains("**") { usize::MAX } else { rest.matches('/').count() + 1 };
    let takes_hidden = rest.split('/').any(|part| part.starts_with('.'));
    if !root.is_dir() {
        return Err(ListError::NoMatch { pattern: pattern.into(), under: root });
    }
    Ok((root, Kind::Glob(Glob { matcher, max_depth, takes_hidden })))
}

fn bad(pattern: &str, reason: &str) -> ListError {
    ListError::BadPattern { pattern: pattern.into(), reason: reason.into() }
}

/// The path without `.` and `..`. Only where there is a `..` are links resolved: what `..` means depends on them.
fn physical(path: &Path) -> PathBuf {
    if path.components().any(|c| c == Component::ParentDir)
        && let Ok(real) = path.canonicalize()
    {
        return real;
    }
    path.components().collect()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Results are no items: a run whose output folder lies below its source would find its own logs there, and more of them each time.
fn is_output_folder(entry: &DirEntry) -> bool {
    entry.file_type().is_dir() && entry.path().join(OUTPUT_MARK).is_dir()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
