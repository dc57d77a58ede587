//! Finds ONNX Runtime's shared library, or fetches it once.
//! Never loads it: what a library can do is the worker's business, and only its file is looked at here.
//!
//! The places, in order: the path that was asked for, `ORT_DYLIB_PATH`, our cache, the folders of the dynamic linker, an
//! installed Python package. Only when all of them have none does `pip` fetch one pinned wheel, whose SHA-256 is known
//! beforehand, and the library goes into the cache for every later run of this user.
//!
//! ```no_run
//! use orchestra_onnx::library::{Env, Flavor, Request, Silent, find_or_fetch};
//!
//! let request = Request { flavor: Flavor::Cpu, explicit: None, offline: false };
//! let library = find_or_fetch(&request, &Env::from_process(), &mut Silent)?;
//! println!("{} ({})", library.path.display(), library.origin);
//! # Ok::<(), orchestra_onnx::library::LibraryError>(())
//! ```

mod cache;
mod candidate;
mod child;
mod cuda;
mod env;
mod error;
mod fetch;
mod found;
mod lock;
mod origin;
mod pins;
mod pip;
mod python;
mod search;
mod shared_library;
mod staging;
mod system_folders;

pub use self::candidate::MINIMUM_VERSION;
pub use self::cuda::{
    CudaGeneration, CudaLibraries, CudaLibrary, FoundLibrary, Need, TENSORRT_PROVIDER, add_tensorrt,
    find_cuda, find_nvrtc, find_tensorrt, how_to_get_tensorrt, tensorrt_provider,
};
pub use self::env::Env;
pub use self::error::LibraryError;
pub use self::found::{Library, LibraryRequest, Progress, Silent};
pub use self::origin::{CUDA_LIBRARIES_VARIABLE, Flavor, LibraryOrigin, Tried};
pub use self::pins::{Pin, pinned};

use self::search::LibrarySearch;

/// Looks for a library without fetching one. The second value is every place that had none which can be used, and why.
pub fn find(request: &LibraryRequest, env: &Env) -> (Option<Library>, Vec<Tried>) {
    let mut search = LibrarySearch::new(request, env);
    // An error is in the second value, too.
    (search.run().ok().flatten(), search.tried)
}

/// What a GPU needs besides the driver, as far as files tell: a GPU build of ONNX Runtime, or a way to fetch one, and the libraries of CUDA
/// that it is built for. Fetches and loads nothing.
///
/// # Errors
/// What is missing, and what to do. Fetching may still fail for want of a network.
pub fn look_for_cuda(request: &LibraryRequest, env: &Env) -> Result<CudaLibraries, LibraryError> {
    let there = there(request, env)?;
    if there.is_none() {
        fetch::is_possible(request.flavor, env)?;
    }
    cuda_of(env, there.as_ref())
}

/// As `find_or_fetch` for GPUs, together with the libraries of CUDA: nothing is fetched for a GPU that cannot be used anyway.
///
/// # Errors
/// As for `find_or_fetch`; or a library that the CUDA provider does not load without is nowhere.
pub fn find_or_fetch_with_cuda(
    request: &LibraryRequest,
    env: &Env,
    progress: &mut dyn Progress,
) -> Result<Library, LibraryError> {
    let there = there(request, env)?;
    let mut cuda = cuda_of(env, there.as_ref())?;
    let library = match there {
        Some(library) => library,
        None => {
            let library = fetch::fetch(request.flavor, env, progress)?;
            cuda = cuda_of(env, Some(&library))?;
            library
        }
    };
    for library in cuda.missing(Need::SomeModels) {
        tracing::warn!(
            library = library.name,
            "a library of CUDA is missing; models that need it will not load"
        );
    }
    Ok(Library { cuda, ..library })
}

/// The library that is used if nothing is fetched; `None`: one is to be fetched.
fn there(request: &LibraryRequest, env: &Env) -> Result<Option<Library>, LibraryError> {
    let mut search = LibrarySearch::new(request, env);
    let found = search.run()?;
    if found.is_none() && request.offline {
        return Err(LibraryError::Offline { flavor: request.flavor, tried: search.tried });
    }
    for tried in search.tried.iter().filter(|_| found.is_none()) {
        tracing::debug!(place = %tried.place, why = %tried.why, "no runtime library");
    }
    Ok(found)
}

/// The libraries of CUDA for this build of ONNX Runtime, or for the one that is fetched; an error if one is missing that nothing runs
/// without.
fn cuda_of(env: &Env, runtime: Option<&Library>) -> Result<CudaLibraries, LibraryError> {
    let cuda = find_cuda(env, runtime.map(|library| library.path.as_path()));
    if let (Some(why), Some(runtime)) = (&cuda.provider_problem, runtime) {
        let path = runtime.path.with_file_name(origin::CUDA_PROVIDER);
        return Err(LibraryError::Provider { path, why: why.clone() });
    }
    let missing: Vec<&'static str> = cuda.missing(Need::Always).map(|library| library.name).collect();
    if missing.is_empty() {
        return Ok(cuda);
    }
    let help = cuda.how_to_get().unwrap_or_default();
    Err(LibraryError::NoCuda { generation: cuda.generation, missing, help, tried: cuda.tried })
}

/// Looks for a library and, where there is none and the request is not offline, fetches one into the cache. Safe to call
/// from many threads and processes at once: one of them fetches, the others wait for it.
///
/// # Errors
/// A path that the user named cannot be used, or nothing was found and the fetch is forbidden, impossible or failed. Every
/// text says what to do.
pub fn find_or_fetch(
    request: &LibraryRequest,
    env: &Env,
    progress: &mut dyn Progress,
) -> Result<Library, LibraryError> {
    match there(request, env)? {
        Some(library) => Ok(library),
        None => fetch::fetch(request.flavor, env, progress),
    }
}
