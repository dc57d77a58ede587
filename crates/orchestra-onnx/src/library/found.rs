//! The nouns of this crate: what is asked for, what is found, where from. Holds no behaviour beyond display.

use std::path::PathBuf;

use serde::Serialize;

use crate::library::cuda::CudaLibraries;
use crate::library::origin::{Flavor, LibraryOrigin};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryRequest {
    /// What the library must be able to do.
    pub flavor: Flavor,
    /// A library, or the folder of one, that the user named. It is used or it is an error; nothing else is looked at.
    pub explicit: Option<PathBuf>,
    pub offline: bool,
}

/// A library that can be loaded, as far as its file tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Library {
    /// The file, absolute and without symbolic links, because ONNX Runtime looks for its providers beside it.
    pub path: PathBuf,
    /// For example `1.31.1`; `None` where neither the file's name nor its symbols tell. Its loader must then check.
    pub version: Option<String>,
    pub origin: LibraryOrigin,
    pub flavor: Flavor,
    /// What a GPU needs besides; empty unless `find_or_fetch_with_cuda` found it.
    #[serde(skip)]
    pub cuda: CudaLibraries,
}

/// Hears how a fetch goes, and may end it.
pub trait Progress {
    /// A line for a person.
    fn note(&mut self, line: &str);

    /// Bytes downloaded up to now, and how many there are. Called often; may repeat itself.
    fn bytes(&mut self, done: u64, total: Option<u64>);

    /// Whether to give up. Asked several times a second; `pip` is then killed and what it left is removed.
    fn cancelled(&self) -> bool {
        false
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn note(&mut self, _line: &str) {}
    fn bytes(&mut self, _done: u64, _total: Option<u64>) {}
}
