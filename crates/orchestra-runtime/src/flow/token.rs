//! A token: an item, or a part of one, on its way through a pipeline.

use std::sync::Arc;

use orchestra_core::collect::Part;
use orchestra_core::data::{OwnedRow, OwnedValue};
use orchestra_core::lineage::Share;
use smallvec::SmallVec;

use crate::flow::ticket::Ticket;
use crate::flow::value_room::HeldValues;

/// Where a part stands in its item: a place for each split that it went through, the outermost first.
pub type PartPath = SmallVec<[Part; 1]>;

/// An item, or a part of one. A whole item, of which nothing is carried along, is its ticket alone. Clones are the same part.
#[derive(Debug, Clone)]
pub struct Token {
    pub ticket: Ticket,
    more: Option<Arc<TokenPart>>,
}

#[derive(Debug)]
struct TokenPart {
    share: Share,
    path: PartPath,
    carried: OwnedRow,
    /// That `carried` takes.
    _room: Option<HeldValues>,
}

impl Token {
    pub fn whole(ticket: Ticket) -> Self {
        Self { ticket, more: None }
    }

    pub fn new(ticket: Ticket, share: Share, path: PartPath) -> Self {
        Self::carrying(ticket, share, path, OwnedRow::new(), None)
    }

    pub fn carrying(
        ticket: Ticket,
        share: Share,
        path: PartPath,
        carried: OwnedRow,
        room: Option<HeldValues>,
    ) -> Self {
        let is_whole = share == Share::WHOLE && path.is_empty() && carried.is_empty();
        let more = || Arc::new(TokenPart { share, path, carried, _room: room });
        Self { ticket, more: (!is_whole).then(more) }
    }

    pub fn share(&self) -> Share {
        self.more.as_ref().map_or(Share::WHOLE, |more| more.share)
    }

    pub fn path(&self) -> &[Part] {
        self.more.as_ref().map_or(&[], |more| &more.path)
    }

    /// The columns that it carries, in the order of the stage that it is on its way to.
    pub fn carried(&self) -> &[OwnedValue] {
        self.more.as_ref().map_or(&[], |more| &more.carried)
    }
}
