//! A stage that runs in workers: its slots, its batches and who runs which.

pub mod batcher;
pub mod flights;
pub mod slot_pool;
