//! A dense set of item numbers: one bit for each number up to the largest. Knows nothing of sources or files.

/// A set of numbers from 0, at one bit per number up to the largest: 125 KB for a million.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BitSet {
    /// The last word is never zero, so equal sets are equal in memory.
    words: Vec<u64>,
    count: u64,
}

impl BitSet {
    /// Whether `index` is in the set.
    pub fn contains(&self, index: u64) -> bool {
        let (word, bit) = place(index);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// How many numbers are in the set.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether no number is in the set.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The numbers of the set below `end`: how many of the first `end` items are finished.
    pub fn count_below(&self, end: u64) -> u64 {
        let (word, bit) = place(end);
        let whole: u64 = self.words.iter().take(word).map(|w| u64::from(w.count_ones())).sum();
        let part = self.words.get(word).map_or(0, |w| (w & (bit - 1)).count_ones());
        whole + u64::from(part)
    }

    /// The smallest number from `from` on that is not in the set.
    pub fn next_missing(&self, from: u64) -> u64 {
        let (mut word, bit) = place(from);
        // Numbers before `from` count as present.
        let mut below = bit - 1;
        while let Some(w) = self.words.get(word) {
            let missing = !(w | below);
            if missing != 0 {
                return word as u64 * 64 + u64::from(missing.trailing_zeros());
            }
            below = 0;
            word += 1;
        }
        from.max(word as u64 * 64)
    }

    /// The numbers of the set, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| u64::from(rest.trailing_zeros()))?;
                rest &= rest - 1;
                Some(i as u64 * 64 + bit)
            })
        })
    }

    /// Takes away all that are not in `other`.
    pub fn keep(&mut self, other: &BitSet) {
        self.words.truncate(other.words.len());
        self.words.iter_mut().zip(&other.words).for_each(|(word, others)| *word &= others);
        self.recount();
    }

    /// Takes away all that are in `other`.
    pub fn subtract(&mut self, other: &BitSet) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, others)| *word &= !others);
        self.recount();
    }

    fn recount(&mut self) {
        self.words.truncate(self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        self.count = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
    }

    /// Adds `index`; `false` if it was there before. The caller bounds `index`: memory grows with the largest.
    pub fn insert(&mut self, index: u64) -> bool {
        let (word, bit) = place(index);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }
}

fn place(index: u64) -> (usize, u64) {
    (usize::try_from(index / 64).unwrap_or(usize::MAX), 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_answers_like_an_ordinary_set(numbers in proptest::collection::vec(0u64..400, 0..300), probe in 0u64..600) {
            let mut bits = BitSet::default();
            let mut plain = BTreeSet::new();
            for n in numbers {
                prop_assert_eq!(bits.insert(n), plain.insert(n));
            }
            prop_assert_eq!(bits.len(), plain.len() as u64);
            prop_assert_eq!(bits.is_empty(), plain.is_empty());
            prop_assert_eq!(bits.contains(probe), plain.contains(&probe));
            prop_assert_eq!(bits.count_below(probe), plain.range(..probe).count() as u64);
            prop_assert_eq!(bits.next_missing(probe), (probe..).find(|n| !plain.contains(n)).unwrap());
            prop_assert_eq!(bits.iter().collect::<Vec<_>>(), plain.into_iter().collect::<Vec<_>>());
        }
    }
}
