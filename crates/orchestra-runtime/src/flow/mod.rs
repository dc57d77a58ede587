//! The way of a row through a pipeline: tokens, the chains of maps that work on rows, what is carried along, and folds. It knows the three
//! shapes of stages and no kind.

pub mod carried;
pub mod chain;
pub mod fold;
pub mod processor;
pub mod token;
