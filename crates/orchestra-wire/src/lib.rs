//! What parent and worker share: control frames over a Unix socket, and the arena of batch slots in shared memory.
//!
//! Tensors never travel in frames, other than outputs whose shape is only known after the run. Nothing here decides anything,
//! starts a process or knows ONNX Runtime.

pub mod arena;
pub mod codec;
pub mod frames;

/// The socket's file descriptor in a worker process.
pub const WORKER_SOCKET_FD: i32 = 3;
/// The arena's file descriptor in a worker process.
pub const WORKER_ARENA_FD: i32 = 4;
/// The version that a worker puts into its `Hello`: that of this crate, which parent and worker were both built with.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
