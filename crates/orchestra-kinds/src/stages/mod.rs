//! `[stages.*]`: one file per kind.

pub mod classify;
pub mod crop;
pub mod ctc;
pub mod filter;
pub mod gather;
pub mod image;
mod image_settings;
pub mod infer;
pub mod reduce;
pub mod select;
