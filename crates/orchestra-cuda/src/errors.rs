//! What the error codes of the driver mean. It calls nothing.

use orchestra_worker::engine::EngineRunError;
use orchestra_worker::frames::RunErrorKind;
use orchestra_worker::load_error::LoadError;

/// An error of the driver, by its number in `cuda.h` and in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaError {
    /// A `CUresult`.
    pub code: i32,
    /// What was called, and what the driver says.
    pub text: String,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`
pub const OUT_OF_MEMORY: i32 = 2;

/// What speaks against the kernel or how it is launched, and leaves the device as it was.
const OF_THE_KERNEL: [i32; 11] = [
    1,   // INVALID_VALUE: a block of more threads than the device has
    200, // INVALID_IMAGE
    209, // NO_BINARY_FOR_GPU
    218, // INVALID_PTX
    221, // JIT_COMPILER_NOT_FOUND
    222, // UNSUPPORTED_PTX_VERSION
    300, // INVALID_SOURCE
    301, // FILE_NOT_FOUND
    500, // NOT_FOUND: no such function
    701, // LAUNCH_OUT_OF_RESOURCES: more registers or shared memory than a block may have
    720, // COOPERATIVE_LAUNCH_TOO_LARGE
];

/// What no restart of a worker changes: the driver does not fit the kernel's module, the device or what the user may do.
const FOR_GOOD: [i32; 4] = [
    800, // NOT_PERMITTED
    801, // NOT_SUPPORTED
    803, // SYSTEM_DRIVER_MISMATCH
    804, // COMPAT_NOT_SUPPORTED_ON_DEVICE
];

/// Everything that is not known counts as a failure of the device: after an illegal address or a failed launch the process is of no more use.
pub fn run(CudaError { code, text }: CudaError) -> EngineRunError {
    let kind = match code {
        OUT_OF_MEMORY => RunErrorKind::OutOfMemory,
        code if OF_THE_KERNEL.contains(&code) => RunErrorKind::Model,
        _ => RunErrorKind::Device,
    };
    EngineRunError { kind, error: text }
}

/// As [`run`], of what happened before the first batch.
pub fn load(error: CudaError) -> LoadError {
    if FOR_GOOD.contains(&error.code) {
        return LoadError::permanent(error.text);
    }
    run(error).at_load()
}

#[cfg(test)]
mod tests {
    use orchestra_core::ErrorClass;

    use super::*;

    #[test]
    fn codes_have_their_class() {
        let error = |code| CudaError { code, text: String::new() };
        let kinds = [
            (2, RunErrorKind::OutOfMemory, ErrorClass::Overload),
            (1, RunErrorKind::Model, ErrorClass::Permanent),
            (701, RunErrorKind::Model, ErrorClass::Permanent),
            (700, RunErrorKind::Device, ErrorClass::Transient),
            (719, RunErrorKind::Device, ErrorClass::Transient),
            (100, RunErrorKind::Device, ErrorClass::Transient),
            (803, RunErrorKind::Device, ErrorClass::Permanent),
            (999, RunErrorKind::Device, ErrorClass::Transient),
        ];
        for (code, kind, class) in kinds {
            assert_eq!((run(error(code)).kind, load(error(code)).class), (kind, class), "{code}");
        }
    }
}
