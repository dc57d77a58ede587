//! A row on its way through a chain: the share and the path of each part that comes to a leaf, and what is over of it. Once it has failed, the folds hear
//! of all that will not come.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};

use orchestra_core::collect::{Arrival, Part};
use orchestra_core::data::{ItemError, KeptPicture, Value};
use orchestra_core::lineage::Share;
use orchestra_core::shapes::{FanOut, Leaves, RowEnded, RowScope, too_many_parts};
use orchestra_core::{Failure, LeftOut, StageId};
use orchestra_plan::{ColumnRef, Origin};
use smallvec::SmallVec;

use super::outcome::{Outcome, RecordRange};
use super::{Chain, FoldTarget, ItemInHand, MapPlace, PartPath, Token};
use crate::batch::slot_pool::RowLease;

pub(super) struct RowInHand<'a, 'o> {
    pub chain: &'a Chain,
    pub token: &'o Token,
    /// The part that is in hand, where the row was split.
    part: Option<Token>,
    /// The leaf whose turn it is.
    pub at: usize,
    /// The splits that the row is in, the outermost first.
    splits: SmallVec<[OpenSplit; 1]>,
    pub out: &'o mut Outcome,
    pub item: Option<&'o mut ItemInHand<'a>>,
    /// [`Chain::keep_lock`], from the first picture on that the row keeps.
    pub keeping: Option<MutexGuard<'a, ()>>,
    /// The share of it that was handed on to batches and folds.
    pub handed: Share,
    pub records: SmallVec<[RecordRange; 1]>,
    pub failure: Option<Failure>,
    pub failed_at: Option<StageId>,
    /// A row of the only batch that it can come to, claimed for it.
    pub lease: Option<RowLease<'a>>,
    /// Its pictures that are kept already.
    pub kept: SmallVec<[(ColumnRef, Arc<dyn KeptPicture>); 1]>,
    /// The pipeline is being torn down, or the item was given up: nothing is said of it.
    pub is_void: bool,
}

/// A split that is under way.
struct OpenSplit {
    /// Those that each part comes to.
    leaves: Range<usize>,
    /// The share of a part.
    each: Share,
    part: Part,
}

impl<'a, 'o> RowInHand<'a, 'o> {
    pub fn new(
        chain: &'a Chain,
        token: &'o Token,
        out: &'o mut Outcome,
        item: Option<&'o mut ItemInHand<'a>>,
    ) -> Self {
        Self {
            chain,
            token,
            part: None,
            at: 0,
            splits: SmallVec::new(),
            out,
            item,
            keeping: None,
            handed: Share::NONE,
            records: SmallVec::new(),
            failure: None,
            failed_at: None,
            lease: None,
            kept: SmallVec::new(),
            is_void: false,
        }
    }

    /// Whether the turn has come to a place with so many splits above it, in front of this leaf.
    pub fn is_at(&self, leaf: usize, n_splits: usize) -> bool {
        self.at == leaf && self.splits.len() == n_splits
    }

    /// The leaves that the part in hand comes to, and its share.
    fn all(&self) -> (Range<usize>, Share) {
        match self.splits.last() {
            Some(split) => (split.leaves.clone(), split.each),
            None => (0..self.chain.leaves.len(), self.token.share()),
        }
    }

    /// What goes to these leaves of the part in hand: as much to each as to the others, and to the last one what the division leaves.
    fn share_of(&self, leaves: &Range<usize>) -> Result<Share, ItemError> {
        let (all, mut share) = self.all();
        if *leaves == all {
            return Ok(share);
        }
        let each = share.cut(all.len()).ok_or_else(too_many_parts)?;
        let rest = if leaves.end == all.end { share } else { Share::NONE };
        Ok(each.times(leaves.len()).plus(rest))
    }

    /// All up to this leaf is done. Behind the last leaf of a part comes the next part.
    fn go_to(&mut self, leaf: usize) {
        self.at = leaf;
        let mut is_other = false;
        while let Some(split) = self.splits.last_mut().filter(|split| split.leaves.end == self.at) {
            is_other = true;
            split.part.index += 1;
            if split.part.index < split.part.of {
                self.at = split.leaves.start;
                break;
            }
            self.splits.pop();
        }
        if is_other {
            self.take_part();
        }
    }

    fn take_part(&mut self) {
        self.part = self.splits.last().map(|innermost| {
            let mut path: PartPath = self.token.path().into();
            path.extend(self.splits.iter().map(|split| split.part));
            Token::new(self.token.ticket.clone(), innermost.each, path)
        });
    }

