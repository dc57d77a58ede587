//! The actors that carry a plan out.
//!
//! ```text
//! RunRoot
//! ├── Tasks, which owns the leases of all commands
//! ├── DeviceManager per device ── a task per worker process, which lives its life
//! └── Pipeline per graph
//!       ├── Source, which owns the loader threads
//!       └── Batcher per stage that runs in workers
//! ```
//!
//! What has ended of items goes to `JournalEnds`, and on to the committer thread, which owns the journal.
//!
//! A [`RequestFlow`] is the same tree without list and journal: its items are requests, and their ends are answers.
//!
//! Nothing here parses a workflow file, decodes a picture or knows an engine; nothing here prints or exits. Decisions are taken in
//! `orchestra-core`; actors carry them out.

mod account;
mod actor_threads;
mod batch;
mod child;
mod context;
mod doubt;
mod events;
#[cfg(test)]
mod fault_tests;
mod fleet;
mod flow;
mod look;
mod messages;
mod panics;
mod pipeline;
mod requests;
mod root;
mod run_end;
mod start;
mod tasks;
pub mod trace;

pub use account::counter::Counter;
pub use account::histogram::{BATCH_SIZES, HistogramReading, TIMES};
pub use account::history_line::{HistoryEvent, HistoryLine, PlannedRun, TaskLimits, each_history_line};
pub use account::meter::{Meter, RunObserver};
pub use account::outcome::RunOutcome;
pub use account::pace::StagePace;
pub use account::stage_status::{BatchStatus, StageStatus};
pub use account::stats::{DeviceStats, PipelineStats, StageOnDevice, StageStats, Stats};
pub use account::status::{
    DeviceStatus, ItemCounts, ListedExtent, LoaderStatus, OutputReport, PipelineStatus, RunStatus,
    failure_causes,
};
pub use actor_threads::{actor_runtime, join_blocking};
pub use batch::outputs::CopiedOutput;
pub use child::spawn::{
    Launched, ProcessLauncher, WorkerProcess, allowed, inherited, with_standard_streams_alone,
};
pub use context::{EngineVersion, RunOptions, Timeouts};
pub use events::{EventHook, WorkerEvent};
pub use fleet::device_use::{DeviceUse, WorkerUse};
pub use fleet::device_watch::{DeviceOptions, DeviceWatch};
pub use fleet::launcher::{EngineSpec, Engines, Launcher, WorkerMemory, load_frame};
pub use fleet::live_workers::{LiveWorker, LiveWorkers};
pub use flow::file_name::IndexLine;
pub use flow::ticket::RequestContent;
pub use flow::uploads::{Manifest, ManifestPart, digest};
pub use look::{LooksInLoader, expand_of};
pub use orchestra_core::worker_exit::ExitKind;
pub use requests::{
    Admitted, ProcessError, ReplyRecord, Request, RequestFlow, RequestFlowOptions, RequestRows, RequestTerms,
    RowOutputs, ShowRow, StartFlowError,
};
pub use start::{Earlier, FoundResults, Prepared, RunHandle, StartRunError, StopHandle, prepare};
pub use tasks::board::{TaskBoard, TaskReport, TaskStanding};
pub use tasks::earlier::{KnownTask, commands_live, known as known_tasks, task_history, task_results};
pub use tasks::groups::{GroupOwner, command_bounds};
pub use tasks::live::running_commands;
pub use trace::{RunTracer, Tracer};
