//! A worker that is frozen (SIGSTOP) in the middle of a run is replaced, and what it held is done by others. Says nothing about how
//! soon that is noticed.

use crate::common::{Workplace, until};
use orchestra_testkit::striker::{Fault, strike};

const ITEMS: u64 = 1_000;

#[test]
fn a_frozen_worker_is_replaced_and_its_batches_are_done() {
    goes_on_when_one_is_frozen("use = [\"cpu\", \"cpu\"]");
}

#[test]
fn a_run_whose_only_worker_is_frozen_goes_on() {
    goes_on_when_one_is_frozen("use = [\"cpu\"]");
}

fn goes_on_when_one_is_frozen(devices: &str) {
    let place = Workplace::with_gate(ITEMS);
    place.edit("threads = 1\n", "threads = 1\nworkers = 1\n");
    place.edit("use = [\"cpu\", \"cpu\"]", devices);
    let run = place.start_until(100);
    let workers = run.workers();
    let frozen = *workers.first().expect("a run under way has workers");
    assert!(strike(run.pid(), frozen, Fault::Stop));
    until("the frozen worker is given up", || place.workers_lost() >= 1);
    place.open_gate();
    let ended = run.wait();
    ended.must_exit(0).must_say(&["1 worker died and was replaced"]);
    place.holds_exactly(ITEMS);
    assert_eq!(place.restarts(), 1);
    place.nothing_is_left();
}
