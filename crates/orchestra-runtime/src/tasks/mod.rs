//! Commands of `[tasks.*]`: one actor, which owns their leases, and a future for each attempt, which owns its keeper. What is started when is
//! decided in `orchestra_core::tasks`.

pub mod actor;
mod attempt;
pub mod best;
pub mod board;
pub mod holds;
mod keeper_link;
pub mod known;
pub mod measured;
mod unchanged;
