//! `[sources.*]`: one file per kind.

pub(crate) mod columns;
pub mod csv;
pub mod images;
mod input;
pub mod jsonl;
mod lines;
mod locator;
pub(crate) mod npy;
pub(crate) mod objects;
pub mod parquet;
mod picture;
pub mod random;
pub mod range;
pub(crate) mod read_file;
pub mod tar;
pub(crate) mod tar_members;
pub mod tensors;
pub mod zip;
mod zip_members;
