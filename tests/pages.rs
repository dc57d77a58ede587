//! The example that finds digits on pages and reads them: the right numbers, one record per page, and the same records when workers are
//! killed all the time and the run itself is killed again and again.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Run, Workplace, is_same};
use orchestra_testkit::records::items;
use serde_json::Value;

const PAGES: u64 = 300;
/// Share of the pages that must be read without an error.
const LEAST_RIGHT: f64 = 0.95;
/// How often each page is listed where a run must last long enough to be struck.
const TIMES: u64 = 20;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pages").canonicalize().unwrap()
}

fn start(place: &Workplace, more: &[&str]) -> Run {
    let (file, out) = (example().join("workflow.toml"), place.out());
    let mut arguments = vec!["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    arguments.extend(more);
    place.start_command(&arguments)
}

/// The labels of a record, one per part.
fn number(record: &Value) -> String {
    let parts = record["result"].as_array().unwrap();
    parts.iter().map(|part| part[0]["label"].as_str().unwrap()).collect()
}

#[test]
fn the_example_reads_the_numbers_of_its_pages() {
    let place = Workplace::new();
    start(&place, &[]).wait().must_exit(0).must_say(&["pages finished: 300 items read, 300 done, 0 failed"]);
    let records = place.must_hold(&items("pages", 0..PAGES), &BTreeSet::new());
    let table = fs::read_to_string(example().join("labels.csv")).unwrap();
    let numbers: HashMap<&str, &str> =
        table.lines().skip(1).map(|row| row.split_once(',').unwrap()).collect();
    let is_right = |record: &Value| number(record) == numbers[record["item"].as_str().unwrap()];
    let right = records.done.values().filter(|of_item| is_right(&of_item["results.jsonl"])).count();
    println!("{right} of {PAGES} pages are right");
    assert!(right as f64 >= LEAST_RIGHT * PAGES as f64, "{right} of {PAGES} pages are right");
    place.nothing_is_left();
}

/// Pages by their name, and what is read on them.
fn by_page(place: &Workplace, n: u64) -> BTreeMap<String, Vec<Value>> {
    let records = place.must_hold(&items("pages", 0..n), &BTreeSet::new());
    let mut pages: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for of_item in records.done.values() {
        let record = &of_item["results.jsonl"];
        let name = record["item"].as_str().unwrap().to_owned();
        pages.entry(name).or_default().push(record["result"].clone());
    }
    pages
}

#[test]
fn the_same_is_read_while_workers_are_killed_and_the_run_itself_five_times() {
    let calm = Workplace::new();
    start(&calm, &[]).wait().must_exit(0);
    let expected = by_page(&calm, PAGES);

    let place = Workplace::new();
    let mut manifest = String::new();
    for _ in 0..TIMES {
        for page in 1..=PAGES {
            writeln!(manifest, "page-{page:04}.png").unwrap();
        }
    }
    let list = place.path("pages.txt");
    fs::write(&list, manifest).unwrap();
    // The source of the example, with a list instead of a glob.
    let text = fs::read_to_string(example().join("workflow.toml")).unwrap();
    let source = format!("manifest = {:?}\nroot = {:?}", list, example().join("pages"));
    let text = text.replace("paths = [\"pages/*.png\"]", &source);
    let text = text
        .replace("../../models", example().join("../../models").canonicalize().unwrap().to_str().unwrap());
    let file = place.path("pages.toml");
    fs::write(&file, text).unwrap();
    let total = PAGES * TIMES;
    crate::struck::run_until_done(&place, &file, total);
    let found = by_page(&place, total);
    assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
    for (page, results) in found {
        for result in results {
            assert!(expected[&page].iter().any(|of_calm| is_same(&result, of_calm)), "{page}: {result}");
        }
    }
    place.nothing_is_left();
}
