//! Where ONNX Runtime's library is found, and how it is fetched.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod at_once;
mod common;
mod cuda;
mod fetching;
mod real_pip;
mod search_order;
mod tensorrt;
