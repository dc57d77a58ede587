//! The example as a newcomer runs it: 400 images, 400 records, an account that adds up. Whether the answers are right, its `check.py` says
//! (`examples_checked.rs`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, Workplace};
use orchestra_testkit::records::items;
use serde_json::Value;

const IMAGES: u64 = 400;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap()
}

fn run(place: &Workplace) -> Ended {
    let (file, out) = (example().join("workflow.toml"), place.out());
    place.start_command(&["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()]).wait()
}

#[test]
fn the_example_reads_the_digits_and_its_account_adds_up() {
    let place = Workplace::new();
    run(&place).must_exit(0).must_say(&["digits finished: 400 items read, 400 done, 0 failed"]);
    place.must_hold(&items("scans", 0..IMAGES), &BTreeSet::new());
    account_adds_up(&place.report());
    let before = fs::read(place.out().join("results.jsonl")).unwrap();
    run(&place).must_exit(0).must_say(&["digits was finished before, nothing is left to do"]);
    assert_eq!(fs::read(place.out().join("results.jsonl")).unwrap(), before);
    place.nothing_is_left();
}

fn account_adds_up(report: &Value) {
    let items = &report["items"];
    let of = |name: &str| items[name].as_u64().unwrap();
    assert_eq!(of("read"), of("done") + of("failed"));
    assert_eq!((of("read"), of("total"), of("failed"), of("resumed")), (IMAGES, IMAGES, 0, 0));
    assert_eq!((&report["workflow"], &report["exit_code"]), (&"digits".into(), &0.into()));
    let stages = report["stages"].as_object().unwrap();
    assert_eq!(stages.keys().collect::<Vec<_>>(), ["answer", "classify", "pixels"]);
    for (name, stage) in stages {
        let n = |key: &str| stage[key].as_u64().unwrap();
        assert_eq!((n("in"), n("out"), n("failed")), (IMAGES, IMAGES, 0), "{name}: {stage}");
    }
    let devices = report["devices"].as_array().unwrap();
    let batches: u64 = devices.iter().map(|d| d["batches"].as_u64().unwrap()).sum();
    let rows: f64 =
        devices.iter().map(|d| d["batches"].as_f64().unwrap() * d["mean_batch"].as_f64().unwrap()).sum();
    assert!((rows - IMAGES as f64).abs() < 1e-6, "{report}");
    let left: u64 =
        report["batches_by_reason"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(left, batches, "{report}");
    for device in devices {
        let n = |key: &str| device[key].as_u64().unwrap();
        assert!(n("starts") == n("workers") && n("restarts") == 0, "{report}");
        assert!((0.0..=1.0).contains(&device["busy"].as_f64().unwrap()), "{report}");
    }
    assert!(!report["run_id"].as_str().unwrap().is_empty());
    assert!(report["started"].as_str().unwrap().ends_with('Z'));
}
