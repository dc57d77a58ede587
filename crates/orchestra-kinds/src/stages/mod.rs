//! `[stages.*]`: one file per kind.

pub mod argmax;
pub mod classify;
mod code;
pub mod crop;
pub mod ctc;
pub mod cuda;
pub mod detect;
pub mod draw;
pub mod embed;
pub mod filter;
pub mod gather;
pub mod image;
mod image_settings;
pub mod infer;
pub mod iterate;
pub mod mask;
pub mod merge;
pub mod python;
pub mod reduce;
pub mod select;
pub mod size;
pub mod threshold;
