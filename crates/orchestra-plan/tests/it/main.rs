//! Tests of this crate from outside, in one program: its parts are compiled once. A test that must be alone in its process has a file beside `it/`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;
mod defaults;
mod deferred;
mod graph_view;
mod matrix;
mod memory_plan;
mod order_of_tables;
mod pixels;
mod plan_workers;
mod plans;
mod real_files;
mod reports;
mod robust;
mod schema;
mod shell_texts;
mod tasks;
