//! A model that crashes whenever it is loaded, or whenever it runs: the run gives up after a few tries, with the worker's own last words,
//! blames next to no item, and the same command completes it once the cause is gone.

use std::collections::BTreeSet;
use std::fs;

use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::records::items;
use orchestra_testkit::size::scaled;
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
fn a_crash_loop_at_start_fails_fast_with_the_workers_last_words_and_can_be_resumed() {
    let place = workplace();
    let ended = place.run_with(&[(DEADLY, IN_LOAD)]);
    ended.must_exit(69).must_say(&["no device is left for stage `read`", "SIGABRT", LAST_WORDS]);
    let deaths = place.workers_lost();
    assert!((2..=MOST_DEATHS).contains(&deaths), "{deaths} workers died");
    assert_eq!(place.report()["items"]["read"], 0);
    place.nothing_is_left();
    place.run(&[]).must_exit(0);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}

#[test]
fn a_model_that_crashes_in_every_run_ends_the_run_and_the_next_one_does_what_is_open() {
    let place = workplace();
    let ended = place.run_with(&[(DEADLY, IN_RUN)]);
    ended.must_exit(69).must_say(&["no device is left for stage `read`", "SIGABRT", LAST_WORDS]);
    let deaths = place.workers_lost();
    assert!((2..=MOST_DEATHS).contains(&deaths), "{deaths} workers died");
    // An item may look guilty before it is clear that everything dies; it stays failed.
    let failed: BTreeSet<_> = place.records().failed.keys().cloned().collect();
    assert!(failed.len() <= 2, "{failed:?}");
    assert_eq!(place.n_results(), 0);
    place.nothing_is_left();
    place.run(&[]).must_exit(if failed.is_empty() { 0 } else { 65 });
    let done = items("scans", 0..ITEMS).difference(&failed).cloned().collect();
    place.must_hold(&done, &failed);
    place.nothing_is_left();
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
    place.start_command(&["verify", place.out().to_str().unwrap()]).wait().must_exit(0);
}

#[test]
fn a_pipeline_of_which_too_many_items_fail_is_stopped_alone_and_goes_on_with_a_higher_limit() {
    // More than may be read beyond the first failure that has no end yet.
    let n: u64 = scaled(20_000, 8_000);
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), n);
    fs::create_dir(place.path("copies")).unwrap();
    let others = 500;
    write_pictures(&place.path("copies"), others);
    // The first hundred.
    for index in 0..100 {
        fs::write(place.images().join(format!("{index:08}.png")), b"no picture").unwrap();
    }
    let place = with_neighbour(place);
    place.edit("paths = [\"images/*.png\"]", "paths = [\"copies/*.png\"]");
    let limit = ["--set", "pipelines.scans.max_failed=10"];
    let why =
        "pipeline `scans` was stopped: more of its items failed than `pipelines.scans.max_failed` allows";
    place.run(&limit).must_exit(65).must_say(&[why]);
    let report = place.report();
    assert_eq!(report["pipelines"]["copies"]["end"], "complete");
    assert_eq!(report["pipelines"]["scans"]["end"], why);
    let copies = fs::read_to_string(place.path("out/copies.jsonl")).unwrap();
    assert_eq!(copies.lines().count() as u64, others);
    let read = report["items"]["read"].as_u64().unwrap() - others;
    assert!((11..n).contains(&read), "{read} were read");
    // What failed before counts, too.
    place.run(&limit).must_exit(65).must_say(&[why]);
    assert!(place.report()["items"]["read"].as_u64().unwrap() < n + others);
    place.run(&["--set", "pipelines.scans.max_failed=100"]).must_exit(65);
    let (done, failed) = (items("scans", 100..n), items("scans", 0..100));
    assert_eq!(place.report()["items"]["failed"], 100);
    assert_eq!(place.n_results(), done.len());
    assert_eq!(place.failures().len(), failed.len());
    assert_eq!(fs::read_to_string(place.path("out/copies.jsonl")).unwrap(), copies, "nothing is done again");
}

/// With a second pipeline over the same pictures, whose model is well.
fn with_neighbour(place: Workplace) -> Workplace {
    let good = models::blocks(&place.path("models"), [1, 32, 32]).unwrap();
    let other = format!(
        r#"
[sources.copies]
kind = "images"
paths = ["images/*.png"]
[models.good]
path = {good:?}
[stages.small]
kind = "image"
from = "copies"
size = [32, 32]
color = "gray"
scale = 1.0
[stages.well]
kind = "infer"
from = "small"
model = "good"
[sinks.copies]
kind = "jsonl"
from = "well"
"#
    );
    fs::write(place.workflow(), fs::read_to_string(place.workflow()).unwrap() + &other).unwrap();
    place
}
