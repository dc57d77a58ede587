//! When an item has ended, whatever became of it on its way: split into parts, read by several branches, dropped, joined. It holds
//! records as opaque values and writes nothing.
//!
//! Every living token of an item carries a share of it. A split divides the share, a join adds shares up, an end gives the share back. The
//! shares of living tokens and those that were given back add up to [`Share::WHOLE`] at any time, so the item has ended exactly when the
//! whole is back, in whatever order the ends arrive.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use crate::failure::Failure;
use crate::ids::ItemId;

/// The part of an item that a token stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u64);

impl Share {
    pub const WHOLE: Share = Share(1 << 62);
    /// Nothing of it: what is left when all was given away.
    pub const NONE: Share = Share(0);

    /// Cuts one `n`-th off for each of `n` tokens, and gives it once; the rest of the division stays. `None` where the share is too small:
    /// after splits into more than 4e18 parts in all.
    pub fn cut(&mut self, n: usize) -> Option<Share> {
        let each = self.0.checked_div(n as u64).filter(|each| *each > 0)?;
        self.0 -= each * n as u64;
        Some(Share(each))
    }

    pub fn plus(self, other: Share) -> Share {
        Share(self.0 + other.0)
    }

    /// So many of it, which were cut off the same share.
    pub fn times(self, n: usize) -> Share {
        Share(self.0 * n as u64)
    }

