//! A flow in memory: a graph whose items are requests and whose records go back to those who asked. There is no list of items, no journal and no output
//! folder; sources, batches, folds and workers are those of a run.
//!
//! ```text
//! process -> Requests -- RequestIntake -> Source -> loaders -> the graph -> ReplyEnds -> Requests -> process
//!                \__ a row for a batch that reads the source alone: into its slot ___/
//! ```

mod admission;
mod admitted;
mod endpoints;
mod flow;
mod waiting;

pub use admitted::{Admitted, RequestRows, ShowRow};
pub use flow::{ProcessError, Request, RequestFlow, RequestFlowOptions, RequestTerms, StartFlowError};
pub use waiting::{ReplyRecord, RowOutputs};
