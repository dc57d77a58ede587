//! Batches that go to a worker together, with real worker processes: whatever dies in the midst of them, every item is done once, and what
//! is counted is what models run.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::{Workplace, all_copied, audited, copying, hurried, one_replaced, restarts};
use orchestra_testkit::faulty::{FAULT, FAULT_LOG, FAULT_ONCE};

const ITEMS: u64 = 600;
const BATCH: usize = 4;
const TOGETHER: usize = 8;

/// One worker that copies, and says that this takes no time: so batches go together as soon as one was done.
fn workplace() -> Workplace {
    let mut place = copying(ITEMS, BATCH, 1, "workers = 1\nspare = 0");
    place.set("together = 1", &format!("together = {TOGETHER}"));
    place
}

/// Rows of the frames that the worker was sent.
fn frames(place: &Workplace) -> Vec<usize> {
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    log.lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect()
}

#[test]
fn batches_go_together_and_the_report_counts_what_the_model_runs() {
    audited(async {
        let place = workplace();
        let log = place.path("log");
        // So slow that the loaders are always ahead of it.
        let workers = place.faulty_workers(&[(FAULT, "slow:20"), (FAULT_LOG, log.to_str().unwrap())]);
        let outcome = place.run_with(hurried(workers)).await;
        Workplace::must_end_with(&outcome, 0);
        all_copied(&place, ITEMS, "slow");
        let frames = frames(&place);
        assert!(frames.iter().any(|rows| *rows > BATCH), "{frames:?}");
        assert!(frames.iter().all(|rows| *rows <= BATCH * TOGETHER), "{frames:?}");
        let batches: u64 = frames.iter().map(|rows| rows.div_ceil(BATCH) as u64).sum();
        let full: u64 = frames.iter().map(|rows| (rows / BATCH) as u64).sum();
        let (device, by_reason) = (&outcome.report.devices[0], &outcome.report.batches_by_reason);
        assert_eq!((device.batches, by_reason.values().sum::<u64>()), (batches, batches), "{frames:?}");
        assert_eq!(by_reason["full"], full, "{frames:?}");
        assert!((device.mean_batch * batches as f64 - ITEMS as f64).abs() < 1e-6, "{device:?}");
    });
}

#[test]
fn a_worker_that_dies_at_any_point_costs_no_item_whatever_went_together() {
    audited(async {
        for how in ["kill", "abort"] {
            for point in ["unread:3", "run:3", "outputs:3", "half-answer:3", "answered:3"] {
                one_replaced(&mut workplace(), ITEMS, &format!("{how}-at-{point}")).await;
            }
        }
    });
}

#[test]
fn faults_set_apart_what_went_together_and_fail_nobody() {
    audited(async {
        for fault in ["oom-above:2", "fail-on-batch:4", "device-error-on-batch:4"] {
            let place = workplace();
            let once = place.path("once");
            let workers = place.faulty_workers(&[(FAULT, fault), (FAULT_ONCE, once.to_str().unwrap())]);
            let outcome = place.run_with(hurried(workers)).await;
            assert_eq!(outcome.exit_code, 0, "`{fault}`: {:?}", outcome.problems);
            all_copied(&place, ITEMS, fault);
            assert_eq!(restarts(&outcome), u64::from(fault.starts_with("device")), "`{fault}`");
            assert!(outcome.report.batches_by_reason["split"] > 0, "`{fault}`");
        }
    });
}
