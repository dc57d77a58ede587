//! A stage that runs in workers: its slots, its batches and the workers that hold them.

pub mod batcher;
pub mod flights;
pub mod slot_pool;
