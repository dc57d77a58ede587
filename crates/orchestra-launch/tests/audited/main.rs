//! Tests that audit their process afterwards: what is open, running or mapped then and was not before fails them. They run one at a time, and nothing
//! else may run in this program: each of them is `audited`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

#[path = "../it/common/mod.rs"]
mod common;

mod device_vanishes;
mod engines;
mod leaks;
mod slow_sink;
mod worker_in_c;
