//! Pixels that travel as bytes and are normalised in the model's graph: the same answers as when the loaders do it. The sums themselves
//! are tested in the worker's crate.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::Workplace;
use orchestra_testkit::records::{Records, items};

const IMAGES: u64 = 400;
/// Scores of both ways may differ by so much.
const CLOSE: f64 = 1e-5;

/// The example with the image stage's `normalize`.
fn records(normalize: &str) -> Records {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/workflow.toml");
    let place = Workplace::new();
    let (set, out) = (format!("stages.pixels.normalize={normalize}"), place.out());
    let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap(), "--set", &set];
    place.start_command(&arguments).wait().must_exit(0);
    let records = place.must_hold(&items("scans", 0..IMAGES), &BTreeSet::new());
    place.nothing_is_left();
    records
}

#[test]
fn answers_do_not_depend_on_who_normalises() {
    let (host, device) = (records("host"), records("device"));
    assert_eq!(host.done.len() as u64, IMAGES);
    for (key, files) in &host.done {
        let of = |records: &Records| records.done[key]["results.jsonl"]["result"].as_array().unwrap().clone();
        assert_eq!(files.len(), 1);
        for (by_host, by_device) in of(&host).iter().zip(&of(&device)) {
            let score = |answer: &serde_json::Value| answer["score"].as_f64().unwrap();
            assert_eq!(by_host["label"], by_device["label"], "{key:?}");
            assert!((score(by_host) - score(by_device)).abs() <= CLOSE, "{key:?}: {by_host} {by_device}");
        }
    }
}
