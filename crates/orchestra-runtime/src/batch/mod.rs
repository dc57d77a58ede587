//! A stage that runs in workers: its slots, its batches and the workers that hold them.

pub mod batcher;
mod checkpoint;
pub mod flights;
pub mod output_slots;
pub mod outputs;
pub mod service;
pub mod slot_pool;
pub mod stage;
