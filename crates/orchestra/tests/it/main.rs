//! The library without ONNX Runtime: what a program tests with it, its examples, and the listing of what it offers.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod api;
mod examples;
mod outside;
mod start_errors;
mod testing;
