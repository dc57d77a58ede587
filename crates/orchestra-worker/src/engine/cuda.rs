//! The CUDA provider: its options and the libraries it needs. Whether nodes really run on it is `session`'s business.

use std::path::{Path, PathBuf};

use orchestra_core::ErrorClass;
use ort::ep;
use ort::ep::ExecutionProviderDispatch;
use ort::ep::cuda::{CUDA_DYLIBS, CUDNN_DYLIBS, ConvAlgorithmSearch};

use super::errors;
use crate::serve::LoadError;

/// The provider as the runtime names it.
pub const NAME: &str = "CUDAExecutionProvider";

/// The provider for the one device that this process sees.
pub fn provider(memory_limit: Option<u64>) -> ExecutionProviderDispatch {
    let mut cuda = ep::CUDA::default()
        .with_device_id(0)
        // EXHAUSTIVE, the default, searches up to a second for every batch size that is new.
        .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic)
        // Doubling would take twice what a worker was planned with.
        .with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
        // As the runtime's own default, so that results equal those of a plain script; set, because its documents disagree.
        .with_tf32(true);
    if let Some(limit) = memory_limit {
        cuda = cuda.with_memory_limit(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    // Without this a provider that does not load means a session on the CPU and nothing but a log line.
    cuda.build().error_on_failure()
}

/// Why the provider did not load, and what to do.
pub fn not_usable(error: &ort::Error) -> LoadError {
    let text = error.to_string();
    let class = match errors::load(&text).class {
        ErrorClass::Overload => ErrorClass::Overload,
        _ => ErrorClass::Permanent,
    };
    LoadError {
        class,
        error: format!("cuda cannot be used: {text}; `orchestra doctor` says what is missing"),
    }
}

/// Loads CUDA's and cuDNN's libraries from where Python wheels and NVIDIA's installer put them, if they are there: the provider then
/// finds them without `LD_LIBRARY_PATH`. What is missing is the system loader's business, and its error says so.
pub fn preload(library: &Path) {
    let folders = folders(library);
    for name in CUDA_DYLIBS.iter().chain(CUDNN_DYLIBS) {
        let file = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
        if let Some(Err(error)) = file.map(ort::util::preload_dylib) {
            eprintln!("worker: `{name}` cannot be preloaded: {error}");
        }
    }
}

/// Folders to look in, best first: beside the runtime, `nvidia/*/lib` of the wheels that it was installed with, the installer's.
fn folders(library: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (up, folder) in library.ancestors().skip(1).take(4).enumerate() {
        if up == 0 {
            folders.push(folder.to_owned());
        }
        let Ok(wheels) = std::fs::read_dir(folder.join("nvidia")) else { continue };
        let mut of_wheels: Vec<_> = wheels.flatten().map(|wheel| wheel.path().join("lib")).collect();
        of_wheels.sort();
        folders.append(&mut of_wheels);
    }
    folders.push("/usr/local/cuda/lib64".into());
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_beside_the_runtime_come_before_the_system() {
        let root = std::env::temp_dir().join(format!("orchestra-wheels-{}", std::process::id()));
        let capi = root.join("onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        std::fs::create_dir_all(root.join("nvidia/cu13/lib")).unwrap();
        let found = folders(&capi.join("libonnxruntime.so.1"));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [capi, root.join("nvidia/cu13/lib"), "/usr/local/cuda/lib64".into()]);
    }
}
