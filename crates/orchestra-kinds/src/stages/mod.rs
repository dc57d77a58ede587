//! `[stages.*]`: one file per kind. What several of them need is in `shared/`.

pub mod argmax;
pub mod classify;
pub mod crop;
pub mod ctc;
pub mod cuda;
pub mod detect;
pub mod draw;
pub mod embed;
pub mod filter;
pub mod gather;
pub mod image;
pub mod infer;
pub mod iterate;
pub mod mask;
pub mod pages;
pub mod python;
pub mod reduce;
pub mod select;
pub mod shared;
pub mod size;
pub mod split;
pub mod threshold;
