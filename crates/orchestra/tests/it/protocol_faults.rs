//! Workers that crash, hang, lie or never start: a run ends in bounded time, its account is exact, and what is open can be resumed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Workplace, all_copied, copies, copying, hurried, impatient, restarts};
use orchestra::RunOutcome;
use orchestra_testkit::faulty::{FAULT, FAULT_ONCE};
use orchestra_testkit::records::items;

/// On one device with two workers, and none that stands by: the tests count who died.
fn workplace(items: u64, batch: usize) -> Workplace {
    copying(items, batch, 1, "workers = 2")
}

/// Runs with workers that all have the fault. Whatever is open after it, a run with honest workers completes.
async fn runs_with(fault: &str, n: u64, batch: usize) -> (Workplace, RunOutcome) {
    let mut place = workplace(n, batch);
    let workers = place.faulty_workers(&[(FAULT, fault)]);
    let mut options = impatient(&mut place, fault, workers);
    // Of these none does anything in time: no honest one can be given up.
    match fault {
        "never-hello" => options.timeouts.handshake = Duration::from_secs(1),
        "hang-on-batch:1" => drop(place.set("batch_timeout = \"5s\"", "batch_timeout = \"1s\"")),
        _ => {}
    }
    let outcome = place.run_with(options).await;
    let before = copies(&place);
    assert_eq!((before.done.len() + before.failed.len()) as u64, outcome.report.items.read, "`{fault}`");
    if outcome.exit_code == 69 {
        assert!(!outcome.problems.is_empty(), "`{fault}`: it says why");
        if fault == "hang-on-batch:1" {
            place.set("batch_timeout = \"1s\"", "batch_timeout = \"1h\"");
        }
        let resumed = place.run().await;
        assert_eq!(resumed.report.items.read, n, "`{fault}`");
        let after = copies(&place);
        let failed: BTreeSet<_> = before.failed.keys().cloned().collect();
        let done = items("scans", 0..n).difference(&failed).cloned().collect();
        after.must_be(1, &done, &failed).unwrap();
    }
    (place, outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_that_misbehaves_once_costs_no_item() {
    const N: u64 = 60;
    let deadly = [
        "segfault-on-batch:1",
        "segfault-on-batch:3",
        "abort-on-batch:2",
        "exit0-on-batch:2",
        "hang-on-batch:2",
        "device-error-on-batch:2",
        "wrong-batch",
        "old-batch",
        "half-frame",
        "garbage",
        "die-on-load",
        "never-hello",
    ];
    let harmless =
        ["fail-on-batch:2", "oom-above:1", "slow-start:300", "slow:20", "flood-stderr", "stubborn"];
    for fault in deadly.into_iter().chain(harmless) {
        let mut place = workplace(N, 4);
        let once = place.path("once");
        let workers = place.faulty_workers(&[(FAULT, fault), (FAULT_ONCE, once.to_str().unwrap())]);
        let options = impatient(&mut place, fault, workers);
        let outcome = place.run_with(options).await;
        assert_eq!(outcome.exit_code, 0, "`{fault}`: {:?}", outcome.problems);
        all_copied(&place, N, fault);
        assert!(once.exists(), "`{fault}`: no worker misbehaved");
        if harmless.contains(&fault) {
            assert_eq!(restarts(&outcome), 0, "`{fault}`");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_all_die_after_a_batch_or_more_still_do_all_the_work() {
    let faults = ["segfault-on-batch:2", "segfault-on-batch:3", "abort-on-batch:6", "exit0-on-batch:6"];
    for fault in faults.into_iter().chain(["device-error-on-batch:2", "device-error-on-batch:6"]) {
        let (place, outcome) = runs_with(fault, 160, 4).await;
        assert_eq!(outcome.exit_code, 0, "`{fault}`: {:?}", outcome.problems);
        all_copied(&place, 160, fault);
        assert!(restarts(&outcome) >= 4, "`{fault}`: {:?}", outcome.report.devices);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_never_serve_end_the_run_with_69_and_no_item_is_blamed() {
    for (fault, says) in [
        ("never-hello", "did not say hello in time; its last words: not saying hello, as asked"),
        ("die-on-load", "killed by SIGABRT"),
        ("load-failed", "the test worker was asked not to load"),
        ("garbage", "sent something unreadable"),
    ] {
        let (_, outcome) = runs_with(fault, 24, 4).await;
        assert_eq!(outcome.exit_code, 69, "`{fault}`: {:?}", outcome.problems);
        assert_eq!(outcome.report.items.read, 0, "`{fault}`");
        let said = outcome.problems.join("\n");
        assert!(said.contains(says) && said.contains("`read`"), "`{fault}`: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_die_at_their_first_batch_end_the_run_in_bounded_time_with_an_exact_account() {
    for fault in ["segfault-on-batch:1", "abort-on-batch:1", "exit0-on-batch:1", "half-frame"] {
        let (_, outcome) = runs_with(fault, 120, 4).await;
        assert_eq!(outcome.exit_code, 69, "`{fault}`: {:?}", outcome.problems);
        // A few items may be blamed before it is clear that it is the device; never all of them.
        assert!(outcome.report.items.failed <= 24, "`{fault}`: {:?}", outcome.report.items);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_always_broken_ends_the_run_with_69() {
    let (_, outcome) = runs_with("device-error-on-batch:1", 120, 4).await;
    Workplace::must_end_with(&outcome, 69);
    assert!(outcome.report.items.failed <= 24, "{:?}", outcome.report.items);
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
        let place = workplace(12, 4);
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
