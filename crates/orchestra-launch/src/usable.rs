//! Whether workers could use the GPUs of this machine: a GPU build of ONNX Runtime, the libraries of CUDA, a driver that is new enough.
//! Looks only: it loads and fetches nothing, and a worker has the last word.

use std::path::{Path, PathBuf};

use orchestra_machine::{DriverProbe, Machine, NvmlProbe, driver_problem};
use orchestra_onnx::library::{CudaLibraries, Env, Flavor, LibraryError, LibraryRequest, look_for_cuda};

/// What this machine has, as far as a run could use it: where something is missing that every GPU needs, `gpus_unusable` says what, a plan
/// with `devices.use = "auto"` takes the CPU, and one that names a GPU is an error. `ort_library` and `offline` are those of the run. Blocks,
/// for some files and perhaps the start of a Python.
#[must_use]
pub fn usable_machine(ort_library: Option<&Path>, offline: bool) -> Machine {
    let machine = crate::machine();
    // Without a GPU nothing is looked for, and nothing is missing.
    let gpus_unusable =
        if machine.gpus.is_empty() { None } else { why_no_cuda(ort_library.map(Path::to_owned), offline) };
    Machine { gpus_unusable, ..machine }
}

/// Why no worker could use any GPU of this machine, and what to do; `None`: nothing speaks against it.
#[must_use]
pub fn why_no_cuda(ort_library: Option<PathBuf>, offline: bool) -> Option<String> {
    let request = LibraryRequest { flavor: Flavor::Gpu, explicit: ort_library, offline };
    problem(look_for_cuda(&request, &Env::from_process()), &NvmlProbe::new())
}

fn problem(cuda: Result<CudaLibraries, LibraryError>, driver: &dyn DriverProbe) -> Option<String> {
    match cuda {
        Err(error) => Some(error.to_string()),
        Ok(cuda) => driver_problem(driver, cuda.generation.number(), cuda.has_driver_library),
    }
}

#[cfg(test)]
mod tests {
    use orchestra_machine::{Gpu, ProbeError};
    use orchestra_onnx::library::CudaGeneration;

    use super::*;

    /// A driver of CUDA 12.
    struct Driver;

    impl DriverProbe for Driver {
        fn version(&self) -> Result<String, ProbeError> {
            Ok("570.86.15".into())
        }

        fn cuda(&self) -> Result<(i32, i32), ProbeError> {
            Ok((12, 8))
        }
    }

    fn libraries(generation: CudaGeneration) -> CudaLibraries {
        CudaLibraries { generation, has_driver_library: true, ..CudaLibraries::default() }
    }

    #[test]
    fn the_driver_is_judged_by_what_the_runtime_is_built_for() {
        assert_eq!(problem(Ok(libraries(CudaGeneration::Twelve)), &Driver), None);
        let why = problem(Ok(libraries(CudaGeneration::Thirteen)), &Driver).unwrap();
        assert!(why.contains("driver 580 or newer"), "{why}");
        let why = problem(Err(LibraryError::NoCacheFolder), &Driver).unwrap();
        assert!(why.contains("ORCHESTRA_CACHE"), "{why}");
    }

    #[test]
    fn a_plan_sees_no_gpu_that_cannot_be_used_and_is_told_why() {
        let gpus = vec![Gpu { uuid: "GPU-1".into(), memory_total: 1 << 30, ..Gpu::default() }];
        let usable = Machine { gpus, gpu_error: None, ..crate::machine() };
        let view = crate::machine_view(&usable);
        assert_eq!((view.devices.len(), view.no_gpu), (1, None));
        let unusable = Machine { gpus_unusable: Some("the driver is old".into()), ..usable };
        let view = crate::machine_view(&unusable);
        assert_eq!((view.devices.len(), view.no_gpu.as_deref()), (0, Some("the driver is old")));
    }
}
