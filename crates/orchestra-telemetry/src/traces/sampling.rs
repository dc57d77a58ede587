//! Which items are traced, decided when they have ended: those that failed, were tried again, or took as long as a bound. Nearly none is, so what costs no
//! look at the item itself is asked first. It makes no span.

use std::time::Duration;

use orchestra_runtime::trace::{EndedItem, EndedItems, ItemTrace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepReason {
    /// Its parent is traced; before that was asked: it is traced for nothing else.
    Parent,
    Failed,
    Retried,
    Slow,
}

impl KeepReason {
    /// Others like it can stand for it.
    pub(super) fn is_plain(self) -> bool {
        self == KeepReason::Slow
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            KeepReason::Parent => "parent",
            KeepReason::Failed => "failed",
            KeepReason::Retried => "retried",
            KeepReason::Slow => "slow",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct EndedTiming {
    pub(super) has_failed: bool,
    pub(super) was_retried: bool,
    pub(super) took: Duration,
}

/// Why an item is traced, if it is. One that takes as long as `slow`, or longer, always is.
pub(super) fn why_kept(item: EndedTiming, slow: Option<Duration>) -> Option<KeepReason> {
    match item {
        EndedTiming { has_failed: true, .. } => Some(KeepReason::Failed),
        EndedTiming { was_retried: true, .. } => Some(KeepReason::Retried),
        EndedTiming { took, .. } => slow.is_some_and(|slow| took >= slow).then_some(KeepReason::Slow),
    }
}

/// Those of some items that are traced, or may be if they have parents.
pub(super) struct Sorted {
    pub(super) kept: Vec<(ItemTrace, KeepReason)>,
    /// For so many more items that others can stand for.
    room: usize,
    /// Items that found no room.
    pub(super) left_out: u64,
    /// Items may have parents of the host, which have the last word: then all may be traced.
    has_parents: bool,
}

impl Sorted {
    pub(super) fn new(room: usize, has_parents: bool) -> Self {
        Self { kept: Vec::new(), room, left_out: 0, has_parents }
    }

    pub(super) fn group(&mut self, group: &EndedItems, slow: Option<Duration>) {
        let is_quick = |longest: Duration| slow.is_none_or(|slow| longest < slow);
        if !self.has_parents && group.longest_if_usual().is_some_and(is_quick) {
            return;
        }
        for item in group.items() {
            let ended = EndedTiming {
                has_failed: item.has_failed(),
                was_retried: item.was_retried(),
                took: item.took(),
            };
            let kept = why_kept(ended, slow);
            if let Some(kept) = kept.or(self.has_parents.then_some(KeepReason::Parent)) {
                self.item(&item, kept);
            }
        }
    }

    fn item(&mut self, item: &EndedItem<'_>, kept: KeepReason) {
        let gives_way = kept.is_plain() || kept == KeepReason::Parent;
        if self.room == 0 && gives_way {
            self.left_out += 1;
            return;
        }
        self.room -= usize::from(gives_way);
        self.kept.push((item.trace(), kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_failed_was_tried_again_or_took_as_long_as_the_bound_is_kept_and_nothing_else() {
        let item = EndedTiming { has_failed: false, was_retried: false, took: 5 * MS };
        for slow in [None, Some(6 * MS)] {
            assert_eq!(why_kept(item, slow), None);
            assert_eq!(why_kept(EndedTiming { has_failed: true, ..item }, slow), Some(KeepReason::Failed));
            assert_eq!(why_kept(EndedTiming { was_retried: true, ..item }, slow), Some(KeepReason::Retried));
        }
        assert_eq!(why_kept(item, Some(5 * MS)), Some(KeepReason::Slow));
        assert_eq!(
            why_kept(EndedTiming { took: Duration::ZERO, ..item }, Some(Duration::ZERO)),
            Some(KeepReason::Slow)
        );
    }
}
