//! The run itself is killed (SIGKILL) ten times and started again each time: the items in the results are exactly the items of the
//! source, and no worker outlives its parent.

use std::fs;

use crate::common::Workplace;
use orchestra_testkit::striker::{Fault, strike};
use rustix::process::Signal;

const ITEMS: u64 = 6_000;

/// Results after which each start is killed. Where the number is no larger than the one before, that start is killed as soon as it
/// has a worker: while it loads, or while it takes up where the last one stopped.
const KILLED_AT: [usize; 10] = [0, 1, 200, 200, 400, 600, 600, 700, 900, 1_000];

#[test]
fn ten_kills_of_the_parent_lose_nothing_and_double_nothing() {
    let place = Workplace::with_gate(ITEMS);
    for (i, n) in KILLED_AT.into_iter().enumerate() {
        place.close_gate_after(n);
        let mut run = place.start(&[]);
        let pid = run.pid();
        let reached = run.until("the moment of the kill", || {
            place.n_results() >= n && !orchestra_testkit::striker::workers_of(pid).is_empty()
        });
        assert!(reached, "start {i} ended before it had {n} results:\n{}", run.said());
        run.signal(Signal::KILL);
        let ended = run.wait();
        assert_eq!(ended.status.code(), None, "start {i} was not killed:\n{}", ended.stderr);
        place.no_process_is_left();
    }
    place.open_gate();
    let ended = place.run(&[]);
    ended.must_exit(0).must_say(&["going on: "]);
    place.holds_exactly(ITEMS);
    let items = &place.report()["items"];
    assert_eq!(
        (&items["done"], &items["failed"], &items["total"]),
        (&ITEMS.into(), &0.into(), &ITEMS.into())
    );
    println!("finished by starts that were killed: {} of {ITEMS}", items["resumed"]);
    assert!(items["resumed"].as_u64().unwrap() > 0, "every start began anew: {items}");
    place.nothing_is_left();
}

#[test]
fn a_worker_that_is_stopped_ends_with_its_run_and_leaves_no_core_file() {
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
