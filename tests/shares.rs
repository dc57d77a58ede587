//! Two pipelines with models of one size on one device, at priority 3 to 1: while both have work, the one does three items for each of the other.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fs;

use common::{Workplace, write_pictures};
use orchestra_testkit::models;

/// Of the pipeline with the higher priority; the other has as many, so that it has work all the time.
const ITEMS: u64 = 1_500;
/// Between these, both are at work: workers have started, and none has ended.
const FROM: u64 = ITEMS / 4;
const TO: u64 = ITEMS * 9 / 10;

fn workflow(place: &Workplace) -> String {
    let model = models::slow_blocks(&place.path("models"), [1, 32, 32], 300).unwrap();
    let pipeline = |name: &str, priority: u32| {
        format!(
            r#"
[sources.{name}]
kind = "images"
paths = ["images/*.png"]
[models.{name}]
path = {model:?}
priority = {priority}
[stages.small-{name}]
kind = "image"
from = "{name}"
size = [32, 32]
color = "gray"
[stages.read-{name}]
kind = "infer"
from = "small-{name}"
model = "{name}"
batch = {{ max = 4 }}
[sinks.of-{name}]
kind = "jsonl"
from = "read-{name}"
"#
        )
    };
    format!("version = 1\n[devices]\nuse = [\"cpu\"]\n{}{}", pipeline("first", 30), pipeline("second", 10))
}

#[test]
fn pipelines_at_priority_three_to_one_do_three_items_to_one_while_both_have_work() {
    let place = Workplace::new();
    write_pictures(&place.images(), ITEMS);
    fs::write(place.workflow(), workflow(&place)).unwrap();
    let mut run = place.start(&[]);
    let done = |name: &str| {
        let text = fs::read(place.out().join(format!("of-{name}.jsonl"))).unwrap_or_default();
        text.iter().filter(|byte| **byte == b'\n').count() as u64
    };
    // Both are counted at one moment, whenever that is.
    let mut counts: Vec<[u64; 2]> = Vec::new();
    run.until("the first is nearly done", || {
        let both = [done("first"), done("second")];
        if both[0] >= FROM {
            counts.push(both);
        }
        both[0] >= TO
    });
    run.wait().must_exit(0);
    let (begin, end) = (counts.first().unwrap(), counts.last().unwrap());
    let [first, second] = [0, 1].map(|of| (end[of] - begin[of]) as f64);
    let share = first / second;
    println!("{first} items to {second}: {share:.2} to 1");
    assert!(end[0] < ITEMS && end[1] < ITEMS, "one has ended: {end:?}");
    assert!(first >= ITEMS as f64 / 2.0, "too little was seen: {begin:?} to {end:?}");
    assert!((2.7..=3.3).contains(&share), "{first} items to {second}: {share:.2} to 1");
    let report = place.report();
    assert_eq!(report["items"]["done"], 2 * ITEMS);
    place.no_process_is_left();
}
