//! Of two devices one is broken, or breaks: it does not attract the work of the healthy one, costs no item, and is given up; without any
//! device left the run ends resumable. Says nothing about where a healthy run places its work.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use crate::common::{Workplace, all_copied, audited, copies, copying, impatient};
use orchestra::{DeviceKind, Launched, Launcher, ProcessLauncher, RunOutcome, WorkerMemory};
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::records::items;

const ITEMS: u64 = 200;

/// Deaths and refusals without a batch done after which a device is given up, with some room: see `RestartPolicy`.
const MOST_STARTS: u64 = 12;

/// Two devices with one worker each, and none that stands by.
fn workplace() -> Workplace {
    copying(ITEMS, 4, 2, "workers = 1")
}

/// The first two workers have faults of their own; all that come later are replacements, and have the third. Since replacements are only
/// started where a worker was lost, one of two devices is healthy if the first fault is none and the worker with it never dies.
struct InTurn {
    first: Mutex<Vec<ProcessLauncher>>,
    later: ProcessLauncher,
}

impl InTurn {
    fn new(place: &Workplace, first: [&str; 2], later: &str) -> Self {
        let launcher = |fault: &str| place.faulty_workers(&[(FAULT, fault)]);
        Self { first: Mutex::new(first.iter().rev().map(|f| launcher(f)).collect()), later: launcher(later) }
    }
}

impl Launcher for InTurn {
    fn launch(
        &self,
        device: &DeviceKind,
        env: &[(&str, &str)],
        memory: WorkerMemory<'_>,
    ) -> io::Result<Launched> {
        let mine = self.first.lock().unwrap().pop();
        mine.as_ref().unwrap_or(&self.later).launch(device, env, memory)
    }
}

/// A run with these workers, from start to end.
async fn run(first: [&str; 2], later: &str) -> (Workplace, RunOutcome) {
    let mut place = workplace();
    let workers = InTurn::new(&place, first, later);
    let options = impatient(&mut place, &first.concat(), workers);
    let outcome = place.run_with(options).await;
    (place, outcome)
}

/// Runs up to the first in which the device with the fault was seen to break: the healthy one may have done all the work before the other
/// one had begun. Each of them does every item, and the broken device no more batches than `most`.
async fn complete_runs_until(
    met: impl Fn(&RunOutcome) -> bool,
    first: [&str; 2],
    later: &str,
    most: u64,
) -> Vec<RunOutcome> {
    let mut outcomes = Vec::new();
    for _ in 0..20 {
        let (place, outcome) = run(first, later).await;
        assert_eq!(outcome.exit_code, 0, "{first:?}: {:?}", outcome.problems);
        all_copied(&place, ITEMS, &first.concat());
        let (batches, starts) = worse(&outcome);
        assert!(batches <= most && starts <= MOST_STARTS, "{first:?}: {:?}", outcome.report.devices);
        outcomes.push(outcome);
        if outcomes.last().is_some_and(&met) {
            return outcomes;
        }
    }
    panic!("in none of 20 runs with {first:?} the device broke before the other one had done everything");
}

/// Batches that were run again.
fn retried(outcome: &RunOutcome) -> u64 {
    outcome.report.batches_by_reason["retry"] + outcome.report.batches_by_reason["split"]
}

/// Batches done, and workers started, on the device that did less.
fn worse(outcome: &RunOutcome) -> (u64, u64) {
    let device = outcome.report.devices.iter().min_by_key(|d| d.batches).unwrap();
    (device.batches, device.starts)
}

#[test]
fn a_device_that_fails_every_batch_at_once_is_given_up_and_the_other_does_all_the_work() {
    audited(async {
        for fault in ["device-error-on-batch:1", "abort-on-batch:1", "exit0-on-batch:1", "half-frame"] {
            let was_replaced = |outcome: &RunOutcome| worse(outcome).1 >= 2;
            for outcome in complete_runs_until(was_replaced, ["slow:20", fault], fault, 0).await {
                // Each of its workers holds three batches at most, which may come back in halves: that is all it can attract.
                let (retries, starts) = (retried(&outcome), worse(&outcome).1);
                assert!(retries <= 2 * 3 * starts, "`{fault}`: {:?}", outcome.report.batches_by_reason);
            }
        }
    });
}

#[test]
fn a_device_that_refuses_everything_fails_no_item_while_the_other_works() {
    audited(async {
        for healthy in ["none", "slow:20"] {
            let refused = |outcome: &RunOutcome| retried(outcome) > 0;
            complete_runs_until(refused, [healthy, "fail-always"], "fail-always", 0).await;
        }
    });
}

#[test]
fn a_device_that_is_lost_for_good_in_the_middle_leaves_its_work_to_the_other() {
    audited(async {
        for (fault, later) in [
            ("abort-on-batch:5", "load-failed"),
            ("kill-at-run:5", "load-failed"),
            ("device-error-on-batch:5", "die-on-load"),
            ("hang-on-batch:5", "load-failed"),
        ] {
            let was_lost = |outcome: &RunOutcome| worse(outcome).0 == 4;
            let outcomes = complete_runs_until(was_lost, ["slow:20", fault], later, 4).await;
            let last = outcomes.last().unwrap();
            assert!(worse(last).1 >= 2, "`{fault}`: {:?}", last.report.devices);
        }
    });
}

#[test]
fn a_run_that_loses_all_its_devices_ends_with_69_and_their_last_words_and_the_next_one_completes_it() {
    audited(async {
        for (first, later) in [
            (["abort-on-batch:3", "abort-on-batch:7"], "load-failed"),
            (["kill-at-outputs:3", "hang-on-batch:5"], "load-failed"),
            (["device-error-on-batch:3", "exit0-on-batch:7"], "die-on-load"),
        ] {
            let (place, outcome) = run(first, later).await;
            assert_eq!(outcome.exit_code, 69, "{first:?}: {:?}", outcome.problems);
            let said = outcome.problems.join("\n");
            let last_words =
                if later == "load-failed" { "the test worker was asked not to load" } else { "SIGABRT" };
            assert!(said.contains("no device is left for stage `read`"), "{said}");
            assert!(said.contains(last_words), "{said}");
            assert_eq!(outcome.report.items.failed, 0, "{first:?}");
            let done = copies(&place).done.len() as u64;
            assert!(done > 0 && done < ITEMS, "{first:?}: {done}");
            assert_eq!(outcome.report.items.done, done);
            let second = place.run().await;
            Workplace::must_end_with(&second, 0);
            assert_eq!(second.report.items.resumed, done);
            copies(&place).must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
        }
    });
}
