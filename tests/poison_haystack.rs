//! A few items among thousands that abort the model: exactly they fail, all others are done, and the search costs no more workers than
//! setting batches apart that went together and halving one takes. Says nothing about other kinds of poison (`poison.rs`).

use crate::common::{Blocks, Workplace, drawn, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::items;
use orchestra_testkit::size::scaled;

const BATCH: usize = 64;

/// Workers that may die for one poison item: those batches that went together, its batch whole, its halves down to a single item, and that
/// item once more.
const MOST_DEATHS: usize = BATCH.ilog2() as usize + 3;

#[test]
fn poison_items_among_thousands_fail_alone_at_the_price_of_halving_their_batches() {
    let n: u64 = scaled(10_000, 2_000);
    // Early, two in one batch, and late: batches hold 64 items in about the order of the source.
    let poison = [17, n / 2, n / 2 + 1, n - 17];
    let place = Workplace::with_blocks(&Blocks { trap: true, batch: BATCH, ..Blocks::default() });
    write_pictures(&place.images(), n);
    for index in poison {
        write_trap_picture(&place.images(), index, Trap::Abort).unwrap();
    }
    place.run(&[]).must_exit(65);
    let failed = items("scans", poison);
    let records = place.must_hold(&items("scans", (0..n).filter(|i| !poison.contains(i))), &failed);
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
