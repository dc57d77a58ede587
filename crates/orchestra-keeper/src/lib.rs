//! A keeper: the process between orchestra and one command of `[tasks.*]`. It starts the command in a group of its own, stamps what it writes
//! into a log, and ends it with all that it has started: when it is told to, and when orchestra is gone. It decides nothing and knows no plan.
//!
//! What a command starts has the keeper for its next parent (`PR_SET_CHILD_SUBREAPER`), also what leaves its group or session. So a keeper finds
//! and kills all of it, and is the last to go. Bound: of a keeper that is itself killed by SIGKILL only the command dies at once, by its own
//! death signal; what the command has started ends with the group, if orchestra still lives.

mod descendants;
mod keep;
mod log;
mod messages;
mod metrics;

pub use keep::main;
pub use messages::{Ended, KEEPER, MAX_MESSAGE, Order, Report, STOP_KILL, STOP_SIGNAL, decode, encode};
pub use metrics::{CurveOrder, MetricOrder, MetricValues, Metrics, MetricsOrder};
