//! Commands of `[tasks.*]`: one actor, which owns their leases, and a future for each attempt, which has a keeper. What is started when is
//! decided in `orchestra_core::tasks`.

pub mod actor;
mod attempt;
pub mod best;
pub mod board;
mod command_watch;
mod credentials;
pub mod groups;
pub mod holds;
mod keeper_link;
mod keepers;
pub mod known;
pub mod live;
pub mod measured;
pub mod outliving;
pub mod trees;
mod unchanged;
