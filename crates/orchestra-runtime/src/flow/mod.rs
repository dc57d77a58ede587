//! The way of an item through a pipeline: source, loaders, the chains of maps that work on rows, what is carried along, folds, sink and
//! committer. It knows the three shapes of stages and no kind.

pub mod carried;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod chain;
pub mod committer;
pub mod failures;
pub mod file_name;
pub mod file_rows;
pub mod fold;
pub mod loader_inbox;
pub mod loader_thread;
pub mod part_rows;
pub mod processor;
pub mod reduce_rows;
pub mod remote;
pub mod result_files;
pub mod sink;
pub mod source;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod ticket;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod token;
pub mod uploads;
