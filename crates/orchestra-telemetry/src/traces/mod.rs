//! Traces: the way of items through a run as spans, and their export. Best effort by contract: a collector that is slow, down or absent
//! never fails or delays a run; what it missed is counted.
//!
//! Only the parent process makes spans. A run tells what happened, after it happened, as plain records (`orchestra_runtime::trace`); the
//! [`Recorder`] takes them down, decides which items are traced now that their end is known, and makes the spans in a thread of its own.
//! Workers report how long each phase of a batch took; what a dead worker left open is ended with its error.
//!
//! `docs/tracing.md` has the tree of spans, what is traced and what is dropped when. All names are in [`crate::names`].

mod assembly;
mod batch;
mod client;
pub mod context;
mod counts;
mod export;
mod ids;
mod item;
mod recorder;
mod run;
mod sampling;
mod settings;
mod span;
mod task;
#[cfg(test)]
mod tests;

pub use assembly::ItemParents;
pub use context::TraceContext;
pub use counts::SpanReport;
pub use recorder::Recorder;
pub use settings::{Protocol, ResolvedTraces, TraceSettings};

pub(crate) use export::SpanExport;

/// How much nicer threads are that explain the run: on busy cores they get a thirtieth of what a thread of the run gets, on idle ones all they want.
const NICE: i32 = 15;

/// Puts the calling thread behind the threads of the run. A thread that did this must share no lock with one that did not: it may stand
/// still for long while it holds it.
fn step_back() {
    // A system that refuses runs it like any other thread. On Linux a niceness is a thread's own.
    let _ = rustix::process::nice(NICE);
}
