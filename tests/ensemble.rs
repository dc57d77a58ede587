//! The example in which two models read the same images: one record with both answers per image, also when workers are killed all the time
//! and the run itself is killed again and again.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Workplace;
use orchestra_testkit::records::items;
use serde_json::Value;

const IMAGES: u64 = 400;
/// How often each image is listed, so that the run lasts long enough to be struck.
const TIMES: u64 = 100;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ensemble").canonicalize().unwrap()
}

/// The best digit and the best parity of each image.
fn answers(place: &Workplace, n: u64) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let records = place.must_hold(&items("images", 0..n), &BTreeSet::new());
    let best = |result: &Value, of: &str| result[of][0]["label"].as_str().unwrap().to_owned();
    let mut answers: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for of_item in records.done.values() {
        let record = &of_item["results.jsonl"];
        let both = (best(&record["result"], "digit"), best(&record["result"], "parity"));
        answers.entry(record["item"].as_str().unwrap().to_owned()).or_default().insert(both);
    }
    answers
}

#[test]
fn both_models_say_the_same_of_each_image_however_often_workers_and_run_are_killed() {
    let calm = Workplace::new();
    let (file, out) = (example().join("workflow.toml"), calm.out());
    calm.start_command(&["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()])
        .wait()
        .must_exit(0);
    let expected = answers(&calm, IMAGES);
    let labels = fs::read_to_string(example().join("../digits/labels.csv")).unwrap();
    let is_right = |row: &&str| {
        let (image, digit) = row.split_once(',').unwrap();
        let parity = if digit.parse::<u64>().unwrap().is_multiple_of(2) { "even" } else { "odd" };
        expected[image] == [(digit.to_owned(), parity.to_owned())].into()
    };
    let right = labels.lines().skip(1).filter(is_right).count() as u64;
    assert!(right * 1000 >= IMAGES * 975, "both are right about {right} of {IMAGES} images");
    // The table has a line for each image that both are sure about.
    let table = fs::read_to_string(calm.out().join("sure.csv")).unwrap();
    assert!((350..=401).contains(&table.lines().count()));

    let place = Workplace::new();
    let mut manifest = String::new();
    for _ in 0..TIMES {
        expected.keys().for_each(|image| writeln!(manifest, "{image}").unwrap());
    }
    let list = place.path("images.txt");
    fs::write(&list, manifest).unwrap();
    let above = example().join("../..").canonicalize().unwrap();
    let source = format!("manifest = {list:?}\nroot = {:?}", above.join("examples/digits/images"));
    let text = fs::read_to_string(example().join("workflow.toml")).unwrap();
    let text = text
        .replace("paths = [\"../digits/images\"]", &source)
        .replace("../../models", above.join("models").to_str().unwrap());
    let file = place.path("ensemble.toml");
    fs::write(&file, text).unwrap();
    crate::struck::run_until_done(&place, &file, IMAGES * TIMES);
    assert_eq!(answers(&place, IMAGES * TIMES), expected);
}
