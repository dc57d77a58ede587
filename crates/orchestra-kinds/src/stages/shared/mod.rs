//! What several kinds of stages have in common: keys, expressions, and ways to look at numbers. Nothing here is a kind.

pub mod batches;
pub mod best_classes;
pub mod box_order;
pub mod detections;
pub mod expression;
pub mod image_settings;
pub mod largest;
#[cfg(test)]
pub mod testing;
pub mod user_code;
