//! The processes that a run starts. What parent and workers share: control frames over a Unix socket, inputs and outputs of batches in shared
//! memory, and the loop that serves batches for any [`Engine`]; and the [`keeper`] of a command.
//!
//! Tensors never travel in frames, other than outputs whose shape is only known after the run. A worker decides nothing: it loads what it
//! is told, begins what it is told in the order of the frames, and says what happened. Only a keeper starts a process. None installs a global
//! subscriber, and each ends when its parent does.

pub mod arena;
pub mod codec;
pub mod engine;
pub mod exit_codes;
pub mod frames;
pub mod held_process;
pub mod keeper;
pub mod library;
pub mod limits;
pub mod link;
pub mod load_error;
pub mod loader;
pub mod mapping;
pub mod output_region;
pub mod page_lock;
pub mod process;
pub mod program;
pub mod sandbox;
pub mod script;
pub mod serve;
mod streams;
pub mod striker;
mod waiting;

pub use engine::{Engine, EngineRunError, Loaded, Stream};
pub use load_error::LoadError;
pub use process::run_with;
pub use sandbox::Sandbox;
pub use waiting::LoadWait;

/// The socket's file descriptor in a worker or loader process.
pub const WORKER_SOCKET_FD: i32 = 3;
/// The file descriptor of the inputs in a worker process.
pub const WORKER_INPUTS_FD: i32 = 4;
/// The file descriptor of the outputs in a worker process.
pub const WORKER_OUTPUTS_FD: i32 = 5;
/// The file descriptor of the region in a loader process.
pub const LOADER_REGION_FD: i32 = 4;
/// The version that a worker puts into its `Hello`: that of this crate, which parent and worker were both built with.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
