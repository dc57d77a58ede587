//! What ONNX Runtime's error texts mean. It reads texts only: the runtime gives `GenericFailure` for nearly everything.

use orchestra_core::ErrorClass;
use orchestra_wire::frames::RunErrorKind;

use crate::serve::{LoadError, RunError};

/// Memory ran out, on the device or in the process. Checked first: CUDA reports it as a failure of the device, too.
const OUT_OF_MEMORY: [&str; 8] = [
    "out of memory",
    "failed to allocate memory",
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    "status_alloc_failed",
    "available memory of", // BFCArena: "Available memory of 1048576 is smaller than requested bytes of 4194304"
    "bad_alloc",
    "bad allocation",
];

/// The device, its driver or a library of the provider failed. Such errors stick to the process.
const DEVICE: [&str; 9] = [
    "cuda failure",
    "cuda error",
    "cudaerror",
    "cuda_error_",
    "cublas failure",
    "cublas_status",
    "cudnn failure",
    "cudnn_status",
    "cufft failure",
];

/// What an error of a run means.
pub fn run_kind(text: &str) -> RunErrorKind {
    let text = text.to_ascii_lowercase();
    let says = |patterns: &[&str]| patterns.iter().any(|p| text.contains(p));
    if says(&OUT_OF_MEMORY) {
        RunErrorKind::OutOfMemory
    } else if says(&DEVICE) {
        RunErrorKind::Device
    } else {
        RunErrorKind::Model
    }
}

/// An error of a run, by its text.
pub fn run(error: &ort::Error) -> RunError {
    let error = error.to_string();
    RunError { kind: run_kind(&error), error }
}

/// An error that speaks against the model or its data.
pub fn model(error: String) -> RunError {
    RunError { kind: RunErrorKind::Model, error }
}

/// The worker's own memory is not enough for so many rows.
pub fn no_memory(rows: usize) -> RunError {
    let error = format!("failed to allocate memory for `{rows}` rows outside of the batch slots");
    RunError { kind: RunErrorKind::OutOfMemory, error }
}

/// An error of loading, by its text: a device that fails may be better next time, a model that is refused will not.
pub fn load(text: &str) -> LoadError {
    let class = match run_kind(text) {
        RunErrorKind::OutOfMemory => ErrorClass::Overload,
        RunErrorKind::Device => ErrorClass::Transient,
        RunErrorKind::Model => ErrorClass::Permanent,
    };
    LoadError { class, error: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts_have_their_class() {
        use RunErrorKind::{Device, Model, OutOfMemory};
        let known = [
            (
                "Non-zero status code returned while running Conv node. Name:'/c' Status Message: CUDNN failure 4: \
              CUDNN_STATUS_INTERNAL_ERROR ; GPU=0",
                Device,
            ),
            ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", Device),
            ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0", Device),
            ("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);", OutOfMemory),
            ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", OutOfMemory),
            (
                "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 77",
                OutOfMemory,
            ),
            (
                "bfc_arena.cc:342 Available memory of 1048576 is smaller than requested bytes of 4194304",
                OutOfMemory,
            ),
            ("std::bad_alloc", OutOfMemory),
            ("Got invalid dimensions for input: x for the following indices", Model),
            ("indices element out of data bounds, idx=9 must be within the inclusive range [-3,2]", Model),
        ];
        for (text, kind) in known {
            assert_eq!(run_kind(text), kind, "{text}");
        }
        assert_eq!(load("CUDA failure 2: out of memory").class, ErrorClass::Overload);
        assert_eq!(load("CUDA failure 46: all CUDA-capable devices are busy").class, ErrorClass::Transient);
        assert_eq!(load("Protobuf parsing failed.").class, ErrorClass::Permanent);
    }
}
