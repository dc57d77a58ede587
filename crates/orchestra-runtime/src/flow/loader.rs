//! The loaders of a source. A thread takes items out of its inbox ([`inbox`], [`thread`]) and owns a loader process, which reads and decodes them
//! ([`process`]): what the chain behind the source leaves to it, see `chain/loader_part.rs`. Items go through the process and its successors
//! ([`items`]); it may read what [`reads`] finds that they need; what came of one is replayed as rows ([`replay`]).
//!
//! The maps that a process has run are replayed in the chain: they give the rows that it made, which lie in its region. So whatever reads
//! them, a batch slot, a fold or a sink, is the same as behind maps that run here.

pub mod inbox;
pub mod items;
mod process;
mod reads;
mod replay;
pub mod thread;

pub use process::LoadedItem;
pub use reads::Reads;
pub use replay::{Current, Replay, SentColumns};
