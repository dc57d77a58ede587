//! What a run keeps through the faults of its workers, as deterministic tests: the real actors from the batcher to the links, over fake
//! workers and under paused time. One file per group of properties; real processes have their tests in `tests/` at the top.

mod account;
mod audit;
pub(crate) mod fake_plan;
mod fake_process;
mod fake_worker;
pub(crate) mod gpus;
mod log;
pub(crate) mod memory_store;
mod probe;
mod recorder;
mod script;
mod stage;

mod accepted;
mod answers;
mod cores;
mod deadlines;
mod deaths;
mod devices;
mod measuring;
mod memory;
mod order;
pub(crate) mod panics;
mod poison;
mod random;
mod recycling;
mod replacement;
mod request_rows;
mod request_terms;
mod requests;
mod restarts;
mod streams;
mod tracing;
