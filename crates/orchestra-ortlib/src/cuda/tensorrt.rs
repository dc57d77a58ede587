//! The libraries of TensorRT, which ONNX Runtime's TensorRT provider needs besides those of CUDA. Looks where those of CUDA are looked for;
//! loads none.

use std::fs;
use std::path::{Path, PathBuf};

use super::places::{self, Place};
use super::{CudaGeneration, CudaLibraries, CudaLibrary, CudaOrigin, Need};
use crate::candidate;
use crate::env::Env;
use crate::error::LibraryError;
use crate::library::{Library, Tried};

/// The file of ONNX Runtime that holds the provider, beside the library itself.
pub const TENSORRT_PROVIDER: &str = "libonnxruntime_providers_tensorrt.so";

/// As in `WANTED`: the provider of ONNX Runtime 1.31 is linked against the first two (`readelf -d`) and opens the plugins by name.
const WANTED: [(&str, Need); 3] = [
    ("libnvinfer.so.10", Need::Always),
    ("libnvonnxparser.so.10", Need::Always),
    ("libnvinfer_plugin.so.10", Need::SomeModels),
];
const PRODUCT: &str = "tensorrt";
/// The Python package. Newer ones than 10 hold libraries of other names.
const PACKAGE: &str = "tensorrt-cu13-libs";
const OF_PIP: &str = "python3 -m pip install 'tensorrt-cu13-libs<11'";
/// The folder of the package, among the others of a Python.
const FOLDER: &str = "tensorrt_libs";

/// Looks for them in the places of [`find_cuda`](super::find_cuda). All are listed, found or not; those that were found may be loaded after
/// the libraries of CUDA, in this order.
#[must_use]
pub fn find_tensorrt(env: &Env, runtime: Option<&Path>) -> CudaLibraries {
    let mut tried = Vec::new();
    let mut places = places::without_python(env, runtime, CudaGeneration::default(), &mut tried);
    let beside = runtime.into_iter().flat_map(Path::ancestors).skip(1).take(4).map(|f| f.join(FOLDER));
    places.push(Place::new(CudaOrigin::BesideRuntime, beside.collect()));
    let mut libraries = choose(&places, &mut tried);
    if libraries.iter().any(|l| l.found.is_none()) {
        places.extend(places::beside_nvidia(env, FOLDER, &mut tried));
        // They are judged once more.
        tried.retain(|t| !WANTED.iter().any(|(name, _)| t.place.ends_with(name)));
        libraries = choose(&places, &mut tried);
    }
    CudaLibraries { libraries, tried, ..CudaLibraries::default() }
}

/// How to get them.
#[must_use]
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
#[must_use]
pub fn tensorrt_provider(runtime: &Path) -> Option<PathBuf> {
    runtime.parent().map(|folder| folder.join(TENSORRT_PROVIDER)).filter(|file| file.is_file())
}

/// All from the first place that has all that is always needed, else each from the first that has it.
fn choose(places: &[Place], tried: &mut Vec<Tried>) -> Vec<CudaLibrary> {
    let candidates: Vec<Vec<_>> = places
        .iter()
        .map(|place| {
            let find = |name| place.find_sound(name, PACKAGE, tried, candidate::examine_library);
            WANTED.iter().map(|(name, _)| *name).map(find).collect()
        })
        .collect();
    let is_whole = |place: &&Vec<Option<_>>| {
        WANTED.iter().zip(*place).all(|((_, need), found)| *need != Need::Always || found.is_some())
    };
    let whole = candidates.iter().find(is_whole);
    let library = |(i, &(name, need)): (usize, &(&'static str, Need))| {
        let of_whole = whole.and_then(|place| place[i].clone());
        let found = of_whole.or_else(|| candidates.iter().find_map(|place| place[i].clone()));
        let found = found.map(|mut found| {
            found.version = found.version.or_else(|| version(&found.path));
            found
        });
        CudaLibrary { name, product: PRODUCT, need, package: PACKAGE, found }
    };
    WANTED.iter().enumerate().map(library).collect()
}

/// From the record that pip keeps beside the package's folder (`tensorrt_cu13_libs-10.16.1.11.dist-info`).
fn version(library: &Path) -> Option<String> {
    let folder = library.parent().filter(|folder| folder.ends_with(FOLDER))?;
    let record = format!("{}-", PACKAGE.replace('-', "_"));
    let names = fs::read_dir(folder.parent()?).ok()?;
    let versions = names.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(name.strip_prefix(&record)?.strip_suffix(".dist-info")?.to_owned())
    });
    versions.max()
}
