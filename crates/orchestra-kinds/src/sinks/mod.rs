//! `[sinks.*]`: one file per kind. What several of them need is in `shared/`.

pub mod csv;
pub mod images;
pub mod jsonl;
pub mod npy;
pub mod parquet;
pub mod python;
pub mod reply;
pub mod shared;
pub mod tar;
