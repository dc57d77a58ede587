//! A worker that is frozen (SIGSTOP) in the middle of a run is replaced, and what it held is done by others. Says nothing about how
//! soon that is noticed.

mod common;

use common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::chaos::{Fault, strike};

#[test]
fn a_frozen_worker_is_replaced_and_its_batches_are_done() {
    goes_on_when_one_is_frozen(&Blocks { steps: 100, ..Blocks::default() }, "");
}

#[test]
fn a_run_whose_only_worker_is_frozen_goes_on() {
    goes_on_when_one_is_frozen(&Blocks { steps: 100, devices: 1, ..Blocks::default() }, "workers = 1\n");
}

fn goes_on_when_one_is_frozen(blocks: &Blocks, keys: &str) {
    // On a machine that does not let this test run for a moment, the workers have done everything before one is struck.
    for items in [2_000, 8_000, 32_000] {
        let place = Workplace::with_blocks(blocks);
        place.edit("threads = 1\n", &format!("threads = 1\n{keys}spare = 0\n"));
        write_pictures(&place.images(), items);
        let mut run = place.start(&[]);
        assert!(run.until("the run is under way", || place.n_results() >= 100));
        let struck = run.workers().first().is_some_and(|worker| strike(run.pid(), *worker, Fault::Freeze));
        let ended = run.wait();
        ended.must_exit(0);
        place.holds_exactly(items);
        place.nothing_is_left();
        // All items have their results, so without a restart the worker had nothing left to do when it froze.
        if place.restarts() > 0 {
            ended.must_say(&["1 worker died and was replaced"]);
            return assert_eq!((place.restarts(), struck), (1, true));
        }
    }
    panic!("no worker was frozen in time");
}
