//! Tests of this crate from outside, in one program: its parts are compiled once. A test that must be alone in its process has a file beside `it/`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;
mod engine;
mod giving_back;
mod largest;
mod pixels;
mod process;
mod refusals;
mod texts;
mod trim;
