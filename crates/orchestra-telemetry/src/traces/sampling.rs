//! Which items are traced, decided when they have ended: a share of them, and all that failed, were tried again, or took longer than a bound.
//! Nearly none is, so what costs no look at the item itself is asked first. It makes no span.

use std::time::Duration;

use orchestra_runtime::trace::{EndedItem, EndedItems, ItemTrace, UsualItems};

use super::ids::item_hash;

/// The share of the items that is traced unless a setting says otherwise.
pub(super) const USUAL_SHARE: f64 = 0.01;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemSampling {
    /// The share of all items, 0.0 to 1.0. An item is in it by its number, so the same ones are in every run of a workflow.
    pub ratio: f64,
    /// An item that takes longer than this is traced, whatever the share.
    pub slow: Option<Duration>,
}

impl Default for ItemSampling {
    /// One item in a hundred, and all that failed or were tried again.
    fn default() -> Self {
        Self { ratio: USUAL_SHARE, slow: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Ratio,
    /// Its parent is traced; before that was asked: it is traced for nothing else.
    Parent,
    Failed,
    Retried,
    Slow,
}

impl Kept {
    /// Others like it can stand for it.
    pub(super) fn is_plain(self) -> bool {
        self == Kept::Ratio
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kept::Ratio => "ratio",
            Kept::Parent => "parent",
            Kept::Failed => "failed",
            Kept::Retried => "retried",
            Kept::Slow => "slow",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) source: u16,
    pub(super) index: u64,
    pub(super) has_failed: bool,
    pub(super) was_retried: bool,
    pub(super) took: Duration,
}

/// Decides about the items of one run.
#[derive(Debug)]
pub(super) struct Sampler {
    sampling: ItemSampling,
    /// Hashes below this are in the share.
    below: u64,
}

impl Sampler {
    pub(super) fn new(sampling: ItemSampling) -> Self {
        let below = (sampling.ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        Self { sampling, below }
    }

    /// Why this item is traced, if it is.
    pub(super) fn decide(&self, item: &Ended) -> Option<Kept> {
        match item {
            Ended { has_failed: true, .. } => Some(Kept::Failed),
            Ended { was_retried: true, .. } => Some(Kept::Retried),
            _ if self.is_slow(item.took) => Some(Kept::Slow),
            _ => self.is_in_the_share(item.source, item.index).then_some(Kept::Ratio),
        }
    }

    /// Whether an item of which nothing else is to be said is traced.
    pub(super) fn is_in_the_share(&self, source: u16, index: u64) -> bool {
        self.sampling.ratio >= 1.0 || item_hash(source, index) < self.below
    }

    fn is_slow(&self, took: Duration) -> bool {
        self.sampling.slow.is_some_and(|slow| took > slow)
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

    pub(super) fn group(&mut self, group: &EndedItems, sampler: &Sampler) {
        let usual = group.usual().filter(|_| !self.has_parents);
        if let Some(usual) = usual.filter(|usual| !sampler.is_slow(usual.longest)) {
            self.usual(group, &usual, sampler);
            return;
        }
        for item in group.items() {
            let id = item.ticket().id();
            let ended = Ended {
                source: id.source.0,
                index: id.index,
                has_failed: item.has_failed(),
                was_retried: item.was_retried(),
                took: item.took(),
            };
            let kept = sampler.decide(&ended);
            if let Some(kept) = kept.or(self.has_parents.then_some(Kept::Parent)) {
                self.item(&item, kept);
            }
        }
    }

    /// A group of which nothing is to be said but which of them are in the share.
    fn usual(&mut self, group: &EndedItems, usual: &UsualItems<'_>, sampler: &Sampler) {
        // Walked only as far as there is something to take.
        let (mut walk, mut walked) = (group.items(), 0);
        for (at, id) in usual.ids.iter().enumerate() {
            if !sampler.is_in_the_share(id.source.0, id.index) {
                continue;
            }
            if self.room == 0 {
                self.left_out += 1;
            } else if let Some(item) = walk.nth(at - std::mem::replace(&mut walked, at + 1)) {
                self.room -= 1;
                self.kept.push((item.trace(), Kept::Ratio));
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

    fn item(index: u64) -> Ended {
        Ended { source: 0, index, has_failed: false, was_retried: false, took: MS }
    }

    fn sampler(ratio: f64, slow: Option<Duration>) -> Sampler {
        Sampler::new(ItemSampling { ratio, slow })
    }

    #[test]
    fn about_the_share_is_kept_and_the_same_items_each_time() {
        for ratio in [0.01, 0.3] {
            let kept = || -> Vec<u64> {
                let sampler = sampler(ratio, None);
                (0..100_000).filter(|i| sampler.decide(&item(*i)) == Some(Kept::Ratio)).collect()
            };
            let share = kept().len() as f64 / 100_000.0;
            assert!((share / ratio - 1.0).abs() < 0.15, "{share} of {ratio}");
            assert_eq!(kept(), kept());
        }
        assert!((0..1_000).all(|i| sampler(1.0, None).decide(&item(i)).is_some()));
        assert!((0..1_000).all(|i| sampler(0.0, None).decide(&item(i)).is_none()));
    }

    #[test]
    fn what_failed_or_was_tried_again_is_kept_whatever_the_share() {
        let sampler = sampler(0.0, None);
        assert_eq!(sampler.decide(&Ended { has_failed: true, ..item(1) }), Some(Kept::Failed));
        assert_eq!(sampler.decide(&Ended { was_retried: true, ..item(1) }), Some(Kept::Retried));
    }

    #[test]
    fn an_item_beyond_the_bound_that_was_set_is_kept() {
        let sampler = sampler(0.0, Some(5 * MS));
        assert_eq!(sampler.decide(&Ended { took: 6 * MS, ..item(1) }), Some(Kept::Slow));
        assert_eq!(sampler.decide(&Ended { took: 5 * MS, ..item(1) }), None);
    }
}
