//! What became of some rows, until it is sent to the item-ends actor and to folds.

use std::ops::Range;
use std::sync::Arc;

use orchestra_core::collect::{Arrival, Part};
use orchestra_core::data::KeptPicture;
use orchestra_core::lineage::{End, Share};
use orchestra_core::{Failure, ItemId, StageId};
use orchestra_plan::ColumnRef;
use ractor::ActorRef;
use smallvec::SmallVec;

use super::{FoldMsg, FoldPart, FoldTarget, Ticket, Token};
use crate::messages::{RecordTo, WholeItems};

#[derive(Default)]
pub struct Outcome {
    /// Items that have ended in the only sink, in the order of their records.
    pub done: Vec<ItemId>,
    pub text: Vec<u8>,
    /// `done` and `text`, packed by `Processor` for the item-ends actor.
    pub whole: Option<WholeItems>,
    pub(super) ends: Vec<(Ticket, End<RecordRange>)>,
    /// Rows that have failed since the last `send`.
    pub n_failed: usize,
    pub(super) parts: Vec<(ActorRef<FoldMsg>, Vec<FoldPart>)>,
    /// Rows that entered and left each map of the chain.
    pub counts: SmallVec<[MapCount; 2]>,
    pub(super) row: RowState,
}

/// How many rows a map has taken and given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapCount {
    pub entered: u64,
    pub left: u64,
}

pub(super) struct RecordRange {
    pub to: RecordTo,
    pub bytes: Range<usize>,
    pub file: Option<Box<str>>,
}

/// Of the row in hand.
#[derive(Default)]
pub(super) struct RowState {
    /// The share of it that was handed on to batches and folds.
    pub handed: Option<Share>,
    pub records: SmallVec<[RecordRange; 1]>,
    pub failure: Option<Failure>,
    pub failed_at: Option<StageId>,
    /// The first row that was made of it was handed on.
    pub is_out_of_loading: bool,
    /// Its pictures that are kept already.
    pub kept: SmallVec<[(ColumnRef, Arc<dyn KeptPicture>); 1]>,
    /// The pipeline is being torn down, or the item was given up: nothing is said of it.
    pub is_void: bool,
}

/// Tells folds that a token has failed, whose share ends elsewhere.
pub(super) fn tell_failed(folds: &[FoldTarget], token: &Token, path: &[Part], out: &mut Outcome) {
    for fold in folds {
        out.part(fold, fold.part(token, path, Share::NONE, Arrival::Failed));
    }
}

/// Tells folds that a token was dropped. Each of them gets a piece of its share, because what it makes of the others has an end of its own: with nothing, that
/// could come after the end of the item. `None`, and nothing is told: the share cannot be cut into so many.
#[must_use]
pub(super) fn tell_dropped(
    folds: &[FoldTarget],
    token: &Token,
    path: &[Part],
    mut share: Share,
    out: &mut Outcome,
) -> Option<()> {
    let last = folds.len().saturating_sub(1);
    let each = if last > 0 { share.cut(folds.len())? } else { Share::NONE };
    for (n, fold) in folds.iter().enumerate() {
        // The last one takes what the division leaves.
        let piece = if n == last { share.plus(each) } else { each };
        out.part(fold, fold.part(token, path, piece, Arrival::Dropped));
    }
    Some(())
}

impl Outcome {
    pub(super) fn end(
        &mut self,
        token: &Token,
        share: Share,
        records: SmallVec<[RecordRange; 1]>,
        failure: Option<Failure>,
    ) {
        self.n_failed += usize::from(failure.is_some());
        self.ends.push((token.ticket.clone(), End { share, records, failure }));
    }

    pub(super) fn part(&mut self, fold: &FoldTarget, part: FoldPart) {
        match self.parts.iter_mut().find(|(to, _)| to.get_id() == fold.actor.get_id()) {
            Some((_, parts)) => parts.push(part),
            None => self.parts.push((fold.actor.clone(), vec![part])),
        }
    }
}
