//! Brings the parts of a token back together, in order. It holds rows as opaque values and runs nothing.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::lineage::Share;

/// A part of a token: its place among all of them, from 0. `of` is 0 for a token that was split into nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    pub index: u32,
    pub of: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Arrival<V> {
    Row(V),
    /// It was dropped on the way.
    Dropped,
    /// It failed, and its failure was reported.
    Failed,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Collected<T, V> {
    /// What was handed in with the first of them.
    pub token: T,
    /// What all that came here stand for.
    pub share: Share,
    /// Those that are there, in order; `None` where one has failed.
    pub parts: Option<Vec<V>>,
}

#[derive(Debug)]
struct OpenToken<T, V> {
    token: T,
    missing: u32,
    seen: HashSet<u32>,
    share: Share,
    has_failed: bool,
    rows: Vec<(u32, V)>,
}

#[derive(Debug)]
pub struct Collector<K, T, V> {
    open: HashMap<K, OpenToken<T, V>>,
}

impl<K: Eq + Hash, T, V> Default for Collector<K, T, V> {
    fn default() -> Self {
        Self { open: HashMap::new() }
    }
}

impl<K: Eq + Hash, T, V> Collector<K, T, V> {
    /// A part of the token `key` has come to its end, with the share that it stands for. A part that comes again adds its share, and counts as
    /// failed if it has failed since, but takes no other part's place.
    pub fn arrive(
        &mut self,
        key: K,
        token: T,
        part: Part,
        share: Share,
        arrival: Arrival<V>,
    ) -> Option<Collected<T, V>> {
        if part.of == 0 {
            let parts = (!matches!(arrival, Arrival::Failed)).then(Vec::new);
            return Some(Collected { token, share, parts });
        }
        let mut entry = match self.open.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry,
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert_entry(OpenToken {
                token,
                missing: part.of,
                seen: HashSet::new(),
                share: Share::NONE,
                has_failed: false,
                rows: Vec::new(),
            }),
        };
        let open = entry.get_mut();
        open.share = open.share.plus(share);
        let is_new = open.seen.insert(part.index);
        match arrival {
            Arrival::Row(row) if is_new => open.rows.push((part.index, row)),
            Arrival::Row(_) | Arrival::Dropped => {}
            Arrival::Failed => open.has_failed = true,
        }
        if is_new {
            open.missing = open.missing.saturating_sub(1);
        }
        if open.missing > 0 {
            return None;
        }
        let OpenToken { token, share, has_failed, mut rows, .. } = entry.remove();
        rows.sort_unstable_by_key(|(index, _)| *index);
        let parts = (!has_failed).then(|| rows.into_iter().map(|(_, row)| row).collect());
        Some(Collected { token, share, parts })
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_without_parts_is_complete_at_once() {
        let mut collector: Collector<u32, (), u32> = Collector::default();
        let none = Part { index: 0, of: 0 };
        let all = collector.arrive(0, (), none, Share::WHOLE, Arrival::Dropped).unwrap();
        assert_eq!(all, Collected { token: (), share: Share::WHOLE, parts: Some(Vec::new()) });
        assert!(collector.is_empty());
    }

    #[test]
    fn a_part_that_comes_twice_takes_no_other_parts_place() {
        let mut collector = Collector::default();
        let mut whole = Share::WHOLE;
        let each = whole.cut(2).unwrap();
        let part = |index| Part { index, of: 2 };
        assert!(collector.arrive(0, (), part(0), each, Arrival::Row("a")).is_none());
        assert!(collector.arrive(0, (), part(0), Share::NONE, Arrival::Dropped).is_none());
        let all = collector.arrive(0, (), part(1), each, Arrival::Row("b")).unwrap();
        assert_eq!(all, Collected { token: (), share: Share::WHOLE, parts: Some(vec!["a", "b"]) });
        assert!(collector.is_empty());
    }

    proptest! {
        #[test]
        fn parts_come_out_in_order_and_with_all_that_they_stand_for(
            order in Just((0u32..30).flat_map(|i| [(0, i), (1, i)]).collect::<Vec<_>>()).prop_shuffle(),
            dropped in prop::collection::hash_set(0u32..30, 0..30), fails: bool
        ) {
            let mut collector = Collector::default();
            let mut whole = Share::WHOLE;
            let each = whole.cut(30).unwrap();
            let mut complete = 0;
            for (n, &(key, index)) in order.iter().enumerate() {
                let arrival = match index {
                    7 if fails => Arrival::Failed,
                    _ if dropped.contains(&index) => Arrival::Dropped,
                    _ => Arrival::Row(index),
                };
                let part = Part { index, of: 30 };
                if let Some(all) = collector.arrive(key, key, part, each, arrival) {
                    complete += 1;
                    prop_assert!(order[n + 1..].iter().all(|(k, _)| *k != key));
                    prop_assert_eq!(all.share.plus(whole), Share::WHOLE);
                    let expected = (0..30).filter(|i| !dropped.contains(i)).collect::<Vec<_>>();
                    prop_assert_eq!(all.parts, (!fails).then_some(expected));
                }
            }
            prop_assert_eq!(complete, 2);
            prop_assert!(collector.is_empty());
        }
    }
}