    /// The row has ended in front of these leaves, well. Each fold that waits for it gets a piece of its share, because what it makes of the others has an end of
    /// its own: with nothing, that could come after the end of the item.
    pub fn drop_at(
        &mut self,
        leaves: &Range<usize>,
        folds: &[FoldTarget],
        of: Option<Part>,
    ) -> Result<(), ItemError> {
        if !folds.is_empty() {
            let share = self.share_of(leaves)?;
            let mut rest = share;
            let each = rest.cut(folds.len()).ok_or_else(too_many_parts)?;
            self.hand(share);
            let token = self.part.as_ref().unwrap_or(self.token);
            let path: PartPath = token.path().iter().copied().chain(of).collect();
            for (n, fold) in folds.iter().enumerate() {
                // The first one takes what the division leaves.
                let piece = if n == 0 { each.plus(rest) } else { each };
                self.out.part(fold, fold.part(token, &path, piece, Arrival::Dropped));
            }
        }
        self.go_to(leaves.end);
        Ok(())
    }

    /// Tells folds that the leaves from here on get nothing.
    pub fn fail_rest(&mut self) {
        while self.at < self.chain.leaves.len() {
            let (Range { end, .. }, _) = self.all();
            let token = self.part.as_ref().unwrap_or(self.token);
            let folds = self.chain.folds_of(self.at..end, self.splits.len());
            for fold in &folds {
                self.out.part(fold, fold.part(token, token.path(), Share::NONE, Arrival::Failed));
            }
            self.go_to(end);
        }
    }

    pub fn hand(&mut self, share: Share) {
        self.handed = self.handed.plus(share);
    }

    pub fn void(&mut self) -> RowEnded {
        self.is_void = true;
        RowEnded
    }

    pub fn pass(&self, stage: StageId) {
        self.chain.context.stats.stage(stage).first_items.pass();
    }
}

impl Leaves for RowInHand<'_, '_> {
    fn made(&mut self, _: usize, stage: StageId, _: &[Value<'_>]) {
        self.pass(stage);
    }

    fn parts(&mut self, at: usize, n: u32) -> Result<(), ItemError> {
        let leaves = self.chain.maps[at].leaves.clone();
        let each = self.share_of(&leaves)?.cut(n as usize).ok_or_else(too_many_parts)?;
        self.splits.push(OpenSplit { leaves, each, part: Part { index: 0, of: n } });
        self.take_part();
        Ok(())
    }

    fn nothing(&mut self, at: usize) -> Result<(), ItemError> {
        let MapPlace { stage, map, leaves, folds, .. } = &self.chain.maps[at];
        let of = (map.fan() == FanOut::Parts).then_some(Part { index: 0, of: 0 });
        self.drop_at(leaves, folds, of)?;
        // It has not failed.
        self.pass(*stage);
        Ok(())
    }

    fn leaf(&mut self, at: usize, scope: &RowScope<'_>) -> Result<(), RowEnded> {
        let chain = self.chain;
        let leaf = &chain.leaves[at];
        if self.token.ticket.is_withdrawn() {
            self.leave_loading()?;
            let folds = chain.folds_of(at..at + 1, self.splits.len());
            let dropped = self.drop_at(&(at..at + 1), &folds, None);
            return dropped.map_err(|item_error| self.fail(leaf.stage, item_error));
        }
        let share = self.share_of(&(at..at + 1)).map_err(|item_error| self.fail(leaf.stage, item_error))?;
        let part = self.part.take();
        let token = part.as_ref().unwrap_or(self.token);
        let taken = catch_unwind(AssertUnwindSafe(|| self.take(leaf, token, share, scope)));
        self.part = part;
        taken.unwrap_or_else(|_| {
            let bug = ItemError::result("internal error while the item was worked on; this is a bug");
            Err(self.fail(leaf.stage, bug))
        })?;
        self.go_to(at + 1);
        Ok(())
    }

    fn fail(&mut self, stage: StageId, item_error: ItemError) -> RowEnded {
        self.chain.context.stats.stage(stage).first_items.fail(self.token.ticket.id());
        self.failed_at.get_or_insert(stage);
        self.failure.get_or_insert_with(|| self.chain.failure(stage, item_error.kind, item_error.error));
        RowEnded
    }

    fn left_out(&mut self, stage: StageId, what: LeftOut, n: u64) {
        self.chain.context.stats.left_out.add(self.token.ticket.id(), Origin::Stage(stage), what, n);
    }
}
