//! The libraries of TensorRT, which ONNX Runtime's TensorRT provider needs besides those of CUDA. Looks where those of CUDA are looked for;
//! loads none.

use std::path::{Path, PathBuf};

use super::generation::{Wanted, wanted};
use super::places::{self, LibraryFolders};
use super::{CudaGeneration, CudaLibraries, CudaSearch, Need};
use crate::library::env::Env;
use crate::library::error::LibraryError;
use crate::library::found::Library;
use crate::library::origin::LibraryOrigin;
use crate::library::shared_library;

/// The file of ONNX Runtime that holds the provider, beside the library itself.
pub const TENSORRT_PROVIDER: &str = "libonnxruntime_providers_tensorrt.so";

/// The provider of ONNX Runtime 1.31 is linked against the first two (`readelf -d`) and opens the plugins by name.
const WANTED: [Wanted; 3] = [
    wanted("libnvinfer.so.10", "tensorrt", Need::Always, PACKAGE),
    wanted("libnvonnxparser.so.10", "tensorrt", Need::Always, PACKAGE),
    wanted("libnvinfer_plugin.so.10", "tensorrt", Need::SomeModels, PACKAGE),
];
/// The Python package. Newer ones than 10 hold libraries of other names.
const PACKAGE: &str = "tensorrt-cu13-libs";
const OF_PIP: &str = "python3 -m pip install 'tensorrt-cu13-libs<11'";
/// The folder of the package, among the others of a Python.
pub(super) const TENSORRT_FOLDER: &str = "tensorrt_libs";

/// Looks for them in the places of [`find_cuda`](super::find_cuda). All are listed, found or not; those that were found may be loaded after
/// the libraries of CUDA, in this order.
pub fn find_tensorrt(env: &Env, runtime: Option<&Path>) -> CudaLibraries {
    let mut tried = Vec::new();
    let mut places = places::without_python(env, runtime, CudaGeneration::default(), &mut tried);
    let above = runtime.into_iter().flat_map(Path::ancestors).skip(1).take(4);
    places.push(LibraryFolders::new(
        LibraryOrigin::BesideRuntime,
        above.map(|f| f.join(TENSORRT_FOLDER)).collect(),
    ));
    let search = CudaSearch {
        wanted: &WANTED,
        is_needed: |need| need == Need::Always,
        examine: &|_, path| shared_library::needed(path).map(drop),
    };
    let beside = |nvidia: &Path| nvidia.parent().map(|site| site.join(TENSORRT_FOLDER)).into_iter().collect();
    let of_pythons = |tried: &mut Vec<_>| places::of_each_python(env, tried, beside);
    let libraries = search.run(places, of_pythons, &mut tried);
    CudaLibraries { libraries, tried, ..CudaLibraries::default() }
}

pub fn how_to_get_tensorrt() -> &'static str {
    OF_PIP
}

/// Adds TensorRT's libraries to those of CUDA, which must be loaded before them.
///
/// # Errors
/// ONNX Runtime's TensorRT provider is not beside the library, or a library that it does not load without is nowhere.
pub fn add_tensorrt(mut library: Library, env: &Env) -> Result<Library, LibraryError> {
    if tensorrt_provider(&library.path).is_none() {
        return Err(LibraryError::NoTensorRtProvider { runtime: library.path });
    }
    let found = find_tensorrt(env, Some(&library.path));
    let missing: Vec<&'static str> = found.missing(Need::Always).map(|l| l.name).collect();
    if !missing.is_empty() {
        return Err(LibraryError::NoTensorRt { missing, help: OF_PIP, tried: found.tried });
    }
    library.cuda.libraries.extend(found.libraries.into_iter().filter(|l| l.found.is_some()));
    Ok(library)
}

/// The provider that belongs to ONNX Runtime's library `runtime`, if its build has it.
pub fn tensorrt_provider(runtime: &Path) -> Option<PathBuf> {
    runtime.parent().map(|folder| folder.join(TENSORRT_PROVIDER)).filter(|file| file.is_file())
}
