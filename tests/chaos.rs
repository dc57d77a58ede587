//! `orchestra chaos`: what it says of a sound run, errors as those of `run`, and nothing left behind. How fast anything is, it does not
//! judge; that the audit can fail is tested beside its code.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Blocks, Ended, Workplace, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::striker::workers_of;
use rustix::process::Signal;
use serde_json::Value;

/// Strikes often enough to meet even a short run.
const OFTEN: [&str; 4] = ["--kill-every", "100ms", "--stop-every", "never"];

/// One thread reads all pictures, so that a run of the example is long enough to be struck on the fastest machine.
const ONE_READER: [&str; 2] = ["--set", "limits.loaders=1"];

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/workflow.toml").canonicalize().unwrap()
}

fn chaos(place: &Workplace, file: &Path, more: &[&str]) -> Ended {
    let mut arguments = vec!["chaos", file.to_str().unwrap()];
    arguments.extend(more);
    place.start_command(&arguments).wait()
}

fn often<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&OFTEN[..], more].concat()
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.must_exit(0).stdout).unwrap()
}

fn n(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("`{key}` is no count: {report}"))
}

fn nothing_is_wrong_with(report: &Value) {
    for key in ["lost", "doubled", "differing", "unknown"] {
        assert_eq!(n(report, key), 0, "{key}: {report}");
    }
    assert_eq!((&report["leaks"], &report["findings"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    assert_eq!(report["passed"], true);
}

/// Few pictures, and a model that takes a while, so that strikes find workers.
fn blocks() -> Workplace {
    let place = Workplace::with_blocks(&Blocks { steps: 20, devices: 1, ..Blocks::default() });
    write_pictures(&place.images(), 40);
    place
}

#[test]
fn workers_of_the_example_are_killed_and_every_item_has_its_record() {
    let place = Workplace::new();
    let strikes = ["--kill-every", "50ms", "--stop-every", "0", "--json", "--items", "20000"];
    let report = json(&chaos(&place, &example(), &[&ONE_READER[..], &strikes].concat()));
    nothing_is_wrong_with(&report);
    assert_eq!((n(&report, "items"), n(&report, "items_listed"), n(&report, "done")), (20_000, 400, 20_000));
    assert!(n(&report, "kills") > 0 && n(&report, "restarts") > 0, "{report}");
    assert!(n(&report, "loaders_struck") > 0 && n(&report, "loader_restarts") > 0, "{report}");
    assert_eq!((n(&report, "failed"), n(&report, "stops"), n(&report, "other_deaths")), (0, 0, 0));
    let measured = report["kill_recovery"]["n"].as_u64().unwrap_or(0);
    assert_eq!(measured + n(&report, "unmeasured"), n(&report, "kills"), "{report}");
    assert!(report["batch"]["p50"].as_f64().unwrap() > 0.0 && report["load"]["p50"].as_f64().unwrap() > 0.0);
    place.nothing_is_left();
}

/// A run of some seconds in few batches. On a busy machine, where strikes are faster than work, each heir still finishes a batch first, so
/// that the number of batches bounds how long a test takes.
fn few_slow_batches() -> Workplace {
    let place = Workplace::with_blocks(&Blocks { steps: 800, devices: 1, ..Blocks::default() });
    write_pictures(&place.images(), 40);
    place
}

#[test]
fn workers_are_stopped_and_killed() {
    let place = few_slow_batches();
    // A quick machine may be through before the first stop: then there is more to do.
    let found = (0..6).any(|seed: u64| {
        let items = 240 << (seed / 2);
        let (seed, n_items) = (seed.to_string(), items.to_string());
        let mut strikes = vec!["--kill-every", "150ms", "--stop-every", "250ms", "--json"];
        strikes.extend(["--items", &n_items, "--seed", &seed]);
        let report = json(&chaos(&place, &place.workflow(), &strikes));
        nothing_is_wrong_with(&report);
        assert_eq!((n(&report, "items"), n(&report, "done")), (items, items));
        n(&report, "kills") > 0 && n(&report, "stops") > 0
    });
    assert!(found, "no worker was killed, or none was stopped, in any of the runs");
    place.nothing_is_left();
}

#[test]
fn rounds_are_summed_up_and_rates_are_medians_over_them() {
    let place = blocks();
    let arguments = often(&["--items", "500", "--runs", "3", "--json"]);
    let report = json(&chaos(&place, &place.workflow(), &arguments));
    nothing_is_wrong_with(&report);
    assert_eq!((n(&report, "runs"), n(&report, "items"), n(&report, "done")), (3, 500, 1_500));
    for key in ["throughput_without_faults", "throughput_with_faults", "throughput_ratio"] {
        let [min, median, max] = ["min", "median", "max"].map(|k| report[key][k].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{key}: {report}");
    }
    place.nothing_is_left();
}

#[test]
fn the_rows_of_the_table_are_keys_of_the_json() {
    let place = blocks();
    // So many that workers are struck: only then is there a row for their recovery.
    let ended = chaos(&place, &place.workflow(), &often(&["--items", "20000"]));
    ended.must_exit(0).must_say(&["running with 20000 items", "round 1 of 1: with faults"]);
    assert!(ended.stdout.contains("a SIGKILL every 100 ms, no SIGSTOP"), "{}", ended.stdout);
    let report = json(&chaos(&place, &place.workflow(), &often(&["--items", "20000", "--json"])));
    let label = |line: &str| line.split("  ").next().unwrap().replace(' ', "_");
    let tables: Vec<&str> = ended.stdout.split("\n\n").collect();
    let labels: Vec<String> =
        tables[1..4].iter().flat_map(|t| t.lines()).map(label).filter(|l| !l.is_empty()).collect();
    assert!(labels.len() >= 24, "{labels:?}");
    for label in &labels {
        assert!(report.get(label).is_some(), "`{label}` is no key: {report}");
    }
    let kills = ["kills", "restarts", "loaders_struck", "loader_restarts", "unmeasured"];
    for key in ["items", "lost", "doubled", "throughput_ratio", "leaks"].into_iter().chain(kills) {
        assert!(labels.iter().any(|l| l == key), "{key}: {labels:?}");
    }
    assert!(!place.out().exists(), "the output folder of the workflow is not touched");
    place.nothing_is_left();
}

#[test]
fn items_that_fail_by_themselves_are_no_flaw() {
    let place = Workplace::with_blocks(&Blocks { trap: true, devices: 1, ..Blocks::default() });
    write_pictures(&place.images(), 40);
    write_trap_picture(&place.images(), 7, Trap::Abort).unwrap();
    fs::write(place.images().join("broken.png"), "no picture").unwrap();
    let report = json(&chaos(&place, &place.workflow(), &often(&["--items", "41", "--json"])));
    nothing_is_wrong_with(&report);
    assert_eq!((n(&report, "done"), n(&report, "failed"), n(&report, "failed_without_faults")), (39, 2, 2));
    assert!(n(&report, "other_deaths") > 0, "{report}");
    place.nothing_is_left();
}

#[test]
fn what_cannot_be_run_ends_as_a_run_would() {
    let place = blocks();
    let text = fs::read_to_string(place.workflow()).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(place.workflow(), text.replace(from, to)).unwrap();
        let ended = chaos(&place, &place.workflow(), &OFTEN);
        assert_eq!(ended.stdout, "");
        ended
    };
    with("models/", "missing/").must_exit(69);
    with("use = [\"cpu\"]", "use = [\"cuda:99\"]").must_exit(69).must_say(&["device `cuda:99`"]);
    with("kind = \"infer\"", "kind = \"infr\"").must_exit(78);
    with("from = \"read\"", "from = \"pixels\"")
        .must_exit(78)
        .must_say(&["no stage of the workflow runs in worker processes"]);
    fs::write(place.workflow(), &text).unwrap();
    let nothing = ["--kill-every", "0", "--stop-every", "never"];
    chaos(&place, &place.workflow(), &nothing).must_exit(2).must_say(&["both off"]);
    chaos(&place, &place.path("none.toml"), &OFTEN).must_exit(78).must_say(&["none.toml"]);
    for picture in fs::read_dir(place.images()).unwrap() {
        fs::write(picture.unwrap().path(), "no picture").unwrap();
    }
    let ended = chaos(&place, &place.workflow(), &OFTEN);
    ended.must_exit(65).must_say(&["none of the 64 items is done even without faults", ".png"]);
    assert_eq!(ended.stdout, "");
    place.nothing_is_left();
}

#[test]
fn a_model_that_always_crashes_is_no_flaw_of_the_faults() {
    let place = Workplace::with_blocks(&Blocks { trap: true, devices: 1, ..Blocks::default() });
    for index in 0..8 {
        write_trap_picture(&place.images(), index, Trap::Abort).unwrap();
    }
    let ended = chaos(&place, &place.workflow(), &often(&["--items", "8"]));
    // Whether the items or the device get the blame first is a matter of time.
    assert!(matches!(ended.status.code(), Some(65 | 69)), "{ended:?}");
    ended.must_say(&["without faults", "SIGABRT"]);
    assert_eq!(ended.stdout, "");
    place.nothing_is_left();
}

#[test]
fn an_experiment_that_is_interrupted_in_either_run_leaves_nothing() {
    let place = blocks();
    let file = place.workflow();
    for (during, items) in [("without faults", "100000"), ("with faults", "3000")] {
        // With faults it takes for ever: workers are stopped as fast as they come.
        let mut arguments = vec!["chaos", file.to_str().unwrap(), "--runs", "1000"];
        arguments.extend(["--stop-every", "5ms", "--items", items]);
        let mut run = place.start_command(&arguments);
        let said = run.stderr();
        assert!(run.until(during, || fs::read_to_string(&said).unwrap().contains(during)));
        let pid = run.pid();
        assert!(run.until("a worker lives", || !workers_of(pid).is_empty()));
        run.signal(Signal::INT);
        run.wait().must_exit(130).must_say(&["interrupted"]);
        place.nothing_is_left();
    }
}

#[test]
fn a_workflow_whose_items_have_another_number_of_records_is_refused_and_records_of_any_kind_are_compared() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 200);
    place.edit("kind = \"jsonl\"", "kind = \"csv\"");
    let file = place.workflow();
    let arguments = ["chaos", file.to_str().unwrap(), "--items", "200", "--kill-every", "200ms"];
    let ended = place.start_command(&arguments).wait();
    assert!(ended.must_exit(0).stdout.contains("every item has one end"), "{}", ended.stdout);
    let text = std::fs::read_to_string(&file).unwrap();
    let sink = text.split("[sinks.").nth(1).unwrap();
    let from = sink
        .lines()
        .find_map(|line| line.strip_prefix("from = \""))
        .unwrap()
        .trim_end_matches('"')
        .to_owned();
    place.edit(&format!("from = \"{from}\"\n"), "from = \"kept\"\n");
    let kept =
        format!("[stages.kept]\nkind = \"filter\"\nfrom = \"{from}\"\nkeep = \"blocks[0] > 0\"\n[sinks.");
    place.edit("[sinks.", &kept);
    place
        .start_command(&arguments)
        .wait()
        .must_exit(78)
        .must_say(&["stage `kept` makes none or several rows of one"]);
}
