//! What waits to be taken on, the oldest first, whatever the order in which it came. It knows nothing of what that is.

use std::collections::BTreeMap;

/// Values by the age of what they belong to, its number in the order of beginnings. Of one age, they are taken in the order in which they came.
#[derive(Debug)]
pub struct OldestFirst<T> {
    waiting: BTreeMap<(u64, u64), T>,
    came: u64,
}

impl<T> Default for OldestFirst<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), came: 0 }
    }
}

impl<T> OldestFirst<T> {
    pub fn push(&mut self, age: u64, value: T) {
        self.waiting.insert((age, self.came), value);
        self.came += 1;
    }

    /// The oldest, `most` at most, in their order.
    pub fn take(&mut self, most: usize) -> Vec<T> {
        if most >= self.waiting.len() {
            return std::mem::take(&mut self.waiting).into_values().collect();
        }
        std::iter::from_fn(|| self.waiting.pop_first()).take(most).map(|(_, value)| value).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn none_is_taken_while_an_older_one_waits(steps in prop::collection::vec((0..20_u64, 0..3_usize), 0..200)) {
            let (mut of, mut waiting) = (OldestFirst::default(), Vec::new());
            for (n, (age, most)) in steps.into_iter().enumerate() {
                of.push(age, (age, n));
                waiting.push((age, n));
                waiting.sort_unstable();
                let oldest: Vec<_> = waiting.drain(..most.min(waiting.len())).collect();
                prop_assert_eq!(of.take(most), oldest);
            }
            prop_assert_eq!(of.take(usize::MAX), waiting);
            prop_assert!(of.is_empty());
        }
    }
}
