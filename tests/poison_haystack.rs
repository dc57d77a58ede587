//! A few items among 10,000 that abort the model: exactly they fail, all others are done, and the search costs no more workers than
//! setting batches apart that went together and halving one takes. Says nothing about other kinds of poison (`poison.rs`).
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use crate::common::{Blocks, Workplace, drawn, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::items;

const ITEMS: u64 = 10_000;
const BATCH: usize = 64;

/// Workers that may die for one poison item: those batches that went together, its batch whole, its halves down to a single item, and that
/// item once more.
const MOST_DEATHS: usize = BATCH.ilog2() as usize + 3;

/// Runs with these pictures among the others.
fn only_these_fail(poison: &[u64]) {
    let place = Workplace::with_blocks(&Blocks { trap: true, batch: BATCH, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    for index in poison {
        write_trap_picture(&place.images(), *index, Trap::Abort).unwrap();
    }
    place.run(&[]).must_exit(65);
    let is_poison = |index: &u64| poison.contains(index);
    let failed = items("scans", poison.iter().copied());
    let records = place.must_hold(&items("scans", (0..ITEMS).filter(|i| !is_poison(i))), &failed);
    for key in records.done.keys() {
        assert_eq!(drawn(&records, key), key.index);
    }
    for key in &failed {
        let failure = &records.failed[key];
        assert_eq!(records.failure_kind(key), Some("crash"), "{failure}");
        assert_eq!(failure["stage"], "read", "{failure}");
        assert!(failure["error"].as_str().unwrap().contains("SIGABRT"), "{failure}");
    }
    let deaths = place.workers_lost();
    println!("{deaths} workers died of {} poison items", poison.len());
    assert!(deaths > poison.len(), "an item was failed by its first death");
    assert!(deaths <= poison.len() * MOST_DEATHS, "{deaths} workers died: {}", place.report());
    place.nothing_is_left();
}

#[test]
fn one_poison_item_among_ten_thousand_fails_alone_at_the_price_of_halving_its_batch() {
    only_these_fail(&[4_711]);
}

#[test]
fn three_poison_items_among_ten_thousand_fail_alone() {
    only_these_fail(&[17, 5_000, 9_983]);
}

#[test]
fn two_poison_items_of_one_batch_among_ten_thousand_fail_alone() {
    // Batches hold 64 items in about the order of the source.
    only_these_fail(&[6_420, 6_421]);
}
