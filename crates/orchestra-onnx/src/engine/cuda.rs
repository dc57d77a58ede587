//! The CUDA provider: its options and the libraries it needs. Whether nodes really run on it is `session`'s business.

use std::path::{Path, PathBuf};

use orchestra_core::ConvSearch;
use ort::ep;
use ort::ep::ExecutionProviderDispatch;
use ort::ep::cuda::ConvAlgorithmSearch;

use super::cuda_runtime::CudaRuntime;
use super::errors;
use crate::spec::OnnxSpec;
use orchestra_worker::arena::WorkerArena;
use orchestra_worker::library::SharedLibrary;
use orchestra_worker::load_error::LoadError;
use orchestra_worker::page_lock;

/// The provider as the runtime names it.
pub const NAME: &str = "CUDAExecutionProvider";

/// The provider for the one device that this process sees.
pub fn provider(spec: &OnnxSpec) -> ExecutionProviderDispatch {
    // Without this a provider that does not load means a session on the CPU and nothing but a log line.
    options(spec).build().error_on_failure()
}

fn options(spec: &OnnxSpec) -> ep::CUDA {
    let mut cuda = ep::CUDA::default()
        .with_device_id(0)
        .with_conv_algorithm_search(match spec.tuning.conv_search {
            ConvSearch::Heuristic => ConvAlgorithmSearch::Heuristic,
            ConvSearch::Exhaustive => ConvAlgorithmSearch::Exhaustive,
        })
        // Doubling would take twice what a worker was planned with.
        .with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
        // Set in any case, because the runtime's documents disagree about its default.
        .with_tf32(spec.tf32);
    if let Some(limit) = spec.memory_limit {
        cuda = cuda.with_memory_limit(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    cuda
}

/// Has cuBLAS, cuDNN and TensorRT round no product to TF32, in this whole process: the options of the providers are not all that decides
/// about it. Before any of these libraries is loaded.
pub fn forbid_tf32() {
    // SAFETY: the other threads of a worker, those of its heart and its reader, look at no variable.
    unsafe { std::env::set_var("NVIDIA_TF32_OVERRIDE", "0") };
}

/// Whether this process has the one device that it was started for and no other, as CUDA itself counts them.
pub fn check_alone(uuid: &str) -> Result<(), LoadError> {
    match CudaRuntime::of_this_process() {
        Some(cuda) => alone(&cuda, uuid),
        // One of another name: the provider has it, and only the provider asks it anything.
        None => Ok(()),
    }
}

fn alone(cuda: &CudaRuntime, uuid: &str) -> Result<(), LoadError> {
    match cuda.devices() {
        Ok(1) => Ok(()),
        Ok(n) => Err(LoadError::permanent(format!(
            "CUDA shows {n} devices to this worker, expected `{uuid}` alone; what starts the workers must leave `CUDA_VISIBLE_DEVICES` \
                 as it is"
        ))),
        Err(why) => Err(errors::load(&why)),
    }
}

/// Output slots that are page-locked beyond those of the batches that run: two batches wait at the worker, and two are being processed. Each
/// worker has as many output slots as its stage has slots, and what is page-locked takes memory whether it is used or not. The GPU copies to
/// the others more slowly; a stage that uses them waits for what follows it.
const MORE_OUTPUTS: usize = 4;

/// Page-locks the slots, for the GPU of this process, which runs `streams` batches at once. Call it when the provider is loaded.
pub fn page_lock(arena: &WorkerArena, streams: usize) {
    let said = match CudaRuntime::of_this_process() {
        Some(cuda) => page_lock::page_lock(arena, streams + MORE_OUTPUTS, |start, bytes, flags| {
            // SAFETY: the slots are mapped as long as the arena, which lives as long as the process.
            cuda.check(unsafe { (cuda.register)(start, bytes, flags) })
        }),
        None => vec![
            "slots are not page-locked: CUDA's runtime is not in the process under a known name".to_owned(),
        ],
    };
    said.iter().for_each(|said| eprintln!("worker: {said}"));
}

/// Why the provider did not load, and what to do.
pub fn not_usable(error: &ort::Error) -> LoadError {
    errors::provider(error, |text| {
        format!("cuda cannot be used: {text}; `orchestra doctor` says what is missing")
    })
}

/// Loads CUDA's and cuDNN's libraries by full path, in this order: the provider then finds them without `LD_LIBRARY_PATH`, because the
/// loader takes a library that is in the process already for one of the same name. One that cannot be loaded is named; whether it is needed,
/// the provider says.
pub fn preload<'a>(libraries: impl IntoIterator<Item = &'a PathBuf>) {
    for library in libraries {
        if let Err(why) = keep(library) {
            eprintln!("worker: `{}` cannot be preloaded: {why}", library.display());
        }
    }
}

/// Loads a library for as long as the process lives, with its symbols for all that comes after it.
fn keep(library: &Path) -> Result<(), String> {
    // SAFETY: NVIDIA's libraries run nothing in their initialisers that asks for more than a process.
    unsafe { SharedLibrary::open(library, libc::RTLD_NOW | libc::RTLD_GLOBAL) }.map(drop)
}

#[cfg(test)]
mod tests {
    use orchestra_core::{ErrorClass, SessionTuning};

    use super::super::cuda_runtime::fake;
    use super::super::provider_options::{spec, told};
    use super::*;

    #[test]
    fn the_runtime_is_told_what_the_plan_says_and_nothing_that_takes_more_memory() {
        let always = [("device_id", "0"), ("arena_extend_strategy", "kSameAsRequested")];
        let plain = OnnxSpec { memory_limit: None, tf32: false, ..spec(&[]) };
        let off = [("use_tf32", "false"), ("cudnn_conv_algo_search", "HEURISTIC")];
        assert!(told(&options(&plain), &[&always[..], &off].concat()));
        let conv_search = ConvSearch::Exhaustive;
        let tuning = SessionTuning { conv_search, ..SessionTuning::default() };
        let all = OnnxSpec { memory_limit: Some(5 << 30), tf32: true, tuning, ..plain };
        let limit = (5u64 << 30).to_string();
        let on = [("use_tf32", "true"), ("gpu_mem_limit", &limit), ("cudnn_conv_algo_search", "EXHAUSTIVE")];
        assert!(told(&options(&all), &[&always[..], &on].concat()));
    }

    #[test]
    fn a_library_that_cannot_be_loaded_is_named_with_the_loaders_reason() {
        let nothing = Path::new("/nowhere/libcudart.so.13");
        let why = keep(nothing).unwrap_err();
        assert!(why.contains("/nowhere/libcudart.so.13"), "{why}");
        preload(&[nothing.to_owned()]);
        // The C library is in every process, so that loading it again changes nothing.
        assert_eq!(keep(Path::new("libc.so.6")), Ok(()));
    }

    #[test]
    fn a_worker_to_which_cuda_shows_another_number_of_devices_than_one_is_refused() {
        assert_eq!(alone(&fake::RUNTIME, "GPU-1"), Ok(()));
        fake::show(2);
        let error = alone(&fake::RUNTIME, "GPU-1").unwrap_err();
        assert_eq!(error.class, ErrorClass::Permanent);
        assert!(error.error.contains("shows 2 devices") && error.error.contains("`GPU-1` alone"), "{error}");
        fake::refuse(&["count"]);
        assert_eq!(alone(&fake::RUNTIME, "GPU-1").unwrap_err().class, ErrorClass::Transient);
    }
}
