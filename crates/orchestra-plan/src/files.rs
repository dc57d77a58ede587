//! What kinds may ask of the world while they are planned. Decides nothing.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use orchestra_core::kernel::Compiler;
use orchestra_core::shapes::{KindSettings, Network};
use orchestra_core::{Program, SandboxMode, SandboxRules};
use orchestra_store::ListError;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::bytes::format_bytes;

/// What is larger holds no labels.
pub(crate) const MAX_SMALL_FILE: u64 = 64 << 20;

/// Files, variables and programs, as far as a kind depends on them.
pub trait Files {
    /// The first `n` bytes of a file, or all of it where it is shorter.
    fn head(&self, path: &Path, n: usize) -> io::Result<Vec<u8>> {
        self.read(path).map(|mut bytes| {
            bytes.truncate(n);
            bytes
        })
    }

    /// What a file or object of a source holds, as far as its kind asks for it; `None`: no file is looked into here.
    fn look(&self, request: &LookRequest<'_>) -> Option<Result<Vec<u8>, ListError>> {
        let _ = request;
        None
    }

    /// The contents of a small file (labels).
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// A variable of the environment; `None` where there is none, or no text.
    fn variable(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// SHA-256 of a file (custom operator libraries).
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.read(path).map(|bytes| Sha256::digest(bytes).into())
    }

    /// What lies at `path`, links followed.
    fn file_kind(&self, path: &Path) -> FileKind;

    /// The path without `.` and `..`, as far as that changes nothing.
    fn resolve(&self, path: &Path) -> PathBuf {
        lexical(path)
    }

    /// What a program prints that is confined to `rules`, and ends by itself soon.
    ///
    /// # Errors
    /// It cannot be started, takes too long, prints too much or fails; with its last words.
    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String> {
        let _ = (program, rules);
        Err("programs cannot be started here".to_owned())
    }

    /// What can compile kernels on this machine, newest first.
    fn compilers(&self) -> Result<Vec<Compiler>, String> {
        Ok(Vec::new())
    }
}

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Nothing that can be reached.
    Missing,
    /// A file that can be read more than once.
    Regular,
    Folder,
    /// A pipe, a device or a socket.
    Other,
}

/// A file or object of a source that its kind asks something of, while it is planned.
#[derive(Debug, Clone, Copy)]
pub struct LookRequest<'a> {
    /// In a form of the kind, which alone reads the answer.
    pub question: &'a KindSettings,
    /// Its path, or its URL.
    pub file: &'a Path,
    /// What is needed to reach it, where it is an object.
    pub network: Option<&'a Network>,
    /// Whether what looks into it is confined.
    pub sandbox: SandboxMode,
}

/// Opens a file that can be read more than once, and in time: to open a pipe waits for its writer, a device may never end, and a hole of any length costs nothing.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() && !meta.is_dir() {
        return Err(io::Error::other("it is a pipe, a device or a socket; a file is expected"));
    }
    let file = File::open(path)?;
    if meta.len() > LARGE && is_hollow(&file, meta.len())? {
        return Err(io::Error::other(format!("nearly all of its {} are a hole", format_bytes(meta.len()))));
    }
    Ok(file)
}

/// Files up to this size may be holes.
const LARGE: u64 = 1 << 30;

/// Whether less than 1/64 of a file is on the disk, by what the file system says of its parts; compressed weights take more.
fn is_hollow(file: &File, length: u64) -> io::Result<bool> {
    let (mut at, mut written) = (0, 0);
    while written < length / 64 {
        let data = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break, // no data from here to the end
            // The file system does not say.
            Err(_) => return Ok(false),
            Ok(data) => data,
        };
        at = seek(file, SeekFrom::Hole(data))?;
        written += at - data;
    }
    seek(file, SeekFrom::Start(0))?;
    Ok(written < length / 64)
}

/// SHA-256 of a file, read as a stream. A file that gives more bytes than its size is refused: those of `/proc` may never end.
pub(crate) fn digest_file(path: &Path) -> io::Result<[u8; 32]> {
    let file = open_regular(path)?;
    let size = file.metadata()?.len();
    let mut hash = Sha256::new();
    if io::copy(&mut file.take(size.saturating_add(1)), &mut hash)? > size {
        return Err(io::Error::other(format!("it has more bytes than its size, which is {size}")));
    }
    Ok(hash.finalize().into())
}

/// The path without `.` and `..`, by its text alone.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(clean.components().next_back(), Some(Component::Normal(_))) => {
                clean.pop();
            }
            Component::ParentDir if clean.has_root() => {}
            part => clean.push(part),
        }
    }
    clean
}
