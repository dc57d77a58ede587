//! The worker process: one ONNX Runtime session that serves batches out of shared memory.
//!
//! It decides nothing: it loads what it is told, begins what it is told in the order of the frames, and says what happened. It never
//! starts processes, never installs a global subscriber, and ends when its parent does. `serve` is the protocol, for any
//! [`Engine`]; `engine` is the one that runs models.

pub mod digest;
pub mod engine;
pub mod memory_limit;
pub mod process;
pub mod rss;
pub mod serve;
mod spec;
mod streams;

pub use engine::OnnxEngine;
pub use process::{main, run_with};
pub use serve::{Engine, LoadError, Loaded, RunError, Stream};
pub use spec::{ENVIRONMENT, OnnxSpec};
