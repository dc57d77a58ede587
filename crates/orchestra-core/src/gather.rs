//! Joins what the branches of a graph say about one item, and puts finished items into the order of the source where that is asked.
//! It holds records as opaque values and writes nothing.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use crate::failure::Failure;
use crate::ids::ItemId;

/// How an item ended: one record per sink, or one failure.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending<R> {
    /// The records, in the order in which the sinks reported. Most items have one.
    Done(SmallVec<[R; 1]>),
    /// The first failure that was reported.
    Failed(Failure),
}

/// An item whose every branch has reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished<T, R> {
    /// What was handed in with the first report: the item's ticket.
    pub ticket: T,
    /// How it ended.
    pub ending: Ending<R>,
}

/// What one branch says about an item.
#[derive(Debug, Clone, PartialEq)]
pub enum Report<R> {
    /// The record for one sink.
    Record(R),
    /// No record will come for this many sinks.
    Failed {
        /// How many sinks lie downstream of the stage that failed.
        sinks: usize,
        /// Why.
        failure: Failure,
    },
}

#[derive(Debug)]
struct Pending<T, R> {
    ticket: T,
    missing: usize,
    ending: Ending<R>,
}

/// The items of one source that are on their way.
#[derive(Debug)]
pub struct Gather<T, R> {
    sinks: usize,
    pending: HashMap<ItemId, Pending<T, R>>,
    /// Finished items that wait for an earlier one, by their place in the order of dispatch. Empty when order is not asked.
    early: BTreeMap<u64, Finished<T, R>>,
    next: Option<u64>,
}

impl<T, R> Gather<T, R> {
    /// For a source whose items end in `sinks` sinks (at least 1). With `ordered`, items come out in the order of their `sequence`
    /// numbers 0, 1, 2, ...
    #[must_use]
    pub fn new(sinks: usize, ordered: bool) -> Self {
        Self { sinks, pending: HashMap::new(), early: BTreeMap::new(), next: ordered.then_some(0) }
    }

    /// Takes one report; gives the items that are finished now.
    pub fn report(
        &mut self,
        item: ItemId,
        sequence: u64,
        ticket: T,
        report: Report<R>,
        finished: &mut Vec<Finished<T, R>>,
    ) {
        if self.sinks == 1 {
            // The first report is the last: nothing has to be remembered.
            debug_assert!(!matches!(report, Report::Failed { sinks: 0, .. }), "a failure stands for a sink");
            let ending = match report {
                Report::Record(record) => Ending::Done(SmallVec::from_buf([record])),
                Report::Failed { failure, .. } => Ending::Failed(failure),
            };
            return self.finish(sequence, Finished { ticket, ending }, finished);
        }
        let p = self.pending.entry(item).or_insert_with(|| Pending {
            ticket,
            missing: self.sinks,
            ending: Ending::Done(SmallVec::with_capacity(self.sinks)),
        });
        match report {
            Report::Record(record) => {
                p.missing = p.missing.saturating_sub(1);
                if let Ending::Done(records) = &mut p.ending {
                    records.push(record);
                }
            }
            Report::Failed { sinks, failure } => {
                p.missing = p.missing.saturating_sub(sinks);
                if matches!(p.ending, Ending::Done(_)) {
                    p.ending = Ending::Failed(failure);
                }
            }
        }
        if p.missing > 0 {
            return;
        }
        let Some(p) = self.pending.remove(&item) else { return };
        self.finish(sequence, Finished { ticket: p.ticket, ending: p.ending }, finished);
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

    /// Items that have reported something but are not out yet.
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.pending.len() + self.early.len()
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

    #[test]
    fn an_item_with_one_failed_branch_is_failed_and_only_when_the_others_have_reported() {
        let mut g = Gather::new(2, false);
        let mut out = Vec::new();
        g.report(item(0), 0, (), Report::Failed { sinks: 1, failure: failure() }, &mut out);
        assert!(out.is_empty());
        g.report(item(0), 0, (), Report::Record("b"), &mut out);
        assert_eq!(out, [Finished { ticket: (), ending: Ending::Failed(failure()) }]);
        assert_eq!(g.n_held(), 0);
    }

    proptest! {
        #[test]
        fn with_one_sink_every_report_ends_its_item_and_order_is_kept(
            order in Just((0u64..40).collect::<Vec<_>>()).prop_shuffle(), ordered: bool
        ) {
            let mut g = Gather::new(1, ordered);
            let mut out = Vec::new();
            for &i in &order {
                let fails = i % 7 == 0;
                let report = if fails { Report::Failed { sinks: 1, failure: failure() } } else { Report::Record(i) };
                g.report(item(100 + i), i, i, report, &mut out);
            }
            let expected: Vec<u64> = if ordered { (0..40).collect() } else { order };
            prop_assert_eq!(out.iter().map(|f| f.ticket).collect::<Vec<_>>(), expected);
            prop_assert!(out.iter().all(|f| matches!(f.ending, Ending::Failed(_)) == (f.ticket % 7 == 0)));
            prop_assert_eq!(g.n_held(), 0);
        }

        #[test]
        fn ordered_items_come_out_in_order_whatever_the_order_of_the_reports(
            order in Just((0u64..40).flat_map(|i| [i, i]).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let mut g = Gather::new(2, true);
            let mut out = Vec::new();
            for i in order {
                g.report(item(100 + i), i, i, Report::Record(i), &mut out);
            }
            prop_assert_eq!(out.iter().map(|f| f.ticket).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
            prop_assert!(out.iter().all(|f| f.ending == Ending::Done(SmallVec::from_slice(&[f.ticket, f.ticket]))));
            prop_assert_eq!(g.n_held(), 0);
        }
    }
}
