//! Which items are traced, decided when they have ended: a share of them, and besides all that failed, were tried again or were slow.
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
    /// An item that takes longer than this is traced. `None`: one that takes ten times as long as half of the items before it.
    pub slow: Option<Duration>,
}

impl Default for ItemSampling {
    /// One item in a hundred, and all that failed, were tried again or were slow.
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
    typical: Typical,
    judged_slow: u64,
}

/// An item is slow if it takes so many times as long as half of the others.
const SLOW: u32 = 10;
/// Before so many items are known, none is called slow for that.
const KNOWN: u64 = 256;
/// Nor before so many durations are: one may stand for all items of a batch.
const DURATIONS: u64 = 8;
/// Of so many items at most one is: where a tenth is "slow", that is how it is there.
const ONE_SLOW_IN: u64 = 50;

impl Sampler {
    pub(super) fn new(sampling: ItemSampling) -> Self {
        let below = (sampling.ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        Self { sampling, below, typical: Typical::default(), judged_slow: 0 }
    }

    /// So many items took about so long, or half of them less and half of them more.
    pub(super) fn note(&mut self, took: Duration, items: u64) {
        if self.sampling.slow.is_none() {
            self.typical.add(took, items);
        }
    }

    /// Whether an item that took so long may be one that is slow.
    pub(super) fn may_be_slow(&self, took: Duration) -> bool {
        match self.sampling.slow {
            Some(slow) => took > slow,
            None => self.typical.middle.is_some_and(|t| took > t * SLOW),
        }
    }

    /// Why this item is traced, if it is.
    pub(super) fn decide(&mut self, item: &Ended) -> Option<Kept> {
        let is_slow = self.is_slow(item.took);
        match item {
            Ended { has_failed: true, .. } => Some(Kept::Failed),
            Ended { was_retried: true, .. } => Some(Kept::Retried),
            _ if is_slow => Some(Kept::Slow),
            _ => self.is_in_the_share(item.source, item.index).then_some(Kept::Ratio),
        }
    }

    /// Whether an item of which nothing else is to be said is traced.
    pub(super) fn is_in_the_share(&self, source: u16, index: u64) -> bool {
        self.sampling.ratio >= 1.0 || item_hash(source, index) < self.below
    }

    fn is_slow(&mut self, took: Duration) -> bool {
        let is_slow = self.may_be_slow(took);
        if self.sampling.slow.is_some() || !is_slow {
            return is_slow;
        }
        let is_one_of_few = (self.judged_slow + 1) * ONE_SLOW_IN <= self.typical.seen;
        self.judged_slow += u64::from(is_one_of_few);
        is_one_of_few
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

    pub(super) fn group(&mut self, group: &EndedItems, sampler: &mut Sampler) {
        let usual = group.usual().filter(|_| !self.has_parents);
        if let Some(usual) = usual {
            sampler.note(usual.typical, usual.ids.len() as u64);
            if !sampler.may_be_slow(usual.longest) {
                self.usual(group, &usual, sampler);
                return;
            }
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
            if usual.is_none() {
                sampler.note(ended.took, 1);
            }
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

/// The middle of all durations so far, within a fifth: counts in buckets, four for each power of two of a microsecond.
#[derive(Debug)]
struct Typical {
    buckets: [u64; 4 * 40],
    seen: u64,
    durations: u64,
    /// Looked for anew when so many are known.
    look_at: u64,
    middle: Option<Duration>,
}

impl Default for Typical {
    fn default() -> Self {
        Self { buckets: [0; 4 * 40], seen: 0, durations: 0, look_at: KNOWN, middle: None }
    }
}

impl Typical {
    fn add(&mut self, took: Duration, n: u64) {
        self.buckets[bucket(took)] += n;
        self.seen += n;
        self.durations += 1;
        if self.seen >= self.look_at && self.durations >= DURATIONS {
            self.look_at = self.seen + KNOWN;
            let mut before = 0;
            let at_half = |n: &u64| {
                before += *n;
                before * 2 >= self.seen
            };
            self.middle = self.buckets.iter().position(at_half).map(upper_bound);
        }
    }
}

fn bucket(took: Duration) -> usize {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(4);
    let power = us.ilog2();
    let quarter = (us >> (power - 2)) & 3;
    (power as usize * 4 + quarter as usize).min(4 * 40 - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    let (power, quarter) = (bucket / 4, bucket as u64 % 4);
    Duration::from_micros((5 + quarter) << power >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn item(index: u64) -> Ended {
        Ended { source: 0, index, has_failed: false, was_retried: false, took: MS }
    }

    /// The decision about an item that comes alone.
    fn decide(sampler: &mut Sampler, item: &Ended) -> Option<Kept> {
        sampler.note(item.took, 1);
        sampler.decide(item)
    }

    fn sampler(ratio: f64, slow: Option<Duration>) -> Sampler {
        Sampler::new(ItemSampling { ratio, slow })
    }

    #[test]
    fn about_the_share_is_kept_and_the_same_items_each_time() {
        for ratio in [0.01, 0.3] {
            let kept = || -> Vec<u64> {
                let mut sampler = sampler(ratio, None);
                (0..100_000).filter(|i| decide(&mut sampler, &item(*i)) == Some(Kept::Ratio)).collect()
            };
            let share = kept().len() as f64 / 100_000.0;
            assert!((share / ratio - 1.0).abs() < 0.15, "{share} of {ratio}");
            assert_eq!(kept(), kept());
        }
        assert!((0..1_000).all(|i| decide(&mut sampler(1.0, None), &item(i)).is_some()));
        assert!((0..1_000).all(|i| decide(&mut sampler(0.0, None), &item(i)).is_none()));
    }

    #[test]
    fn what_failed_or_was_tried_again_is_kept_whatever_the_share() {
        let mut sampler = sampler(0.0, None);
        assert_eq!(decide(&mut sampler, &Ended { has_failed: true, ..item(1) }), Some(Kept::Failed));
        assert_eq!(decide(&mut sampler, &Ended { was_retried: true, ..item(1) }), Some(Kept::Retried));
    }

    #[test]
    fn an_item_beyond_the_bound_that_was_set_is_kept() {
        let mut sampler = sampler(0.0, Some(5 * MS));
        assert_eq!(decide(&mut sampler, &Ended { took: 6 * MS, ..item(1) }), Some(Kept::Slow));
        assert_eq!(decide(&mut sampler, &Ended { took: 5 * MS, ..item(1) }), None);
    }

    #[test]
    fn an_item_far_above_the_others_is_kept_once_these_are_known() {
        let mut sampler = sampler(0.0, None);
        assert_eq!(
            decide(&mut sampler, &Ended { took: 500 * MS, ..item(0) }),
            None,
            "nothing to compare with"
        );
        for i in 0..1_000 {
            assert_eq!(decide(&mut sampler, &Ended { took: MS * (1 + i % 3), ..item(u64::from(i)) }), None);
        }
        assert_eq!(decide(&mut sampler, &Ended { took: 30 * MS, ..item(2) }), Some(Kept::Slow));
    }

    #[test]
    fn items_that_are_noted_together_are_as_good_a_measure_as_each_alone() {
        let mut sampler = sampler(0.0, None);
        for _ in 0..20 {
            assert!(!sampler.may_be_slow(500 * MS), "nothing to compare with");
            sampler.note(2 * MS, 13);
        }
        assert!(sampler.may_be_slow(30 * MS));
        assert!(!sampler.may_be_slow(15 * MS));
        assert_eq!(sampler.decide(&Ended { took: 30 * MS, ..item(2) }), Some(Kept::Slow));
    }

    #[test]
    fn one_large_batch_that_was_held_up_is_not_what_is_usual() {
        let mut sampler = sampler(0.0, None);
        sampler.note(20_000 * MS, 512);
        for _ in 0..9 {
            sampler.note(MS, 512);
        }
        assert!(sampler.may_be_slow(30 * MS));
    }

    #[test]
    fn where_many_items_are_far_above_the_others_few_are_kept() {
        let mut sampler = sampler(0.0, None);
        let took = |i: u64| if i.is_multiple_of(4) { MS * 100 } else { MS };
        let kept = (0..10_000)
            .filter(|i| decide(&mut sampler, &Ended { took: took(*i), ..item(*i) }).is_some())
            .count();
        assert!((100..=200).contains(&kept), "{kept}");
    }

    #[test]
    fn the_middle_lies_within_a_quarter_above() {
        for us in [4, 7, 100, 1_000, 12_345, 60_000_000] {
            let took = Duration::from_micros(us);
            let bound = upper_bound(bucket(took));
            assert!(bound >= took && bound <= took + took / 4, "{took:?} in {bound:?}");
        }
    }
}
