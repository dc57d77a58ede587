//! A worker that is frozen (SIGSTOP) in the middle of a run is replaced, and what it held is done by others. Says nothing about how
//! soon that is noticed.

mod common;

use common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::chaos::{Fault, strike};

const ITEMS: u64 = 4_000;

#[test]
fn a_frozen_worker_is_replaced_and_its_batches_are_done() {
    let place = Workplace::with_blocks(&Blocks { steps: 100, ..Blocks::default() });
    place.edit("threads = 1\n", "threads = 1\nspare = 0\n");
    write_pictures(&place.images(), ITEMS);
    let mut run = place.start(&[]);
    assert!(run.until("the run is under way", || place.n_results() >= 200));
    let workers = run.workers();
    let frozen = *workers.first().expect("a run under way has workers");
    assert!(strike(run.pid(), frozen, Fault::Freeze));
    let ended = run.wait();
    ended.must_exit(0).must_say(&["1 worker died and was replaced"]);
    place.holds_exactly(ITEMS);
    assert_eq!(place.restarts(), 1);
    place.nothing_is_left();
}

#[test]
fn a_run_whose_only_worker_is_frozen_goes_on() {
    let place = Workplace::with_blocks(&Blocks { steps: 100, devices: 1, ..Blocks::default() });
    place.edit("threads = 1\n", "threads = 1\nworkers = 1\nspare = 0\n");
    write_pictures(&place.images(), 1_000);
    let mut run = place.start(&[]);
    assert!(run.until("the run is under way", || place.n_results() >= 100));
    let workers = run.workers();
    assert_eq!(workers.len(), 1);
    assert!(strike(run.pid(), workers[0], Fault::Freeze));
    run.wait().must_exit(0);
    place.holds_exactly(1_000);
    assert_eq!(place.restarts(), 1);
    place.nothing_is_left();
}
