//! What became of some rows, until it is sent to the ends of the pipeline and to folds.

use std::ops::Range;
use std::sync::Arc;

use orchestra_core::lineage::{End, Share};
use orchestra_core::{Failure, ItemId};
use smallvec::SmallVec;

use super::{FoldPart, FoldTarget, Ticket, Token};
use crate::flow::fold_target::{Credit, GatherParts};
use crate::messages::{RecordTo, RequestOutputs, SingleRecordItems};

#[derive(Default)]
pub struct Outcome {
    /// Items that have ended in the only sink, in the order of their records.
    pub done: Vec<ItemId>,
    pub text: Vec<u8>,
    /// `done` and `text`, packed by `Processor` for the ends of the pipeline.
    pub whole: Option<SingleRecordItems>,
    pub(super) ends: Vec<(Ticket, End<RecordRange>)>,
    /// Rows whose outputs go back as they are.
    pub outputs: Vec<RequestOutputs>,
    /// Rows that have failed since the last `send`.
    pub n_failed: usize,
    /// The batch that the rows at hand come from, if folds may keep it: see [`FoldTarget::may_wait`].
    pub credit: Option<Credit>,
    pub(super) parts: Vec<(Arc<dyn GatherParts>, Vec<FoldPart>)>,
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

    pub(super) fn part(&mut self, fold: &FoldTarget, mut part: FoldPart) {
        part.credit = self.credit.clone().filter(|_| fold.may_wait);
        match self.parts.iter_mut().find(|(to, _)| Arc::ptr_eq(to, &fold.fold)) {
            Some((_, parts)) => parts.push(part),
            None => self.parts.push((Arc::clone(&fold.fold), vec![part])),
        }
    }
}
