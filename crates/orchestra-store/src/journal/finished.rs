//! Which items are finished, per source, and how many of them failed. Holds no names and writes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use orchestra_core::{ItemId, SourceId};

use crate::number_set::NumberSet;

/// How many items ended, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// With a record in the sinks.
    pub done: u64,
    /// With a record in the failures.
    pub failed: u64,
}

impl Counts {
    pub fn total(self) -> u64 {
        self.done + self.failed
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemEnding {
    Done,
    Failed,
}

#[derive(Debug, Clone, Default)]
struct OfSource {
    // Shared with sources, which skip finished items; a later commit copies the set once if it is still shared.
    set: Arc<NumberSet>,
    failed: NumberSet,
}

impl OfSource {
    fn counts(&self) -> Counts {
        Counts { done: self.set.len() - self.failed.len(), failed: self.failed.len() }
    }
}

/// The finished items of all sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct FinishedSet {
    sources: BTreeMap<SourceId, OfSource>,
}

impl FinishedSet {
    pub(crate) fn contains(&self, item: ItemId) -> bool {
        self.sources.get(&item.source).is_some_and(|s| s.set.contains(item.index))
    }

    pub(crate) fn of_source(&self, source: SourceId) -> Arc<NumberSet> {
        self.sources.get(&source).map(|s| Arc::clone(&s.set)).unwrap_or_default()
    }

    pub(crate) fn failed_of(&self, source: SourceId) -> NumberSet {
        self.sources.get(&source).map(|s| s.failed.clone()).unwrap_or_default()
    }

    pub(crate) fn counts_of(&self, source: SourceId) -> Counts {
        self.sources.get(&source).map(OfSource::counts).unwrap_or_default()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.sources.values().map(OfSource::counts).fold(Counts::default(), |sum, counts| Counts {
            done: sum.done + counts.done,
            failed: sum.failed + counts.failed,
        })
    }

    /// Adds `count` items from `first` on. Items that are there already are not counted twice.
    pub(crate) fn insert(&mut self, source: SourceId, first: u64, count: u64, ended: ItemEnding) {
        let of = self.sources.entry(source).or_default();
        let set = Arc::make_mut(&mut of.set);
        for new in set.missing(first..first.saturating_add(count)) {
            set.insert_all(new.clone());
            if ended == ItemEnding::Failed {
                of.failed.insert_all(new);
            }
        }
    }

    /// Takes away all that failed.
    pub(crate) fn forget_failed(&mut self) {
        for of in self.sources.values_mut() {
            Arc::make_mut(&mut of.set).subtract(&of.failed);
            of.failed = NumberSet::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_set_does_not_change_under_its_reader() {
        let mut finished = FinishedSet::default();
        finished.insert(SourceId(1), 0, 3, ItemEnding::Done);
        let before = finished.of_source(SourceId(1));
        finished.insert(SourceId(1), 2, 2, ItemEnding::Failed);
        assert_eq!(before.iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(finished.of_source(SourceId(1)).len(), 4);
        assert_eq!(finished.counts(), Counts { done: 3, failed: 1 });
        assert_eq!(finished.counts().total(), 4);
        assert_eq!(finished.counts_of(SourceId(0)), Counts::default());
        assert!(finished.contains(ItemId { source: SourceId(1), index: 3 }));
        assert!(!finished.contains(ItemId { source: SourceId(0), index: 3 }));
        finished.forget_failed();
        assert_eq!(finished.of_source(SourceId(1)).iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(finished.counts(), Counts { done: 3, failed: 0 });
    }
}
