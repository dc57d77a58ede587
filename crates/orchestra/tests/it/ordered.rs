//! `ordered = true`: records stand in the order of the source, whatever happens to workers and items on the way.

use crate::common::{AS_IT_IS, Workplace, bounded, each_shows_its_own_picture, until};
use orchestra_testkit::images::{self, Kind};
use orchestra_testkit::records::items;
use orchestra_testkit::{Trap, models, trap_library};
use serde_json::Value;

/// More than a run that is interrupted finishes, four times: some 200 are in flight.
const ITEMS: u64 = 1_000;
/// Every 50th picture springs a trap and every 60th is broken.
fn is_bad(index: u64) -> bool {
    index % 50 == 7 || index % 60 == 11
}

fn write_pictures(place: &Workplace) {
    let folder = place.path("images");
    for index in 0..ITEMS {
        if index % 60 == 11 {
            std::fs::write(folder.join(format!("{index:08}.png")), b"no picture").unwrap();
        } else if index % 50 == 7 {
            images::write_trap_picture(&folder, index, Trap::Fail).unwrap();
        } else {
            images::write_picture(&folder, index, 32, 32, Kind::Png).unwrap();
        }
    }
}

/// The slow model computes for so many steps that the run goes on for a while after a test has seen that it is time for something.
fn workplace() -> Workplace {
    let mut place = Workplace::new();
    write_pictures(&place);
    let trap = models::trap(&place.models(), &[1, 32, 32]).unwrap();
    let slow = models::slow_blocks(&place.models(), [1, 32, 32], 150).unwrap();
    let plain = models::blocks(&place.models(), [1, 32, 32]).unwrap();
    place
        .source("scans", "images")
        .model(
            "trap",
            trap,
            &format!("workers = 2\ncustom_ops = [{:?}]\nsandbox_write = \"gate\"", trap_library().unwrap()),
        )
        .model("slow", slow, "workers = 2")
        .model("plain", plain, "")
        .image("pixels", "scans", AS_IT_IS)
        .infer("pass", "pixels", "trap", 4)
        .infer("read", "pass", "slow", 2)
        .infer("quick", "pixels", "plain", 8)
        .sink("slow", "read", "ordered = true")
        // Of the same source, and so ordered with it.
        .sink("quick", "quick", "")
        .devices(2);
    place
}

fn indices(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|l| l["index"].as_u64().unwrap()).collect()
}

fn check(place: &Workplace) {
    let done: Vec<u64> = (0..ITEMS).filter(|i| !is_bad(*i)).collect();
    let failed: Vec<u64> = (0..ITEMS).filter(|i| is_bad(*i)).collect();
    assert_eq!(indices(&place.lines("slow.jsonl")), done);
    assert_eq!(indices(&place.lines("quick.jsonl")), done);
    assert_eq!(indices(&place.lines("failures.jsonl")), failed);
    let records = place.records(&["slow.jsonl", "quick.jsonl"]);
    records.must_be(2, &items("scans", done), &items("scans", failed)).unwrap();
    each_shows_its_own_picture(&records, "slow.jsonl", "blocks");
    each_shows_its_own_picture(&records, "quick.jsonl", "blocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_interrupted_again_and_again_goes_on_in_order() {
    let place = workplace();
    for nth in 0..4 {
        let gate = place.gate();
        gate.close_after(40).unwrap();
        let run = place.start().await;
        until("a batch waits at the gate", || gate.n_waiting() > 0).await;
        // Both ways to stop, in turn.
        if nth % 2 == 0 {
            run.stop_handle().interrupt();
            gate.open().unwrap();
        } else {
            run.stop_handle().abort();
        }
        Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 130);
        gate.open().unwrap();
    }
    Workplace::must_end_with(&place.run().await, 65);
    check(&place);
}
