//! The loaders of a source. A thread takes items out of its inbox ([`inbox`], [`thread`]) and owns a loader process, which reads and decodes them
//! ([`process`], over [`child`]): what of the chain behind the source it does, and how its rows go on, see `chain/in_loader.rs`. Items go through the process and its successors
//! ([`items`]); it may read what [`readable_places`] finds that they need; one that needs more memory than others has it [`alone`]; what came
//! of one lies in its region ([`sent_values`]).

pub mod child;
mod exclusive;
pub mod inbox;
pub mod items;
mod process;
mod readable_places;
mod sent_values;
pub mod setup;
pub mod thread;
pub mod work;

pub use child::LostLoader;
pub use exclusive::{ExclusiveLoad, ExclusiveLoads};
pub use process::LoadedItem;
pub use readable_places::ReadablePlaces;
pub use sent_values::{CellType, ReceivedValue, out_of_order};
pub use thread::ItemInHand;
