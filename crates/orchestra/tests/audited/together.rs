//! Batches that go to a worker together, with real worker processes: whatever dies in the midst of them, every item is done once, and what
//! is counted is what models run.

use crate::common::{Workplace, all_copied, audited, copying, hurried, impatient, restarts};
use orchestra::RunOutcome;
use orchestra_testkit::faulty::{FAULT, FAULT_LOG, FAULT_ONCE, FAULT_PACE};

const ITEMS: u64 = 600;
const BATCH: usize = 4;
const TOGETHER: usize = 8;

/// One worker that copies, and says that this takes no time: so batches go together as soon as one was done.
fn workplace() -> Workplace {
    let mut place = copying(ITEMS, BATCH, 1, "workers = 1");
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
        let workers = place.faulty_workers(&[(FAULT, "slow:50"), (FAULT_LOG, log.to_str().unwrap())]);
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

/// The run of the first worker that is struck. By then what goes together has grown to all that there is room for.
const NTH: usize = 10;

/// A run whose first worker has this fault in its [`NTH`] frame, which is seen to hold several batches: so did the one before it.
async fn struck(fault: &str) -> RunOutcome {
    let mut place = workplace();
    let (once, log) = (place.path("once"), place.path("log"));
    let workers = place.faulty_workers(&[
        (FAULT, fault),
        (FAULT_ONCE, once.to_str().unwrap()),
        (FAULT_LOG, log.to_str().unwrap()),
        // So slow that the loaders are always ahead of it.
        (FAULT_PACE, "50"),
    ]);
    let options = impatient(&mut place, fault, workers);
    let outcome = place.run_with(options).await;
    assert_eq!(outcome.exit_code, 0, "`{fault}`: {:?}", outcome.problems);
    all_copied(&place, ITEMS, fault);
    let frames = frames(&place);
    assert!(frames[NTH - 2] > BATCH, "`{fault}`: {frames:?}");
    outcome
}

#[test]
fn a_worker_that_dies_at_any_point_costs_no_item_whatever_went_together() {
    audited(async {
        for how in ["kill", "abort"] {
            for point in ["unread", "run", "outputs", "half-answer", "answered"] {
                let fault = format!("{how}-at-{point}:{NTH}");
                assert_eq!(restarts(&struck(&fault).await), 1, "`{fault}`");
            }
        }
    });
}

#[test]
fn faults_set_apart_what_went_together_and_fail_no_item() {
    audited(async {
        for fault in ["fail-on-batch", "device-error-on-batch"] {
            let outcome = struck(&format!("{fault}:{NTH}")).await;
            assert_eq!(restarts(&outcome), u64::from(fault.starts_with("device")), "`{fault}`");
            let parts = outcome.report.batches_by_reason["split"];
            assert!(parts > 2, "`{fault}`: {parts} are no more than the halves of a batch");
        }
    });
}
