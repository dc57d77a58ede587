//! A stage that runs in workers: its slots, its batches and the workers that hold them.

pub mod batcher;
pub mod batches_in_flight;
pub mod completion;
mod list_outputs;
pub mod open_outputs;
pub mod output_slots;
pub mod outputs;
pub mod row_values;
pub mod slot_pool;
pub mod stage;
