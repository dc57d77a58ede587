//! Entries of `paths`: what each stands for, and what lies in a folder below it. Sorts nothing and opens no file.

use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use fast_glob::{glob_match, validate};

use super::{ListError, MANIFEST, PassedOver, is_hidden_part};

/// Characters that make a path a glob.
pub(super) const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// The folder that each output folder of a run holds.
const OUTPUT_MARK: &str = ".orchestra";

#[derive(Debug)]
pub(crate) struct PathsEntry {
    pub pattern: String,
    /// The folder that names are relative to, as far as this entry decides. Absolute.
    pub root: PathBuf,
    kind: PatternKind,
}

/// What a name in a folder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderEntry {
    File,
    Folder,
    /// It is neither, for this reason.
    PassedOver(PassedOver),
}

#[derive(Debug)]
enum PatternKind {
    File(PathBuf),
    Folder,
    Glob(Glob),
}

/// A glob below a root.
#[derive(Debug)]
pub(super) struct Glob {
    pattern: String,
    /// Folders below the root that can matter.
    max_depth: usize,
    /// Names that begin with a dot are looked at, too.
    pub takes_hidden: bool,
}

impl Glob {
    /// `rest` of the entry `pattern`, which is matched with what lies below its root.
    pub fn parse(pattern: &str, rest: &str) -> Result<Self, ListError> {
        if rest.ends_with('/') {
            let below = format!(
                "it ends with `/`, and folders are no items: write `{pattern}**` for all files below them"
            );
            return Err(bad(pattern, &below));
        }
        validate(rest).map_err(|e| bad(pattern, &e.to_string()))?;
        // A leading `!` would turn the meaning round.
        let escaped = if rest.starts_with('!') { format!("\\{rest}") } else { rest.to_owned() };
        let max_depth = if rest.contains("**") { usize::MAX } else { rest.matches('/').count() + 1 };
        let takes_hidden = rest.split('/').any(|part| is_hidden_part(part.as_bytes()));
        Ok(Self { pattern: escaped, max_depth, takes_hidden })
    }

    pub fn takes(&self, relative: &[u8]) -> bool {
        glob_match(&self.pattern, relative)
    }
}

