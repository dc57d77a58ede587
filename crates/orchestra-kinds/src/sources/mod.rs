//! `[sources.*]`: one file per kind.

pub mod images;
mod read_file;
pub mod tensors;
