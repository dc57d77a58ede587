//! The frames of a script that lists the items of a source or takes the parts of a sink, as data. It decides nothing.

use bincode::{Decode, Encode};
use orchestra_core::failure::cut_words;

use crate::codec::Frame;

/// Bytes of a row that a script yields: it names what an item is made of, and waits in memory while the item is in flight.
pub const LONGEST_ROW: usize = 64 << 10;
/// Bytes of the name of a row.
pub const LONGEST_ROW_NAME: usize = 4 << 10;

/// Parent to the script of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ToScript {
    /// A part of this number, of which the bytes follow; and what its kind says of rows.
    Part(u64, String),
    Bytes(Vec<u8>),
    /// That was all of it.
    End,
}

impl Frame for ToScript {
    const MAX_BYTES: usize = 1 << 20;
}

/// Script to parent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FromScript {
    /// Rows in their order: the name of each, and JSON in UTF-8, without a `#`.
    Rows(Vec<(String, Vec<u8>)>),
    /// There are no more; or the part is written.
    Done,
    /// It has raised this.
    Failed(String),
}

impl Frame for FromScript {
    const MAX_BYTES: usize = 1 << 20;

    fn cut_words(&mut self) {
        if let Self::Failed(why) = self {
            cut_words(why);
        }
    }
}
