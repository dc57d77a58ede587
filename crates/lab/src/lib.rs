//! Experiments with a workflow of the user: `bench` compares a run with the limit of the machine, `chaos` kills workers and audits every
//! record. It prints nothing, changes no file of the user, and no run depends on it.
//!
//! Every run here goes over a list of its own into a folder of its own ([`run`](mod@run), `item_lists`); the folder is removed with the
//! experiment. Tests use the [`worker_client`] as well.
//!
//! # Bench
//! Each round measures three things, one after the other:
//!
//! * **decode**, per source: one thread per core reads, decodes and prepares items with the code of the loaders. No actors, no workers.
//! * **infer**, per model stage: the workers of the plan run batches whose inputs are ready, as many in flight as in a run.
//! * **run**: the workflow, as `orchestra run` does it.
//!
//! The first two give the *limit*. Costs are core seconds per item: `threads / rate`, with no more threads counted than cores. Sessions of
//! several threads are charged their CPU time instead, because their threads wait for each other while other threads have the core; so are
//! workers that drive a GPU.
//!
//! ```text
//! cores:     (Σ sources weight · decode seconds + Σ stages weight · share of the device · inference or driving seconds) / cores
//! each GPU:  Σ stages on it  weight / rate of the stage on all of its devices
//! limit   =  1 / the largest of these
//! ```
//!
//! `weight` is the share of the items that go through a source or stage. What it costs to batch, move and write items is not in the limit:
//! it is what `run / limit` shows. That ratio exists only where the run has a steady state ([`bench_report::Report::too_short`]).
//!
//! # Chaos
//! Each round runs the workflow twice over the same items, in peace and while a thread sends SIGKILL and SIGSTOP to workers, and then
//! compares every record with the list and with the record of the other run. *Recovery* is the time from a strike to the next batch in the
//! same place, *stall* that to the next batch of any other worker of the stage.

pub mod audit;
mod bare_worker;
pub mod bench;
pub mod bench_report;
mod busy;
pub mod chaos;
pub mod chaos_report;
mod decode;
mod error;
mod infer;
mod item_lists;
mod leaks;
mod limit;
mod memory;
pub mod run;
mod stats;
pub mod striker;
mod tracker;
mod whole_run;
pub mod worker_client;

pub use error::LabError;
pub use run::{Cancel, EnginesOf, Progress, Tell, Tools};
pub use stats::{Quantiles, Spread};
