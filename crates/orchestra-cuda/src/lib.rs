//! CUDA kernels in source: the engine that compiles one and launches it in a worker ([`KernelEngine`]), and what the parent tells it
//! ([`KernelSpec`]). Only a worker process may load the driver and the compiler; both are found when it runs, so no toolkit is needed to build.

use std::process::ExitCode;

mod arguments;
mod buffers;
mod compile;
mod engine;
mod errors;
mod ffi;
mod spec;

pub use engine::KernelEngine;
pub use spec::{ENVIRONMENT, KernelSpec, is_asked_for};

/// A worker's entry point: launches a kernel for the process that started it, until that ends. To be called first in `main`, before threads are
/// started or files are opened.
pub fn main() -> ExitCode {
    orchestra_worker::run_with(&mut KernelEngine::default())
}
