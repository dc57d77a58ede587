//! `recycle`: healthy workers are replaced in the middle of a run, and no result shows it.

use std::collections::BTreeSet;

use crate::common::{
    AS_IT_IS, Workplace, all_copied, copying, each_shows_its_own_picture, hurried, restarts,
};
use orchestra_testkit::faulty::{FAULT, FAULT_ONCE, file_of};
use orchestra_testkit::models;
use orchestra_testkit::records::items;

const ITEMS: u64 = 300;
const WORKERS: u64 = 2;

fn workplace(recycle: &str) -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    let slow = models::slow_blocks(&place.models(), [1, 32, 32], 60).unwrap();
    place
        .model("slow", slow, &format!("workers = {WORKERS}\n{recycle}"))
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "slow", 1)
        .sink("all", "read", "")
        .devices(1);
    place
}

fn check(place: &Workplace) {
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_replaced_every_few_batches_and_nothing_is_lost_doubled_or_called_a_restart() {
    let place = workplace("recycle = { batches = 3 }");
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 0);
    check(&place);
    let device = &outcome.report.devices[0];
    assert_eq!(device.restarts, 0, "{device:?}");
    assert!(device.starts >= 2 * WORKERS, "{device:?}");
    assert_eq!(device.batches, ITEMS, "no batch ran twice: {device:?}");
    assert_eq!(outcome.report.batches_by_reason["retry"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_memory_has_not_grown_is_kept() {
    let place = workplace("recycle = { growth = \"16GiB\" }");
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 0);
    check(&place);
    assert_eq!(outcome.report.devices[0].starts, WORKERS);
}

/// One worker and its successors, each with a fault of its own; the first one is worn after three batches of one item. Gives the number
/// of dead workers that were replaced.
async fn replaced_in(faults: &str) -> u64 {
    const ITEMS: u64 = 40;
    let place = copying(ITEMS, 1, 1, "workers = 1\nrecycle = { batches = 3 }");
    let once = place.path("once");
    let workers = place.faulty_workers(&[(FAULT, faults), (FAULT_ONCE, once.to_str().unwrap())]);
    let outcome = place.run_with(hurried(workers)).await;
    assert_eq!(outcome.exit_code, 0, "`{faults}`: {:?}", outcome.problems);
    all_copied(&place, ITEMS, faults);
    let last = faults.split(',').count() - 1;
    assert!(file_of(&once, last).exists(), "`{faults}`: not all of them were started");
    restarts(&outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worn_worker_or_its_successor_that_dies_is_no_loss() {
    // How they die stands for `HOW`.
    for (when, faults, points, replaced) in [
        // In the batch after, when its successor loads; when it is asked to end, because its successor is there.
        ("it is worn", "HOW-at-POINT", &["run:4", "unread:3", "answered:4", "hang-up"][..], 0..=0),
        // The old one stays at work.
        (
            "its successor does not serve yet",
            "until-next-starts:5,HOW-at-POINT",
            &["start", "hello", "load"],
            0..=0,
        ),
        (
            "its successor has its first batch",
            "until-next-serves:5,HOW-at-POINT",
            &["loaded", "run:1", "outputs:1", "half-answer:1"],
            1..=1,
        ),
        ("both die", "HOW-at-run:4,HOW-at-POINT", &["start", "load"], 1..=u64::MAX),
    ] {
        for how in ["kill", "abort"] {
            for point in points {
                let faults = faults.replace("HOW", how).replace("POINT", point);
                assert!(replaced.contains(&replaced_in(&faults).await), "{when}: `{faults}`");
            }
        }
    }
}
