//! `recycle`: healthy workers are replaced in the middle of a run, and no result shows it.

use std::collections::BTreeSet;

use crate::common::{AS_IT_IS, Workplace, each_shows_its_own_picture};
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
