//! A model that crashes whenever it is loaded, or whenever it runs: the run gives up after a few tries, with the worker's own last words,
//! blames next to no item, and the same command completes it once the cause is gone.

use std::collections::BTreeSet;
use std::fs;

use crate::common::Workplace;
use orchestra_testkit::records::items;
use orchestra_testkit::workflow_file::WorkflowFile;
use orchestra_testkit::{DEADLY, IN_LOAD, IN_RUN, LAST_WORDS, models};

const ITEMS: u64 = 300;

/// Workers that may die before the two devices are given up: five tries each and what they were doing meanwhile.
const MOST_DEATHS: usize = 24;

fn workplace() -> Workplace {
    let place = Workplace::with_gate(ITEMS);
    place.edit("threads = 1\n", "threads = 1\nworkers = 1\n");
    place
}

#[test]
fn a_model_that_crashes_in_every_load_or_run_ends_the_run_and_the_next_one_does_what_is_open() {
    for moment in [IN_LOAD, IN_RUN] {
        let place = workplace();
        let ended = place.run_with(&[(DEADLY, moment)]);
        ended.must_exit(69).must_say(&["no device is left for stage `read`", "SIGABRT", LAST_WORDS]);
        let deaths = place.workers_lost();
        assert!((2..=MOST_DEATHS).contains(&deaths), "{deaths} workers died");
        // An item may look guilty before it is clear that everything dies; it stays failed.
        let failed: BTreeSet<_> = place.records().failed.keys().cloned().collect();
        assert!(failed.len() <= if moment == IN_RUN { 2 } else { 0 }, "{failed:?}");
        assert_eq!(place.n_results(), 0);
        place.nothing_is_left();
        place.run(&[]).must_exit(if failed.is_empty() { 0 } else { 65 });
        let done = items("scans", 0..ITEMS).difference(&failed).cloned().collect();
        place.must_hold(&done, &failed);
        place.nothing_is_left();
    }
}

#[test]
fn a_pipeline_that_cannot_go_on_leaves_the_other_one_of_the_file_to_finish() {
    let place = with_neighbour(workplace());
    place.run_with(&[(DEADLY, IN_LOAD)]).must_exit(69).must_say(&["no device is left for stage `read`"]);
    let report = place.report();
    assert_eq!(report["pipelines"]["copies"]["end"], "complete");
    assert!(report["pipelines"]["scans"]["end"].as_str().unwrap().contains("stage `read`"), "{report}");
    assert_eq!(report["items"]["done"], ITEMS, "all of the pipeline that can");
    let done = || fs::read_to_string(place.path("out/copies.jsonl")).unwrap();
    let before = done();
    assert_eq!(before.lines().count() as u64, ITEMS);
    place.run(&[]).must_exit(0);
    assert_eq!((done(), place.n_results() as u64), (before, ITEMS));
    place.on_out("verify", &[]).must_exit(0);
}

/// With a second pipeline over the same pictures, whose model is well.
fn with_neighbour(place: Workplace) -> Workplace {
    let good = models::blocks(&place.path("models"), [1, 32, 32]).unwrap();
    let other = WorkflowFile::new()
        .source("copies", "images", "paths = ['images/*.png']")
        .model("good", good)
        .gray("small", "copies", [32, 32], "scale = 1.0")
        .infer("well", "small", "good")
        .sink("copies", "jsonl", "well")
        .to_string();
    let other = other.strip_prefix("version = 1\n").unwrap();
    place.write(fs::read_to_string(place.workflow()).unwrap() + other);
    place
}
