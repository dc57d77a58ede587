//! What must hold whatever bytes arrive: one check per reader of untrusted bytes. It mutates nothing, and looks for no inputs itself.
//!
//! Each check is a function of the bytes that panics when a promise is broken. libFuzzer calls them from `fuzz/fuzz_targets`, and
//! the tests of this crate call them with every input that is kept in `fuzz/corpus/*.tar.gz`, so that `cargo test` finds what was found
//! before without a fuzzer.
//!
//! The crate counts what its process allocates (see [`memory`]), so nothing but tests and fuzz targets may depend on it.

pub mod memory;

mod diagnostics;
mod expression;
mod frame;
mod image;
mod journal;
mod listing;
mod machine;
mod manifest;
mod metrics_page;
mod model;
mod model_edit;
mod npy;
mod pattern;
mod png;
mod scratch;
mod workflow;
mod world;

/// Shared with `tests/it`, because a unit test reads kept inputs, too.
#[cfg(test)]
#[path = "../tests/it/kept_inputs.rs"]
mod kept_inputs;

pub use expression::expression;
pub use frame::worker_frame;
pub use image::{image, image_header};
pub use journal::journal;
pub use listing::listing;
pub use machine::machine_file;
pub use manifest::manifest;
pub use metrics_page::metrics_page;
pub use model::onnx_signature;
pub use model_edit::model_edit;
pub use npy::npy;
pub use pattern::pattern;
pub use workflow::workflow_file;

/// Panics if a promise does not hold for these bytes.
pub type Check = fn(&[u8]);

/// All checks, by the names of their fuzz targets.
pub const CHECKS: [(&str, Check); 14] = [
    ("expression", expression),
    ("image", image),
    ("image_header", image_header),
    ("journal", journal),
    ("listing", listing),
    ("machine_file", machine_file),
    ("manifest", manifest),
    ("metrics_page", metrics_page),
    ("model_edit", model_edit),
    ("npy", npy),
    ("onnx_signature", onnx_signature),
    ("pattern", pattern),
    ("worker_frame", worker_frame),
    ("workflow_file", workflow_file),
];
