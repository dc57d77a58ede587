//! What is asked of a library, and where one was looked for.

use std::fmt;

use orchestra_core::named_enum;
use serde::{Deserialize, Serialize};

/// Where to look first: folders, separated by `:`. In each, `lib`, `lib64` and `*/lib` are looked at as well.
pub const CUDA_LIBRARIES_VARIABLE: &str = "ORCHESTRA_CUDA_LIBRARIES";

pub(crate) const CUDA_PROVIDER: &str = "libonnxruntime_providers_cuda.so";

named_enum! {
    /// What the library must be able to do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Flavor {
        /// Run on the CPU. Every library can.
        Cpu = "CPU",
        /// Run on the CPU and on CUDA devices: `libonnxruntime_providers_cuda.so` must lie beside the library.
        Gpu = "GPU",
    }
}

/// Where a library lies. The second half is of CUDA's, in the order in which these are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LibraryOrigin {
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

impl fmt::Display for LibraryOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LibraryOrigin::Explicit => "named explicitly",
            LibraryOrigin::Env => "ORT_DYLIB_PATH",
            LibraryOrigin::Cache => "cache",
            LibraryOrigin::Fetched => "fetched",
            LibraryOrigin::Named => CUDA_LIBRARIES_VARIABLE,
            LibraryOrigin::LoaderPath => "LD_LIBRARY_PATH",
            LibraryOrigin::BesideRuntime => "beside ONNX Runtime",
            LibraryOrigin::System => "system",
            LibraryOrigin::Python => "Python package",
        })
    }
}

/// A place that was looked at, and why it was of no use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tried {
    pub origin: LibraryOrigin,
    pub place: String,
    pub why: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (`{}`): {}", self.origin, self.place, self.why)
    }
}
