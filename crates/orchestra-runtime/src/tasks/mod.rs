//! Commands of `[tasks.*]`: one actor, which owns their leases, and a future for each attempt, which has a keeper. What is started when is
//! decided in `orchestra_core::tasks`.

pub mod actor;
mod attempt;
pub mod best;
pub mod board;
mod command_watch;
mod credentials;
pub mod earlier;
pub mod groups;
mod keeper_link;
mod keepers;
pub mod live;
pub mod part_schedule;
mod unchanged;
