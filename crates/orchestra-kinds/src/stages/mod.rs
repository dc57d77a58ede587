//! `[stages.*]`: one file per kind.

pub mod classify;
pub mod crop;
pub mod detect;
pub mod filter;
pub mod gather;
pub mod image;
mod image_settings;
pub mod infer;
pub mod reduce;
