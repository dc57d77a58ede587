//! Many crops of each item: batches of them are full, and the memory of the run does not grow with them.

use std::fmt::Write as _;
use std::fs;

use crate::common::{Workplace, write_pictures};
use orchestra_core::DType;
use orchestra_testkit::models;
use orchestra_testkit::processes::children;
use orchestra_testkit::size::{scaled, storm};
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

/// Boxes of each item.
const EACH: u64 = 20;
/// Crops of a batch, at most.
const BATCH: u64 = 64;
/// What the second half of the run may need beyond the first, of the run itself and of all its processes.
const GROWTH: [u64; 2] = [12 << 20, 12 << 20];

/// Writes `items` pages, and the workflow over them. One worker of each model. So patient that no batch leaves before it is full but the last ones.
fn write(place: &Workplace, items: u64) {
    write_pictures(&place.images(), 20);
    let mut list = String::new();
    (0..items).for_each(|n| writeln!(list, "{:08}.png", n % 20).unwrap());
    fs::write(place.path("pages.txt"), list).unwrap();
    let boxes = models::constant_boxes(&place.path("models"), [1, 8, 8], EACH as usize).unwrap();
    let reader = models::identity(&place.path("models"), DType::F32, &[1, 2, 2]).unwrap();
    let read = format!("model = 'reader'\nbatch = {{ max = {BATCH}, wait = '1m' }}");
    let flow = WorkflowFile::new()
        .source("pages", "images", "manifest = 'pages.txt'\nroot = 'images'")
        .table("models.boxes", format_args!("path = {boxes:?}\ndevices = ['cpu']\nworkers = 1"))
        .table("models.reader", format_args!("path = {reader:?}\ndevices = ['cpu:1']\nworkers = 1"))
        .gray("small", "pages", [8, 8], "")
        .infer("find", "small", "boxes")
        .stage("parts", "crop", ["pages", "find"], "size = [2, 2]\ncolor = 'gray'")
        .stage("read", "infer", "parts", read)
        .stage("page", "gather", "read", "")
        .stage("number", "reduce", "read", "op = 'count'")
        .results("page")
        .sink("number", "jsonl", "number")
        .table("devices", "use = ['cpu', 'cpu']");
    place.write(flow);
}

/// Whether each crop was read once; gives the crops in a batch, on average.
fn mean_batch(place: &Workplace, items: u64) -> f64 {
    let number = fs::read_to_string(place.out().join("number.jsonl")).unwrap();
    let number: Value = serde_json::from_str(&number).unwrap();
    assert_eq!(number["result"]["rows"], items * EACH);
    let report = place.report();
    let reader = &report["devices"][1];
    let (batches, mean) = (reader["batches"].as_u64().unwrap(), reader["mean_batch"].as_f64().unwrap());
    assert_eq!((batches as f64 * mean).round() as u64, items * EACH, "{reader}");
    mean
}

/// Bytes that a process has of this, by a file of its folder in `/proc`.
fn held(pid: u32, file: &str, what: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(what))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Bytes of a process's heaps and its share of the slots. Its share of programs and libraries is left out: it grows whenever another process
/// that has them ends, of another run, too.
fn own(pid: u32) -> Option<u64> {
    Some(held(pid, "smaps_rollup", "Pss_Anon:")? + held(pid, "smaps_rollup", "Pss_Shmem:")?)
}

/// Bytes of the run itself, and of all its processes together; `None` where one of them has just ended.
fn memory(run: u32) -> Option<[u64; 2]> {
    let mut tree = vec![run];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        tree.extend(children(*pid).iter().map(|child| child.pid));
        at += 1;
    }
    let all: Option<Vec<u64>> = tree.iter().map(|pid| own(*pid)).collect();
    let of_run = held(run, "status", "RssAnon:")? + held(run, "status", "RssShmem:")?;
    Some([of_run, all?.into_iter().sum()])
}

#[test]
fn batches_of_crops_are_full_and_memory_stays_as_it_is() {
    let _turn = storm();
    let place = Workplace::new();
    let n = scaled(10_000, 2_500);
    write(&place, n);
    let mut run = place.start(&[]);
    let pid = run.pid();
    // Once it has reached its stride, and from there on: at the same distance from both ends.
    let mut most = [[0; 2]; 2];
    run.until("it ends", || {
        let done = place.n_results() as u64;
        let half = usize::from(done > n / 2);
        if let Some(now) = memory(pid).filter(|_| done > 0) {
            most[half] = [0, 1].map(|of| most[half][of].max(now[of]));
        }
        false
    });
    run.wait().must_exit(0);
    let mean = mean_batch(&place, n);
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
