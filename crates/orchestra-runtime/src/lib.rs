//! The actors that carry a plan out.
//!
//! ```text
//! Orchestra (root)
//! ├── Observer
//! ├── DeviceManager per device ── WorkerLink per live worker process
//! └── Pipeline per graph
//!       ├── Source ── Loader × n (each with a decoding thread)
//!       ├── Batcher and Post per infer stage
//!       └── Sink ── the committer thread, which owns the journal
//! ```
//!
//! Nothing here parses a workflow file, decodes a picture or knows ONNX Runtime; nothing here prints or exits. Decisions are taken in
//! `orchestra-core`; actors carry them out.

mod batcher;
mod committer;
mod context;
mod device_manager;
mod events;
#[cfg(test)]
mod fault_tests;
pub mod launcher;
mod loader;
mod loader_inbox;
mod loader_thread;
mod messages;
mod observer;
mod pipeline;
mod post;
mod read_file;
mod records;
mod remains;
mod report;
mod root;
mod sink;
mod slot_pool;
mod snapshot;
mod source;
mod start;
mod stats;
mod topology;
mod worker_deadlines;
mod worker_link;
mod worker_process;

pub use context::{RunOptions, Timeouts, TraceHook};
pub use events::{EventHook, WorkerEvent};
pub use launcher::{Launcher, ProcessLauncher};
pub use read_file::read_file;
pub use remains::Remains;
pub use report::{DeviceReport, ItemCounts, LoaderReport, RunReport, StageReport};
pub use snapshot::{DeviceSnapshot, Snapshot, StageSnapshot};
pub use start::{Found, Prepared, RunHandle, RunOutcome, StartRunError, StopHandle, prepare};
