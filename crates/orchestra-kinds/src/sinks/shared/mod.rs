//! What several kinds of sinks write or read back. Nothing here is a kind.

pub mod column_names;
pub mod npy_file;
pub mod read_back;
pub mod record;