    /// What is left of it without `other`, which is a part of it.
    pub fn minus(self, other: Share) -> Share {
        Share(self.0.saturating_sub(other.0))
    }

    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// How an item ended: with its records, or with one failure.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending<R> {
    /// The records, in the order in which they were reported. Most items have one.
    Done(SmallVec<[R; 1]>),
    /// The first failure that was reported.
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finished<T, R> {
    /// What was handed in with the first report: the item's ticket.
    pub ticket: T,
    pub ending: Ending<R>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct End<R> {
    /// How much of the item ends here. May be nothing, where records come from a token that lives on elsewhere.
    pub share: Share,
    pub records: SmallVec<[R; 1]>,
    pub failure: Option<Failure>,
}

#[derive(Debug)]
struct Pending<T, R> {
    ticket: T,
    back: Share,
    ending: Ending<R>,
}

/// The items of one source that are on their way.
#[derive(Debug)]
pub struct Lineage<T, R> {
    pending: HashMap<ItemId, Pending<T, R>>,
    /// Finished items that wait for an earlier one, by their place in the order of dispatch. Empty where no order is asked.
    early: BTreeMap<u64, Finished<T, R>>,
    next: Option<u64>,
}

impl<T, R> Lineage<T, R> {
    /// With `ordered`, items come out in the order of their `sequence` numbers 0, 1, 2, ...
    pub fn new(ordered: bool) -> Self {
        Self { pending: HashMap::new(), early: BTreeMap::new(), next: ordered.then_some(0) }
    }

    /// Some share of an item has ended; gives the items that have ended as a whole by that.
    pub fn end(
        &mut self,
        item: ItemId,
        sequence: u64,
        ticket: T,
        end: End<R>,
        finished: &mut Vec<Finished<T, R>>,
    ) {
        let End { share, records, failure } = end;
        if share.is_none() && records.is_empty() && failure.is_none() {
            return; // It says nothing, and the item may have ended.
        }
        if share == Share::WHOLE {
            // The first report is the last: nothing has to be remembered.
            let ending = failure.map_or(Ending::Done(records), Ending::Failed);
            return self.finish(sequence, Finished { ticket, ending }, finished);
        }
        let pending = self.pending.entry(item).or_insert_with(|| Pending {
            ticket,
            back: Share::NONE,
            ending: Ending::Done(SmallVec::new()),
        });
        pending.back = pending.back.plus(share);
        match (&mut pending.ending, failure) {
            (ending @ Ending::Done(_), Some(failure)) => *ending = Ending::Failed(failure),
            (Ending::Done(all), None) => all.extend(records),
            (Ending::Failed(_), _) => {}
        }
        if pending.back < Share::WHOLE {
            return;
        }
        let Some(Pending { ticket, ending, .. }) = self.pending.remove(&item) else { return };
        self.finish(sequence, Finished { ticket, ending }, finished);
    }

    /// Whether no item has ended in part, or waits for an earlier one.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.early.is_empty()
    }

    fn finish(&mut self, sequence: u64, done: Finished<T, R>, finished: &mut Vec<Finished<T, R>>) {
        match &mut self.next {
            None => finished.push(done),
            Some(next) => {
                self.early.insert(sequence, done);
                while let Some(f) = self.early.remove(next) {
                    finished.push(f);
                    *next += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::failure::FailureKind;
    use crate::ids::SourceId;

    fn item(index: u64) -> ItemId {
        ItemId { source: SourceId(0), index }
    }

    fn failure() -> Failure {
        Failure { stage: "s".into(), kind: FailureKind::Decode, error: "e".into(), attempts: 1 }
    }

    fn end<R>(share: Share, records: impl IntoIterator<Item = R>) -> End<R> {
        End { share, records: records.into_iter().collect(), failure: None }
    }

    #[test]
    fn an_item_with_one_failed_branch_is_failed_and_only_when_the_others_have_reported() {
        let mut shares = Share::WHOLE;
        let half = shares.cut(2).unwrap();
        assert!(shares.is_none());
        let mut lineage = Lineage::new(false);
        let mut out = Vec::new();
        let failed = End { share: half, records: SmallVec::new(), failure: Some(failure()) };
        lineage.end(item(0), 0, (), failed, &mut out);
        assert!(out.is_empty());
        lineage.end(item(0), 0, (), end(half, ["b"]), &mut out);
        assert_eq!(out, [Finished { ticket: (), ending: Ending::Failed(failure()) }]);
    }

    #[test]
    fn a_share_that_cannot_be_divided_says_so_and_loses_nothing() {
        let mut share = Share(3);
        assert_eq!(share.cut(4), None);
        assert_eq!(share.cut(0), None);
        assert_eq!(share, Share(3));
        assert_eq!(share.cut(2), Some(Share(1)));
        assert_eq!(share, Share(1), "the rest of the division stays");
    }

    /// A tree of splits: each node ends, or is split into some more.
    fn leaves(fans: &[usize], share: Share, depth: usize, out: &mut Vec<Share>) {
        let n = fans[(out.len() + depth) % fans.len()];
        let mut rest = share;
        if depth == 3 || n == 0 {
            return out.push(share);
        }
        let Some(each) = rest.cut(n) else { return out.push(share) };
        (0..n).for_each(|_| leaves(fans, each, depth + 1, out));
        if !rest.is_none() {
            out.push(rest);
        }
    }

    proptest! {
        #[test]
        fn an_item_ends_with_its_last_token_in_any_order_of_their_ends(
            fans in prop::collection::vec(0usize..9, 1..6), seed: u64
        ) {
            let mut shares = Vec::new();
            leaves(&fans, Share::WHOLE, 0, &mut shares);
            let mut order: Vec<usize> = (0..shares.len()).collect();
            order.sort_by_key(|at| (*at as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));
            let mut lineage = Lineage::new(false);
            let mut out = Vec::new();
            for (n, at) in order.iter().enumerate() {
                prop_assert!(out.is_empty(), "after {} of {} ends", n, shares.len());
                lineage.end(item(0), 0, (), end(shares[*at], [*at]), &mut out);
            }
            prop_assert_eq!(out.len(), 1);
            let Ending::Done(records) = &out[0].ending else { panic!("nothing failed") };
            prop_assert_eq!(records.as_slice(), order.as_slice());
        }

        #[test]
        fn ordered_items_come_out_in_order_whatever_the_order_of_the_reports(
            order in Just((0u64..40).flat_map(|i| [i, i]).collect::<Vec<_>>()).prop_shuffle(), ordered: bool
        ) {
            let half = Share::WHOLE.clone().cut(2).unwrap();
            let mut lineage = Lineage::new(ordered);
            let mut out = Vec::new();
            for &i in &order {
                lineage.end(item(100 + i), i, i, end(half, [i]), &mut out);
            }
            let tickets: Vec<u64> = out.iter().map(|f| f.ticket).collect();
            if ordered {
                prop_assert_eq!(&tickets, &(0..40).collect::<Vec<_>>());
            }
            prop_assert_eq!(tickets.len(), 40);
            prop_assert!(out.iter().all(|f| f.ending == Ending::Done(SmallVec::from_slice(&[f.ticket, f.ticket]))));
        }
    }
}
