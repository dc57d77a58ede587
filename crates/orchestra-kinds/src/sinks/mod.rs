//! `[sinks.*]`: one file per kind.

pub mod csv;
pub mod images;
pub mod jsonl;
pub mod npy;
pub mod parquet;
pub mod tar;
