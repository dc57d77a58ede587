//! Which items are traced, decided when they have ended: those that failed, were tried again, or took as long as a bound. Nearly none is, so what costs no
//! look at the item itself is asked first. It makes no span.

use std::time::Duration;

use orchestra_runtime::trace::{EndedItem, EndedItems, ItemTrace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Its parent is traced; before that was asked: it is traced for nothing else.
    Parent,
    Failed,
    Retried,
    Slow,
}

impl Kept {
    /// Others like it can stand for it.
    pub(super) fn is_plain(self) -> bool {
        self == Kept::Slow
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kept::Parent => "parent",
            Kept::Failed => "failed",
            Kept::Retried => "retried",
            Kept::Slow => "slow",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) has_failed: bool,
    pub(super) was_retried: bool,
    pub(super) took: Duration,
}

/// Why an item is traced, if it is. One that takes as long as `slow`, or longer, always is.
pub(super) fn why_kept(item: Ended, slow: Option<Duration>) -> Option<Kept> {
    match item {
        Ended { has_failed: true, .. } => Some(Kept::Failed),
        Ended { was_retried: true, .. } => Some(Kept::Retried),
        Ended { took, .. } => slow.is_some_and(|slow| took >= slow).then_some(Kept::Slow),
    }
}

/// Those of some items that are traced, or may be if they have parents.
pub(super) struct Sorted {
    pub(super) kept: Vec<(ItemTrace, Kept)>,
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
            let ended =
                Ended { has_failed: item.has_failed(), was_retried: item.was_retried(), took: item.took() };
            let kept = why_kept(ended, slow);
            if let Some(kept) = kept.or(self.has_parents.then_some(Kept::Parent)) {
                self.item(&item, kept);
            }
        }
    }

    fn item(&mut self, item: &EndedItem<'_>, kept: Kept) {
        let gives_way = kept.is_plain() || kept == Kept::Parent;
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
        let item = Ended { has_failed: false, was_retried: false, took: 5 * MS };
        for slow in [None, Some(6 * MS)] {
            assert_eq!(why_kept(item, slow), None);
            assert_eq!(why_kept(Ended { has_failed: true, ..item }, slow), Some(Kept::Failed));
            assert_eq!(why_kept(Ended { was_retried: true, ..item }, slow), Some(Kept::Retried));
        }
        assert_eq!(why_kept(item, Some(5 * MS)), Some(Kept::Slow));
        assert_eq!(why_kept(Ended { took: Duration::ZERO, ..item }, Some(Duration::ZERO)), Some(Kept::Slow));
    }
}
