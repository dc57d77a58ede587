//! Measures the limits of this machine for a workflow, and how close a run comes to them.
//!
//! It prints nothing, edits no file of the user, and leaves nothing behind but what it returns. Nothing here is part of a run.
//!
//! # What is measured
//! Three parts, each in a process of its own. They are there at the same time and take turns of a tenth of a second, the others stopped
//! (SIGSTOP) with all of their workers, so that whatever else the machine does falls on all of them alike; each counts the time of its
//! own turns. Where a GPU is used or memory is short they run one after the other instead.
//!
//! * **decode**, per source: as many threads as there are cores read, decode and prepare the items of a sample, with the code that
//!   loaders use, into the rows of the batch slots. No actors, no workers.
//! * **infer**, per infer stage: the workers that the plan gives the stage, real processes over the same batch slots, with inputs that
//!   are ready, the largest batch of the plan and as many batches in flight each as in a run. No loaders, no results.
//! * **run**: the whole thing, as `orchestra run` does it, over the same sample, into a folder of its own.
//!
//! # The limit
//! Times are *core seconds*: seconds of one core per item. For a part that keeps all of its threads busy that is `threads / rate`, with
//! no more threads counted than there are cores; a session with several threads is charged the CPU time that its process used, because
//! those threads wait for each other and somebody else may have the core meanwhile.
//!
//! An item of a sample that is mixed of several sources costs, on average,
//!
//! ```text
//! cores:     (Σ sources weight · decode seconds + Σ stages weight · share on the CPU · inference seconds) / cores
//! each GPU:  Σ stages on it  weight / rate of the stage on all of its devices
//! limit   =  1 / the largest of these
//! ```
//!
//! where `weight` is the share of the items that go through a source or stage (1 with a single source), and a stage on several
//! devices is taken to spread over them in proportion to their rates. With one CPU device this is
//! `cores / (decode seconds + inference seconds)`, with one GPU `min(decode rate of all cores, rate of the GPU)`. Writing results, batching
//! and moving items about are not in it: what they cost is what keeps a run below its limit.
//!
//! # The rate of a run
//! Where a run is long enough, its rate is that of its steady state: from the moment when what the loaders had prepared before the first
//! worker was ready is through and as much is in flight as usual, to the moment when the last item is handed out; both ends have the same fill, so nothing is counted that
//! was done before. A run that is too short for that is judged as a whole, its start included, and says so ([`Measured`]).
//!
//! `ratio` is the median of the rounds' `run / limit`.
//!
//! # A machine that does other things
//! Rates shrink when other programs use the cores, and not all by the same part: a run has more threads that ask for a core than a part
//! has, so on a busy machine it may even exceed its limit. Therefore the report says what part of the cores went to others
//! (`others_share`), and has a second ratio that rests on CPU time (`ratio_by_cpu_time`): decoding and inference by all CPU time of the
//! run, times the part of the time in which the cores were not idle. On a quiet machine whose cores are the limit both ratios agree.

mod advice;
mod bare_worker;
mod bench;
mod cpu_time;
mod decode;
mod error;
mod figures;
mod infer;
mod limit;
mod memory;
mod own_time;
mod part;
mod part_process;
mod patch;
mod report;
mod rungs;
#[cfg(test)]
mod test_plan;
mod tune;
mod turns;
mod whole_run;
mod workbench;

pub use advice::{Advice, Pace};
pub use bench::{Bench, Options, PartCommand, Progress, Replan, Tell};
pub use error::BenchError;
pub use figures::{DecodeFigures, InferFigures, Measured, RunFigures};
pub use limit::{Bound, DeviceLoad, Limit, Loads, StageLoad};
pub use orchestra_trial::{Cancel, Cause, Spread};
pub use part::{Job, Part, serve};
pub use patch::{PatchError, edited, unified_diff};
pub use report::{DecodePart, InferPart, Report, RoundReport, RunPart};
pub use rungs::{Rung, RungReport};
pub use tune::{Setting, Settings, Trial, Tuned};
pub use workbench::Tools;
