//! The actors that carry a plan out.
//!
//! ```text
//! Orchestra (root)
//! ├── Observer
//! ├── DeviceManager per device ── WorkerLink per live worker process
//! └── Pipeline per graph
//!       ├── Source ── Loader × n (each with a decoding thread)
//!       ├── Batcher and Processor per stage that runs in workers, Fold per stage that brings parts together
//!       └── Sink ── the committer thread, which owns the journal
//! ```
//!
//! Nothing here parses a workflow file, decodes a picture or knows ONNX Runtime; nothing here prints or exits. Decisions are taken in
//! `orchestra-core`; actors carry them out.

mod actor_threads;
mod batcher;
mod committer;
mod context;
mod device_manager;
mod device_use;
mod device_watch;
mod ended;
mod events;
mod exit_kind;
mod failures;
#[cfg(test)]
mod fault_tests;
mod flights;
mod flow;
mod greeting;
mod histogram;
mod in_flight;
mod journey;
pub mod launcher;
mod link_start;
mod live_workers;
mod loader;
mod loader_inbox;
mod loader_thread;
mod messages;
mod meter;
mod observer;
mod pipeline;
mod pipeline_use;
mod remains;
mod report;
mod root;
mod run_end;
mod sink;
mod slot_pool;
mod snapshot;
mod source;
mod start;
mod stats;
mod ticket;
pub mod trace;
mod watcher;
mod worker_deadlines;
mod worker_link;
mod worker_memory;
mod worker_port;
mod worker_process;
mod worker_stderr;

pub use actor_threads::{actor_runtime, interrupt_nobody};
pub use context::{RunOptions, Timeouts};
pub use device_use::{DeviceUse, WorkerUse};
pub use device_watch::{DeviceOptions, DeviceWatch};
pub use events::{EventHook, WorkerEvent};
pub use exit_kind::ExitKind;
pub use flow::chain::Env;
pub use histogram::HistogramReading;
pub use launcher::{Launcher, ProcessLauncher};
pub use live_workers::{LiveWorker, LiveWorkers};
pub use meter::Meter;
pub use pipeline_use::{PipelineLook, PipelineUse};
pub use remains::Remains;
pub use report::{
    DeviceReport, ItemCounts, LoaderReport, PipelineOnDevice, PipelineReport, RunReport, StageReport,
};
pub use snapshot::{DeviceSnapshot, PipelineSnapshot, Snapshot, StageSnapshot};
pub use start::{Found, Prepared, RunHandle, RunOutcome, StartRunError, StopHandle, prepare};
pub use stats::{Counter, DeviceStats, PipelineStats, StageOnDevice, StageStats, Stats};
pub use trace::{RunTracer, Tracer};
