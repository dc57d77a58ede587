//! The loaders of a source. A thread takes items out of its inbox ([`inbox`], [`thread`]) and owns a loader process, which reads and decodes them
//! ([`process`], over [`child`]): what the chain behind the source leaves to it, see `chain/in_loader.rs`. Items go through the process and its successors
//! ([`items`]); it may read what [`readable_places`] finds that they need; one that needs more memory than others has it [`alone`]; what came
//! of one is replayed as rows ([`replay`]).
//!
//! The maps that a process has run are replayed in the chain: they give the rows that it made, which lie in its region. So whatever reads
//! them, a batch slot, a fold or a sink, is the same as behind maps that run here.

mod alone;
pub mod child;
pub mod inbox;
pub mod items;
mod process;
mod readable_places;
mod replay;
pub mod setup;
pub mod thread;
pub mod work;

pub use alone::{AloneTurn, AloneTurns};
pub use process::{LoadedItem, Lost};
pub use readable_places::ReadablePlaces;
pub use replay::{ItemEvents, Replay, SentColumns};
