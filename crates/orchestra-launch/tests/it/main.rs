//! Tests of this crate from outside, in one program: its parts are compiled once. A test that must be alone in its process has a file beside `it/`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;
mod embedding;
mod graphs;
mod joins;
mod kinds;
mod loaders;
mod part_files;
mod parts;
mod post_parallel;
mod protocol_faults;
mod recycling;
mod reduce;
mod tracing;
