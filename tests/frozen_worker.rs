//! A worker that is frozen (SIGSTOP) ends with its run. That its work is done by others meanwhile, `chaos.rs` and the library's tests of faults show.

use std::fs;

use crate::common::Workplace;
use orchestra_testkit::striker::{Fault, strike};

const ITEMS: u64 = 1_000;

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
        run.must_reach("the worker leaves no core file", leaves_none);
        // It reads no end of file as long as it is stopped.
        assert!(strike(run.pid(), worker, Fault::Stop));
    }
    run.kill_in(&place);
}