impl PathsEntry {
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
            Ok(m) if m.is_dir() => (physical(&path), PatternKind::Folder),
            Ok(_) => file(&path),
            // A link that leads nowhere exists: it is listed and fails by name.
            Err(_) if path.symlink_metadata().is_ok() => file(&path),
            Err(_) if pattern.contains(GLOB_CHARACTERS) => glob(base, pattern)?,
            Err(e) if is_missing(&e) => return Err(ListError::NoSuchFile { pattern: pattern.into(), path }),
            Err(error) => return Err(ListError::Unreadable { pattern: pattern.into(), path, error }),
        };
        Ok(Self { pattern: pattern.into(), root, kind })
    }

    /// The only file of this entry, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            PatternKind::File(path) => Some(path),
            PatternKind::Folder | PatternKind::Glob(_) => None,
        }
    }

    /// Its file, or the folder below which its files lie.
    pub fn place(self) -> PathBuf {
        match self.kind {
            PatternKind::File(path) => path,
            PatternKind::Folder | PatternKind::Glob(_) => self.root,
        }
    }

    /// Whether this entry takes a file below its root.
    pub fn takes(&self, file: &Path) -> bool {
        match &self.kind {
            PatternKind::Glob(g) => file
                .strip_prefix(&self.root)
                .is_ok_and(|relative| g.takes(relative.as_os_str().as_encoded_bytes())),
            PatternKind::File(_) | PatternKind::Folder => true,
        }
    }

    /// Gives what lies in `folder`, which is the root or below it, in no particular order, until `visit` says no. Left out is what
    /// vanishes meanwhile; what a glob does not match is not counted as passed over.
    pub fn children(
        &self,
        folder: &Path,
        visit: &mut dyn FnMut(FolderEntry, PathBuf) -> Result<bool, ListError>,
    ) -> Result<(), ListError> {
        let takes_hidden = matches!(&self.kind, PatternKind::Glob(g) if g.takes_hidden);
        let unreadable = |error: io::Error| match is_missing(&error) {
            true => Ok(()),
            false => Err(self.unreadable(folder, error)),
        };
        let names = match fs::read_dir(folder) {
            Ok(names) => names,
            Err(error) => return unreadable(error),
        };
        for name in names {
            let (path, kind) = match name.and_then(|name| Ok((name.path(), name.file_type()?))) {
                Ok(found) => found,
                Err(error) => {
                    unreadable(error)?;
                    continue;
                }
            };
            let child = match is_hidden(&path) && !takes_hidden {
                true => Some(FolderEntry::PassedOver(PassedOver::Hidden)),
                false => self.child(&path, kind),
            };
            let Some(child) = child else { continue };
            if matches!(child, FolderEntry::PassedOver(_)) && !self.takes(&path) {
                continue;
            }
            if !visit(child, path)? {
                break;
            }
        }
        Ok(())
    }

    /// What a name in a folder stands for, links followed. A link that leads nowhere, or to a folder that cannot be read, is a file that will
    /// fail by name, rather than vanish; what a folder holds that is also one above, because of a link on the way to it, is listed already.
    fn child(&self, path: &Path, kind: FileType) -> Option<FolderEntry> {
        if kind.is_symlink() {
            let Ok(target) = path.metadata() else { return Some(FolderEntry::File) };
            if !target.is_dir() {
                return Some(file_or_passed_over(path, target.is_file()));
            }
            if fs::read_dir(path).is_err() {
                return Some(FolderEntry::File);
            }
        } else if !kind.is_dir() {
            return Some(file_or_passed_over(path, kind.is_file()));
        }
        if self.is_above(path) {
            return Some(FolderEntry::PassedOver(PassedOver::LinkLoop));
        }
        if is_output_folder(path) {
            return Some(FolderEntry::PassedOver(PassedOver::OfRun));
        }
        let max_depth = match &self.kind {
            PatternKind::Glob(g) => g.max_depth,
            PatternKind::File(_) | PatternKind::Folder => usize::MAX,
        };
        let depth = path.strip_prefix(&self.root).map_or(0, |below| below.components().count());
        Some(if depth < max_depth {
            FolderEntry::Folder
        } else {
            FolderEntry::PassedOver(PassedOver::Folder)
        })
    }

    /// Whether a folder is the same as one above it, the root at most.
    fn is_above(&self, folder: &Path) -> bool {
        let id = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
        let mut above = folder.ancestors().skip(1).take_while(|above| above.starts_with(&self.root));
        id(folder).is_some_and(|folder| above.any(|above| id(above) == Some(folder)))
    }

    /// Going on would lose items silently.
    fn unreadable(&self, path: &Path, error: io::Error) -> ListError {
        ListError::Unreadable { pattern: self.pattern.clone(), path: path.into(), error }
    }
}

fn file_or_passed_over(path: &Path, is_file: bool) -> FolderEntry {
    match is_file {
        false => FolderEntry::PassedOver(PassedOver::Special),
        true if path.file_name().is_some_and(|name| name == MANIFEST) => {
            FolderEntry::PassedOver(PassedOver::OfRun)
        }
        true => FolderEntry::File,
    }
}

/// The deepest folder that holds all of `roots`.
pub(crate) fn common_root<'a>(mut roots: impl Iterator<Item = &'a Path>) -> PathBuf {
    let Some(first) = roots.next() else { return PathBuf::from("/") };
    roots.fold(first.to_owned(), |common, root| {
        common.components().zip(root.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
    })
}

fn file(path: &Path) -> (PathBuf, PatternKind) {
    let folder = physical(path.parent().unwrap_or(Path::new("/")));
    let file = match path.file_name() {
        Some(name) => folder.join(name),
        None => physical(path),
    };
    (folder, PatternKind::File(file))
}

fn glob(base: &Path, pattern: &str) -> Result<(PathBuf, PatternKind), ListError> {
    let split = match pattern.find(GLOB_CHARACTERS) {
        Some(at) => pattern[..at].rfind('/').map_or(0, |slash| slash + 1),
        None => 0,
    };
    let (prefix, rest) = pattern.split_at(split);
    let root = physical(&base.join(prefix));
    let glob = Glob::parse(pattern, rest)?;
    if !root.is_dir() {
        return Err(ListError::NoMatch { pattern: pattern.into(), under: root });
    }
    Ok((root, PatternKind::Glob(glob)))
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
    path.file_name().is_some_and(|name| is_hidden_part(name.as_encoded_bytes()))
}

/// Results are no items: a run whose output folder lies below its source would find its own logs there, and more of them each time.
fn is_output_folder(folder: &Path) -> bool {
    folder.join(OUTPUT_MARK).is_dir()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
