//! Traces: the way of items through a run as spans, and their export. Best effort by contract: a collector that is slow, down or absent
//! never fails or delays a run; what it missed is counted.
//!
//! Only the parent process makes spans. A run tells what happened, after it happened, as plain records (`orchestra_runtime::trace`); the
//! [`Recorder`] takes them down, decides which items are traced now that their end is known, and makes the spans in a thread of its own.
//! Workers report how long each phase of a batch took; what a dead worker left open is ended with its error.
//!
//! ```text
//! workflow.run                      one start of a run
//! ├── worker.load                   a worker process, until its model is loaded and warm
//! └── batch                         rows that were sent to a worker, until done, failed or lost; a retry is another batch
//!       └── worker.run              the worker's part
//!             ├── worker.queue      the way of the frame, and behind the batch before it
//!             ├── worker.copy_in    binding and copies
//!             ├── worker.compute    the session's run
//!             └── worker.copy_out   copies of outputs
//!
//! item                              from the loader that took it to the journal
//! ├── item.read                     the file
//! ├── item.decode                   the picture
//! ├── item.row                      waiting for a free row of a stage, and writing it
//! ├── item.queue                    until the batch is sent
//! ├── item.infer                    the batch is with a worker
//! ├── item.post                     results become records
//! └── item.write                    until the record is in the journal
//! ```
//!
//! - An item is a trace of its own, or a child of the span that a host gave it. Traced are a share of the items, and besides all that
//!   failed, were tried again or were slow.
//! - The first batches are in the trace of the run. Later ones are traces of their own, and only there if one of their items is traced
//!   or they gave no result.
//! - Items and batches are linked with each other, attempts at the same rows with the ones before and after, and all of them with the run.
//! - Every span has the attribute `orchestra.run.id`. All names are in [`crate::names`].

mod assembly;
mod batch;
pub mod context;
mod export;
mod ids;
mod item;
mod queue;
mod recorder;
mod run;
mod sampling;
mod settings;
mod span;
#[cfg(test)]
mod tests;

pub use assembly::ItemParents;
pub use context::TraceContext;
pub use queue::SpanReport;
pub use recorder::Recorder;
pub use sampling::ItemSampling;
pub use settings::{ConfiguredTraces, ResolvedTraces, TraceSettings};

pub(crate) use export::Traces;
