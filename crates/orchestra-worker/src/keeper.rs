//! A keeper: the process between orchestra and a command of `[tasks.*]`. It starts the command in a group of its own, stamps what it writes
//! into a log, and ends it with all that it has started: when it is told to, and when orchestra is gone.
//! It decides nothing and knows no plan. Each command has a keeper of its own, which ends with it.
//!
//! What a command starts has the keeper for its next parent (`PR_SET_CHILD_SUBREAPER`), also what leaves its group or session. So a keeper finds
//! and kills all of it, and is the last to go. Bound: of a keeper that is itself killed by SIGKILL only the command dies at once, by its own
//! death signal; what the command has started ends with the group, if orchestra still lives.

mod claim;
mod curves;
mod descendants;
mod group;
mod keep;
mod log;
mod messages;
mod metrics;
mod start;

pub use claim::holders;
pub use descendants::{Descendant, is_stopped, kill_tree, trees};
pub use group::kill_control_group;
pub use keep::main;
pub use messages::{CommandEnd, CommandGroup, CommandOrder, KEEPER, KeeperReport, ToKeeper};
