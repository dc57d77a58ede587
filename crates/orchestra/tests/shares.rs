//! Two pipelines on one device, at priority 3 to 1: while both have work, the one does three items for each of the other. Workers sleep over each
//! batch, so that what else the machine does takes from both alike.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::sync::Arc;

use common::{ONE_PIXEL_PER_BLOCK, ROW, Workplace, until};
use orchestra::StartOptions;
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::images::{Kind, write_pictures};
use orchestra_testkit::models;

/// Of each pipeline, so that the one with less has work all the time.
const ITEMS: u64 = 1_200;
/// Items of the first between which both are at work: workers have started, and no pipeline has ended.
const FROM: u64 = ITEMS / 4;
const TO: u64 = ITEMS * 9 / 10;

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_at_priority_three_to_one_do_three_items_to_one_while_both_have_work() {
    let mut place = Workplace::new();
    write_pictures(&place.path("images"), ITEMS, Kind::Png).unwrap();
    let model = models::blocks(&place.models(), ROW).unwrap();
    for (name, priority) in [("first", 30), ("second", 10)] {
        place
            .source(name, "images")
            .image(&format!("pixels-{name}"), name, ONE_PIXEL_PER_BLOCK)
            .add(&format!("[models.{name}]\npath = {model:?}\npriority = {priority}"))
            .infer(&format!("read-{name}"), &format!("pixels-{name}"), name, 1)
            .sink(&format!("of-{name}"), &format!("read-{name}"), "");
    }
    place.devices(1);
    let launcher = Arc::new(place.faulty_workers(&[(FAULT, "slow:20")]));
    let run = place.start_with(StartOptions { launcher: Some(launcher), ..place.options() }).await;
    let done = |name: &str| {
        let text = fs::read(place.out().join(format!("of-{name}.jsonl"))).unwrap_or_default();
        text.iter().filter(|byte| **byte == b'\n').count() as u64
    };
    // Both are counted at one moment, whenever that is.
    let mut counts: Vec<[u64; 2]> = Vec::new();
    until("the first is nearly done", || {
        let both = [done("first"), done("second")];
        if both[0] >= FROM {
            counts.push(both);
        }
        both[0] >= TO
    })
    .await;
    let outcome = run.wait().await;
    Workplace::must_end_with(&outcome, 0);
    assert_eq!(outcome.report.items.done, 2 * ITEMS);
    let (begin, end) = (counts.first().unwrap(), counts.last().unwrap());
    let [first, second] = [0, 1].map(|of| (end[of] - begin[of]) as f64);
    let share = first / second;
    println!("{first} items to {second}: {share:.2} to 1");
    assert!(end[0] < ITEMS, "the first has ended: {end:?}");
    assert!(first >= ITEMS as f64 / 2.0, "too little was seen: {begin:?} to {end:?}");
    assert!((2.7..=3.3).contains(&share), "{first} items to {second}: {share:.2} to 1");
}
