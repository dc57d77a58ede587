//! Workers that hang, lie or never start: a run ends in bounded time, its account is exact, and what is open can be resumed. Deaths at each point of the
//! protocol are in `fault_tests/deaths.rs` of the runtime, kills of real processes in `tests/kills.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Workplace, all_copied, copying, hurried, impatient, restarts};
use orchestra_testkit::faulty::{FAULT, FAULT_ONCE};
use orchestra_testkit::records::items;

/// On one device with so many workers, and none that stands by: the tests count who died.
fn workplace(items: u64, workers: usize) -> Workplace {
    copying(items, 4, 1, &format!("workers = {workers}"))
}

/// A run in whose first process something goes wrong. Every item is done; gives how many workers were replaced.
async fn restarts_of(workers: usize, fault: &str) -> u64 {
    const N: u64 = 60;
    let mut place = workplace(N, workers);
    let once = place.path("once");
    let workers = place.faulty_workers(&[(FAULT, fault), (FAULT_ONCE, once.to_str().unwrap())]);
    let options = impatient(&mut place, fault, workers);
    let outcome = place.run_with(options).await;
    assert_eq!(outcome.exit_code, 0, "`{fault}`: {:?}", outcome.problems);
    all_copied(&place, N, fault);
    assert!(once.exists(), "`{fault}`: no worker misbehaved");
    restarts(&outcome)
}

/// What else a worker may do wrong, `fault_tests` of the runtime play in memory.
#[tokio::test(flavor = "multi_thread")]
async fn one_worker_that_hangs_or_says_nothing_or_rubbish_costs_no_item() {
    for fault in ["hang-on-batch:2", "garbage", "never-hello"] {
        restarts_of(2, fault).await;
    }
    assert_eq!(restarts_of(2, "stubborn").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_never_serve_end_the_run_with_69_and_no_item_is_blamed() {
    for (fault, says) in [
        ("never-hello", "did not say hello in time; its last words: not saying hello, as asked"),
        ("abort-at-load", "killed by SIGABRT"),
        ("load-failed", "the test worker was asked not to load"),
        ("garbage", "sent something unreadable"),
    ] {
        let mut place = workplace(24, 2);
        let workers = place.faulty_workers(&[(FAULT, fault)]);
        let mut options = impatient(&mut place, fault, workers);
        // None of them says anything in time: no honest one can be given up.
        if fault == "never-hello" {
            options.timeouts.handshake = Duration::from_secs(1);
        }
        let outcome = place.run_with(options).await;
        assert_eq!(outcome.exit_code, 69, "`{fault}`: {:?}", outcome.problems);
        assert_eq!(outcome.report.items.read, 0, "`{fault}`");
        let said = outcome.problems.join("\n");
        assert!(said.contains(says) && said.contains("`read`"), "`{fault}`: {said}");
        Workplace::must_end_with(&place.run().await, 0);
        all_copied(&place, 24, fault);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_no_worker_ends_the_run_with_its_last_words() {
    for (script, says) in [
        (
            "echo libfoo.so: cannot open shared object file >&2; exit 3",
            "libfoo.so: cannot open shared object file",
        ),
        ("exit 0", "exited with code 0"),
        ("head -c 100000 /dev/zero >&3; exec sleep 600", "the worker "),
        ("echo this is no frame at all, however long it is >&3; exec sleep 600", "sent something unreadable"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
    ] {
        let place = workplace(12, 2);
        let mut launcher = place.workers_of_ours();
        launcher.program = "/bin/sh".into();
        launcher.args = vec!["-c".into(), script.into()];
        // Not every script says something.
        let mut options = hurried(launcher);
        options.timeouts.handshake = Duration::from_secs(3);
        let outcome = place.run_with(options).await;
        assert_eq!(outcome.exit_code, 69, "`{script}`: {:?}", outcome.problems);
        let said = outcome.problems.join("\n");
        assert!(said.contains(says), "`{script}`: {said}");
        assert_eq!(outcome.report.items.read, 0, "`{script}`");
        Workplace::must_end_with(&place.run().await, 0);
        let records = place.records(&["all.jsonl"]);
        records.must_be(1, &items("scans", 0..12), &BTreeSet::new()).unwrap();
    }
}
