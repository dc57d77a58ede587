//! Models and graphs that answer requests of this program, with real workers and loaders, which die. Each test audits its process afterwards: what is open, running
//! or mapped then and was not before fails it. They run one at a time, and nothing else may run in this program.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

#[path = "../../../orchestra-launch/tests/it/common/mod.rs"]
mod common;

mod actor;
mod flow;
mod host;
mod model;
mod reload;
mod run;
mod storm;

use orchestra::{Orchestra, OrchestraBuilder};
use orchestra_launch::StartOptions;

/// Whose workers are those of a workplace.
fn orchestra(options: StartOptions) -> OrchestraBuilder {
    Orchestra::builder().start_options(options)
}
