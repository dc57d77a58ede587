//! While 20,000 images run, a worker is killed every 200 ms: the items in the results are exactly the items of the source, each with
//! the result of its own picture, and the parent holds no more open than before. Says nothing about what the storm costs in time.

use std::time::Duration;

use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::leaks::Holdings;
use orchestra_testkit::striker::{Fault, Striker};

const ITEMS: u64 = 20_000;

/// So many kills must have hit for the test to mean anything.
const LEAST_KILLS: usize = 20;

#[test]
fn twenty_thousand_items_survive_a_storm_of_kills_exactly() {
    let place = Workplace::with_blocks(&Blocks { steps: 200, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    let mut run = place.start(&[]);
    let pid = run.pid();
    assert!(run.until("all workers are at work", || place.n_results() >= 200));
    let storm = Striker::of_process(pid, Duration::from_millis(200), Fault::Kill);
    let mut open_files = Vec::new();
    run.until("it ends", || {
        open_files.push(Holdings::of(pid).open_files());
        false
    });
    let ended = run.wait();
    let killed = storm.stop();
    ended.must_exit(0);
    place.holds_exactly(ITEMS);
    assert!(place.failures().is_empty());
    let restarts = place.restarts();
    println!("{} kills, {restarts} restarts: {}", killed.len(), place.report()["batches_by_reason"]);
    assert!(killed.len() >= LEAST_KILLS, "only {} workers were killed: the model is too fast", killed.len());
    assert!(restarts > 0);
    // Early in the storm, when most of the kills are still to come: a worker that starts beside those that die needs as many as later on.
    let early = &open_files[..open_files.len() / 10];
    let at_first = early.iter().max().copied().unwrap_or_default();
    // Late in the storm, but not in the last moments, when all is closed: each worker that died has taken its descriptors along.
    let late = &open_files[open_files.len() / 2..open_files.len() * 4 / 5];
    let least = late.iter().min().copied().unwrap_or(usize::MAX);
    assert!(least <= at_first + LEAST_KILLS / 4, "{at_first} descriptors became {least}: {open_files:?}");
    place.nothing_is_left();
}
