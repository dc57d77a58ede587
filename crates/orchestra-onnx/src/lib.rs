//! ONNX Runtime: the engine that runs models in workers ([`OnnxEngine`]), what the parent tells it ([`OnnxSpec`]), and where its library
//! comes from ([`library`]). Only this crate uses `ort`, and only a worker process may load the library.

use std::process::ExitCode;

pub mod digest;
pub mod engine;
pub mod library;
mod session_names;
mod spec;
#[doc(hidden)]
pub mod untrusted;

/// What finds out along which axis of each output the items of a batch lie.
pub mod probe {
    pub use crate::engine::probe::{PROBE, Probe, main, of_environment};
}

pub use engine::OnnxEngine;
pub use spec::{ENVIRONMENT, OnnxSpec};

/// A worker's entry point: serves ONNX models to the process that started it, until that ends. A program that wants to be its own
/// worker executable calls this first in its `main` when it is started as one, before it starts threads or opens files.
pub fn main() -> ExitCode {
    orchestra_worker::run_with(&mut OnnxEngine::new())
}
