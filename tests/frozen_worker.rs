//! A worker that is frozen (SIGSTOP) in the middle of a run is replaced, and what it held is done by others; frozen or not, it ends with its run.
//! Says nothing about how soon that is noticed.

use std::fs;

use crate::common::{Workplace, until};
use orchestra_testkit::striker::{Fault, strike};
use rustix::process::Signal;

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

#[test]
fn a_frozen_worker_ends_with_its_run_and_leaves_no_core_file() {
    let place = Workplace::with_gate(ITEMS);
    let mut run = place.start_until(1);
    let workers = run.workers();
    assert!(!workers.is_empty(), "a run under way has workers");
    for worker in workers {
        // A worker sets this limit itself, one of its first steps.
        let leaves_none = || {
            let limits = fs::read_to_string(format!("/proc/{worker}/limits")).expect("it lives");
            let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
            core.expect("the kernel names this limit").split_whitespace().take(2).eq(["0", "0"])
        };
        assert!(run.until("the worker leaves no core file", leaves_none), "{}", run.said());
        // It reads no end of file as long as it is stopped.
        assert!(strike(run.pid(), worker, Fault::Stop));
    }
    run.signal(Signal::KILL);
    let ended = run.wait();
    assert_eq!(ended.status.code(), None, "it was not killed:\n{}", ended.stderr);
    place.no_process_is_left();
}
