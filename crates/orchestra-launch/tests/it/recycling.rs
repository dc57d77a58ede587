//! `recycle`: a healthy worker is replaced for its memory only where that has grown. How workers are replaced, `fault_tests/recycling.rs` shows.

use crate::common::{Workplace, all_are_read};
use orchestra_testkit::models;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_memory_has_not_grown_is_kept() {
    let model = ("slow", "workers = 2\nrecycle = { growth = \"16GiB\" }");
    let place = Workplace::reading(300, model, 1, |folder| models::slow_blocks(folder, [1, 32, 32], 60));
    let outcome = Workplace::ended_with(place.run(), 0).await;
    all_are_read(&place, 300);
    assert_eq!(outcome.report.devices[0].starts, 2);
}
