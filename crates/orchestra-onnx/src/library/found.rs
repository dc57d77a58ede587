//! The nouns of this crate: what is asked for, what is found, where from. Holds no behaviour beyond display.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::library::cuda::{CUDA_LIBRARIES_VARIABLE, CudaLibraries};

/// What the library must be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavor {
    /// Run on the CPU. Every library can.
    Cpu,
    /// Run on the CPU and on CUDA devices: `libonnxruntime_providers_cuda.so` must lie beside the library.
    Gpu,
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavor::Cpu => "CPU",
            Flavor::Gpu => "GPU",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
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
    pub origin: Origin,
    pub flavor: Flavor,
    /// What a GPU needs besides; empty unless `find_or_fetch_with_cuda` found it.
    #[serde(skip)]
    pub cuda: CudaLibraries,
}

/// Where a library lies. The second half is of CUDA's, in the order in which these are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    Explicit,
    Env,
    Cache,
    Fetched,
    Named,
    LoaderPath,
    BesideRuntime,
    System,
    Python,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Explicit => "named explicitly",
            Origin::Env => "ORT_DYLIB_PATH",
            Origin::Cache => "cache",
            Origin::Fetched => "fetched",
            Origin::Named => CUDA_LIBRARIES_VARIABLE,
            Origin::LoaderPath => "LD_LIBRARY_PATH",
            Origin::BesideRuntime => "beside ONNX Runtime",
            Origin::System => "system",
            Origin::Python => "Python package",
        })
    }
}

/// A place that was looked at, and why it was of no use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tried {
    pub origin: Origin,
    pub place: String,
    pub why: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (`{}`): {}", self.origin, self.place, self.why)
    }
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
