//! What became of some rows, until it is sent to the item-ends actor and to folds.

use std::ops::Range;

use orchestra_core::lineage::{End, Share};
use orchestra_core::{Failure, ItemId};
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
}

pub(super) struct RecordRange {
    pub to: RecordTo,
    pub bytes: Range<usize>,
    pub file: Option<Box<str>>,
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
