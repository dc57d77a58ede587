//! While 20,000 images run, a worker is killed every 200 ms: the items in the results are exactly the items of the source, each with
//! the result of its own picture. Says nothing about what the storm costs in time.

mod common;

use std::time::Duration;

use common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::chaos::{Chaos, Fault};

const ITEMS: u64 = 20_000;

/// So many kills must have hit for the test to mean anything.
const LEAST_KILLS: usize = 20;

#[test]
fn twenty_thousand_items_survive_a_storm_of_kills_exactly() {
    let place = Workplace::with_blocks(&Blocks { steps: 100, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    let run = place.start(&[]);
    let storm = Chaos::start(run.pid(), Duration::from_millis(200), Fault::Kill);
    let ended = run.wait();
    let killed = storm.stop();
    ended.must_exit(0);
    place.holds_exactly(ITEMS);
    assert!(place.failures().is_empty());
    let restarts = place.restarts();
    println!("{} kills, {restarts} restarts: {}", killed.len(), place.report()["batches_by_reason"]);
    assert!(killed.len() >= LEAST_KILLS, "only {} workers were killed: the model is too fast", killed.len());
    assert!(restarts > 0);
    place.nothing_is_left();
}
