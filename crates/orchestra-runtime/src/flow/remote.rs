//! Loading in processes: what the chain behind a source leaves to a loader process (`chain/remote.rs`), the process itself ([`process`]), what came of
//! an item as rows ([`replay`]), and the way of items through the process and its successors ([`items`]).
//!
//! The maps that a process has run are replayed in the chain: they give the rows that it made, which lie in its region. So whatever reads
//! them, a batch slot, a fold or a sink, is the same as behind maps that run here.

pub mod items;
mod process;
mod reads;
mod replay;

pub use process::LoadedItem;
pub use reads::Reads;
pub use replay::{Current, Replay, SentColumns};
