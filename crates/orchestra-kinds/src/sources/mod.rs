//! `[sources.*]`: one file per kind. What several of them read with is in `reading/`.

pub mod csv;
pub mod files;
pub mod images;
pub mod jsonl;
pub mod parquet;
pub mod python;
pub mod random;
pub mod range;
pub(crate) mod reading;
pub mod request;
pub mod tar;
pub mod tensors;
pub mod zip;
