//! The way of an item through a pipeline: source, loaders, the chains of maps that work on rows, what is carried along, folds, the
//! ends of items and the committer. It knows the three shapes of stages and no kind.

pub mod carried;
pub mod catalog_intake;
pub mod chain;
pub mod committer;
pub mod endpoints;
pub mod ends;
pub mod failures;
pub mod file_name;
pub mod file_rows;
pub mod fold;
pub mod fold_target;
pub mod journal_ends;
pub mod listing;
pub mod loader;
pub mod part_file;
pub mod processor;
pub mod reduce_rows;
pub mod result_files;
pub mod row_lengths;
pub mod run_endpoints;
pub mod run_files;
pub mod source;
pub mod ticket;
pub mod token;
mod turns;
pub mod uploads;
pub mod value_room;
