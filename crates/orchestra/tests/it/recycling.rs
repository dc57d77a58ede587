//! `recycle`: a healthy worker is replaced for its memory only where that has grown. How workers are replaced, `fault_tests/recycling.rs` shows.

use std::collections::BTreeSet;

use crate::common::{AS_IT_IS, Workplace, each_shows_its_own_picture};
use orchestra_testkit::models;
use orchestra_testkit::records::items;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_memory_has_not_grown_is_kept() {
    let mut place = Workplace::with_pictures(300);
    let slow = models::slow_blocks(&place.models(), [1, 32, 32], 60).unwrap();
    place
        .model("slow", slow, "workers = 2\nrecycle = { growth = \"16GiB\" }")
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "slow", 1)
        .sink("all", "read", "")
        .devices(1);
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 0);
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..300), &BTreeSet::new()).unwrap();
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
    assert_eq!(outcome.report.devices[0].starts, 2);
}
