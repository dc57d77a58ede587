//! Many crops of each item: batches of them are full, and the memory of the run does not grow with them.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fmt::Write as _;
use std::fs;

use common::{Workplace, write_pictures};
use orchestra_core::DType;
use orchestra_testkit::models;
use orchestra_testkit::processes::child_ids;
use serde_json::Value;

const ITEMS: u64 = 10_000;
/// Boxes of each item.
const EACH: u64 = 20;
/// Crops of a batch, at most.
const BATCH: u64 = 64;
/// What the second half of the run may need beyond the first, of the run itself and of all its processes.
const GROWTH: [u64; 2] = [8 << 20, 24 << 20];

fn workflow(place: &Workplace) -> String {
    let folder = place.path("models");
    let boxes = models::constant_boxes(&folder, [1, 8, 8], EACH as usize).unwrap();
    let mean = models::identity(&folder, DType::F32, &[1, 2, 2]).unwrap();
    format!(
        r#"version = 1
[sources.pages]
kind = "images"
manifest = "pages.txt"
root = "images"
[models.boxes]
path = {boxes:?}
devices = ["cpu"]
[models.mean]
path = {mean:?}
devices = ["cpu:1"]
[stages.small]
kind = "image"
from = "pages"
size = [8, 8]
color = "gray"
[stages.find]
kind = "infer"
from = "small"
model = "boxes"
[stages.parts]
kind = "crop"
from = ["pages", "find"]
size = [2, 2]
color = "gray"
[stages.read]
kind = "infer"
from = "parts"
model = "mean"
# So long that no batch leaves before it is full but the last ones.
batch = {{ max = {BATCH}, wait = "1m" }}
[stages.page]
kind = "gather"
from = "read"
[stages.number]
kind = "reduce"
from = "read"
op = "count"
[sinks.results]
kind = "jsonl"
from = "page"
path = "results.jsonl"
[sinks.number]
kind = "jsonl"
from = "number"
[devices]
use = ["cpu", "cpu"]
"#
    )
}

/// Bytes that a process has of this: `VmRSS` of its status, or `Pss` of all its mappings, where what several share is counted once over all of them.
fn held(pid: u32, file: &str, what: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(what))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Bytes of the run itself, and of all its processes together; `None` where one of them has just ended.
fn memory(run: u32) -> Option<[u64; 2]> {
    let mut tree = vec![run];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        tree.extend(child_ids(*pid));
        at += 1;
    }
    let all: Option<Vec<u64>> = tree.iter().map(|pid| held(*pid, "smaps_rollup", "Pss:")).collect();
    Some([held(run, "status", "VmRSS:")?, all?.into_iter().sum()])
}

#[test]
fn batches_of_crops_are_full_and_memory_stays_as_it_is() {
    let place = Workplace::new();
    write_pictures(&place.images(), 20);
    let mut list = String::new();
    (0..ITEMS).for_each(|n| writeln!(list, "{:08}.png", n % 20).unwrap());
    fs::write(place.path("pages.txt"), list).unwrap();
    fs::write(place.workflow(), workflow(&place)).unwrap();
    let mut run = place.start(&[]);
    let pid = run.pid();
    // Once it has reached its stride, and from there on: at the same distance from both ends.
    let mut most = [[0; 2]; 2];
    run.until("it ends", || {
        let done = place.n_results() as u64;
        let half = usize::from(done > ITEMS / 2);
        if let Some(now) = memory(pid).filter(|_| done > 0) {
            most[half] = [0, 1].map(|of| most[half][of].max(now[of]));
        }
        false
    });
    run.wait().must_exit(0);
    let number = fs::read_to_string(place.out().join("number.jsonl")).unwrap();
    let number: Value = serde_json::from_str(&number).unwrap();
    assert_eq!(number["result"]["rows"], ITEMS * EACH);
    let report = place.report();
    let mean = report["devices"][1]["mean_batch"].as_f64().unwrap();
    let [first, second] = most;
    for (of, name) in ["the run", "all processes"].into_iter().enumerate() {
        println!("{name}: {} and {} MiB at most in both halves", first[of] >> 20, second[of] >> 20);
        assert!(first[of] > 0 && second[of] > 0, "{most:?}");
        assert!(second[of] <= first[of] + GROWTH[of], "{name}: {most:?}");
    }
    println!("{mean} crops in a batch");
    assert!(mean > 0.9 * BATCH as f64, "{mean} crops in a batch");
    place.no_process_is_left();
}
