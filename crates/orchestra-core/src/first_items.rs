//! Whether the first items that came to a place all failed there: a source, a stage or a sink. Then the others would fail, too. Counts what threads tell;
//! stops nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ItemId;

/// What became of the items at one place. Once one of them has passed, nothing is counted any more.
#[derive(Debug, Default)]
pub struct FirstItems {
    has_passed: AtomicBool,
    failed: Mutex<FailedItems>,
}

#[derive(Debug, Default)]
struct FailedItems {
    items: u64,
    /// Parts of one item mostly fail one behind the other, and count once then.
    last: Option<ItemId>,
}

impl FirstItems {
    /// An item, or a part of one, went on from here.
    pub fn pass(&self) {
        // All threads read it, so it is written once.
        if !self.has_passed.load(Ordering::Relaxed) {
            self.has_passed.store(true, Ordering::Relaxed);
        }
    }

    /// An item, or a part of one, failed here.
    pub fn fail(&self, item: ItemId) {
        if self.has_passed.load(Ordering::Relaxed) {
            return;
        }
        let mut failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if failed.last.replace(item) != Some(item) {
            failed.items += 1;
        }
    }

    /// Whether at least so many items failed here, and none passed. `0` is never reached.
    pub fn all_failed(&self, limit: u64) -> bool {
        limit > 0
            && !self.has_passed.load(Ordering::Relaxed)
            && self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).items >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SourceId;

    fn item(index: u64) -> ItemId {
        ItemId { source: SourceId(0), index }
    }

    #[test]
    fn all_have_failed_once_so_many_items_did_and_none_passed() {
        let first = FirstItems::default();
        (0..99).for_each(|index| first.fail(item(index)));
        assert!(!first.all_failed(100));
        first.fail(item(99));
        assert!(first.all_failed(100) && !first.all_failed(101) && !first.all_failed(0));
        first.pass();
        assert!(!first.all_failed(100), "one that comes later than others proves the same");
    }

    #[test]
    fn one_that_passed_is_enough_and_parts_of_an_item_are_one() {
        let first = FirstItems::default();
        first.pass();
        (0..1000).for_each(|index| first.fail(item(index)));
        assert!(!first.all_failed(1));

        let parts = FirstItems::default();
        (0..1000).for_each(|_| parts.fail(item(7)));
        assert!(parts.all_failed(1) && !parts.all_failed(2));
    }
}
