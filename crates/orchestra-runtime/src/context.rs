//! What every actor of a run shares: the plan, the clock, the counters, the way to start workers. Nothing here changes during a run
//! but counters.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use orchestra_core::WorkerId;
use orchestra_core::restart::RestartPolicy;
use orchestra_plan::Plan;
use orchestra_wire::frames::TraceContext;
use tokio::time::Instant;

use crate::events::{EventHook, WorkerEvent};
use crate::launcher::Launcher;
use crate::stats::Stats;

/// Durations that bound what a worker may take. The defaults suit real machines; tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the start of the process to its first frame, which it sends before it loads anything.
    pub handshake: Duration,
    /// From the load frame to the loaded frame, while the worker's heart beats.
    pub load: Duration,
    /// Silence after which a process counts as frozen (it sends a heartbeat every 250 ms).
    pub heartbeat: Duration,
    /// From the request to end to the exit; then it is killed.
    pub shutdown: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            load: Duration::from_secs(600),
            heartbeat: Duration::from_secs(3),
            shutdown: Duration::from_secs(5),
        }
    }
}

/// Gives the trace context of a span, so that a worker's part can be joined to it. The runtime itself knows no tracing backend.
pub type TraceHook = Arc<dyn Fn(&tracing::Span) -> Option<TraceContext> + Send + Sync>;

/// How a run shall be carried out.
#[derive(Clone)]
pub struct RunOptions {
    /// Starts worker processes.
    pub launcher: Arc<dyn Launcher>,
    /// ONNX Runtime's shared library.
    pub library: PathBuf,
    /// Bounds.
    pub timeouts: Timeouts,
    /// When dead workers are replaced.
    pub restart: RestartPolicy,
    /// Trace contexts, if traces are exported.
    pub trace: Option<TraceHook>,
    /// Who is told what happens to workers.
    pub events: Option<EventHook>,
}

/// The time since the start of the run. Follows tokio's clock, so tests may pause it.
#[derive(Debug, Clone, Copy)]
pub struct RunClock(Instant);

impl RunClock {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// See the module.
pub struct RunContext {
    /// What runs.
    pub plan: Arc<Plan>,
    /// Id of the run, as in `run.json`.
    pub run_id: String,
    /// Time.
    pub clock: RunClock,
    /// Counters.
    pub stats: Arc<Stats>,
    /// How.
    pub options: RunOptions,
    next_worker: AtomicU32,
}

impl RunContext {
    /// The context of a run that starts now.
    #[must_use]
    pub fn new(plan: Arc<Plan>, run_id: String, options: RunOptions) -> Self {
        let stats = Arc::new(Stats::new(&plan));
        Self { plan, run_id, clock: RunClock::start(), stats, options, next_worker: AtomicU32::new(0) }
    }

    /// An id that no other worker of this run has or had.
    pub fn new_worker_id(&self) -> WorkerId {
        WorkerId(self.next_worker.fetch_add(1, Ordering::Relaxed))
    }

    /// Tells who wants to know. Where nobody does, the event is not even made.
    #[inline]
    pub fn tell(&self, event: impl FnOnce() -> WorkerEvent) {
        if let Some(hook) = &self.options.events {
            hook(&event());
        }
    }
}
