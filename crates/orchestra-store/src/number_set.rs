//! A set of item numbers, as ranges: items end nearly in their order, so a few ranges hold millions. Knows nothing of sources or files.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers below `u64::MAX`. What it takes in memory depends on its ranges alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumberSet {
    /// Where each range ends, by its beginning. None is empty, and no two touch.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl NumberSet {
    pub fn contains(&self, number: u64) -> bool {
        self.next_missing(number) != number
    }

    /// How many numbers are in the set.
    pub fn len(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many numbers of the set are below `end`.
    pub fn count_below(&self, end: u64) -> u64 {
        self.ranges.range(..end).map(|(from, to)| (*to).min(end) - from).sum()
    }

    /// The smallest number from `from` on that is not in the set.
    pub fn next_missing(&self, from: u64) -> u64 {
        self.ranges.range(..=from).next_back().map_or(from, |(_, to)| from.max(*to))
    }

    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut from, mut missing) = (self.next_missing(range.start), Vec::new());
        while from < range.end {
            let to = self.ranges.range(from..range.end).next().map_or(range.end, |(from, _)| *from);
            missing.push(from..to);
            from = self.next_missing(to);
        }
        missing
    }

    /// The numbers of the set, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().flat_map(|(from, to)| *from..*to)
    }

    /// Adds a number; `false` if it was there before.
    pub fn insert(&mut self, number: u64) -> bool {
        self.insert_all(number..number.saturating_add(1)) == 1
    }

    /// Adds all numbers of a range; gives how many were not there before.
    pub fn insert_all(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (before, mut whole) = (self.count, range.clone());
        while let Some((&from, &to)) = self.ranges.range(..=whole.end).next_back()
            && to >= whole.start
        {
            self.ranges.remove(&from);
            self.count -= to - from;
            whole = from.min(whole.start)..to.max(whole.end);
        }
        self.count += whole.end - whole.start;
        self.ranges.insert(whole.start, whole.end);
        self.count - before
    }

    /// Takes away all that are not in `other`.
    pub fn keep(&mut self, other: &NumberSet) {
        let mut rest = self.clone();
        rest.subtract(other);
        self.subtract(&rest);
    }

    /// Takes away all that are in `other`.
    pub fn subtract(&mut self, other: &NumberSet) {
        for (&begin, &end) in &other.ranges {
            while let Some((&from, &to)) = self.ranges.range(..end).next_back()
                && to > begin
            {
                self.ranges.remove(&from);
                self.count -= to.min(end) - from.max(begin);
                if from < begin {
                    self.ranges.insert(from, begin);
                }
                if end < to {
                    self.ranges.insert(end, to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = Range<u64>> {
        (0u64..400, prop_oneof![Just(1u64), 0u64..40]).prop_map(|(from, n)| from..from + n)
    }

    fn sets(ranges: Vec<Range<u64>>) -> (NumberSet, BTreeSet<u64>) {
        let (mut set, mut plain) = (NumberSet::default(), BTreeSet::new());
        for range in ranges {
            let added = range.clone().filter(|n| plain.insert(*n)).count() as u64;
            assert_eq!(set.insert_all(range), added);
        }
        (set, plain)
    }

    fn is_same(set: &NumberSet, plain: &BTreeSet<u64>) {
        assert!(set.iter().eq(plain.iter().copied()));
        assert_eq!((set.len(), set.is_empty()), (plain.len() as u64, plain.is_empty()));
        let ranges: Vec<_> = set.ranges.iter().collect();
        assert!(ranges.windows(2).all(|two| two[0].1 < two[1].0), "no two touch: {ranges:?}");
    }

    proptest! {
        #[test]
        fn it_answers_like_an_ordinary_set(
            ranges in proptest::collection::vec(range(), 0..60),
            others in proptest::collection::vec(range(), 0..60),
            probe in 0u64..600,
        ) {
            let ((set, plain), (other, others)) = (sets(ranges), sets(others));
            is_same(&set, &plain);
            prop_assert_eq!(set.contains(probe), plain.contains(&probe));
            let missing = set.missing(probe..probe + 50);
            prop_assert!(missing.iter().all(|range| !range.is_empty()) && missing.len() <= 50);
            let missing = missing.into_iter().flatten().collect::<Vec<_>>();
            prop_assert_eq!(missing, (probe..probe + 50).filter(|n| !plain.contains(n)).collect::<Vec<_>>());
            prop_assert_eq!(set.count_below(probe), plain.range(..probe).count() as u64);
            prop_assert_eq!(set.next_missing(probe), (probe..).find(|n| !plain.contains(n)).unwrap());
            let (mut kept, mut left) = (set.clone(), set.clone());
            kept.keep(&other);
            is_same(&kept, &plain.intersection(&others).copied().collect());
            left.subtract(&other);
            is_same(&left, &plain.difference(&others).copied().collect());
            let (mut more, mut grown) = (set, plain);
            prop_assert_eq!(more.insert(probe), grown.insert(probe));
            is_same(&more, &grown);
        }
    }

    #[test]
    fn ranges_of_any_length_cost_nothing() {
        let mut set = NumberSet::default();
        assert_eq!(set.insert_all(5..u64::MAX), u64::MAX - 5);
        assert!(set.insert(3) && !set.insert(1 << 60) && set.contains(u64::MAX - 1));
        assert_eq!((set.next_missing(7), set.count_below(6)), (u64::MAX, 2));
    }
}
