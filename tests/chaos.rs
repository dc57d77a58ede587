//! `orchestra chaos`: what it says of a sound run, errors as those of `run`, and nothing left behind. That its audit can fail, `verify.rs` shows.

use std::fs;
use std::path::Path;

use crate::common::{Blocks, Ended, Workplace, repository, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::striker::workers_of;
use rustix::process::Signal;
use serde_json::Value;

/// Strikes often enough to meet even a short run.
const OFTEN: [&str; 4] = ["--kill-every", "100ms", "--stop-every", "never"];

/// One thread reads all pictures, so that a run of the example is long enough to be struck on the fastest machine.
const ONE_READER: [&str; 2] = ["--set", "limits.loaders=1"];

fn chaos(place: &Workplace, file: &Path, more: &[&str]) -> Ended {
    place.on("chaos", file, more)
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
    for key in ["lost", "doubled", "stray", "damaged"] {
        assert_eq!(n(report, key), 0, "{key}: {report}");
    }
    assert_eq!((&report["faults"], &report["passed"]), (&Value::Array(vec![]), &true.into()));
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
    let strikes = ["--kill-every", "50ms", "--stop-every", "0", "--json", "--items", "8000"];
    let report = json(&chaos(
        &place,
        &repository().join("examples/digits/workflow.toml"),
        &[&ONE_READER[..], &strikes].concat(),
    ));
    nothing_is_wrong_with(&report);
    assert_eq!((n(&report, "items"), n(&report, "done"), n(&report, "failed")), (8_000, 8_000, 0));
    assert!(n(&report, "kills") > 0 && n(&report, "restarts") > 0, "{report}");
    assert!(n(&report, "loaders_struck") > 0 && n(&report, "loader_restarts") > 0, "{report}");
    assert_eq!(n(&report, "stops"), 0);
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
    let found = (0..4).any(|more: u64| {
        let items = 240 << more;
        let n_items = items.to_string();
        let mut strikes = vec!["--kill-every", "150ms", "--stop-every", "250ms", "--json"];
        strikes.extend(["--items", &n_items]);
        let report = json(&chaos(&place, &place.workflow(), &strikes));
        nothing_is_wrong_with(&report);
        assert_eq!((n(&report, "items"), n(&report, "done")), (items, items));
        n(&report, "kills") > 0 && n(&report, "stops") > 0
    });
    assert!(found, "no worker was killed, or none was stopped, in any of the runs");
    place.nothing_is_left();
}

#[test]
fn runs_are_summed_up_and_the_rows_of_the_table_are_keys_of_the_json() {
    let place = blocks();
    let runs = often(&["--items", "500", "--runs", "3"]);
    let ended = chaos(&place, &place.workflow(), &runs);
    ended.must_exit(0).must_say(&["run 1 of 3, with 500 items", "run 3 of 3"]);
    let report = json(&chaos(&place, &place.workflow(), &[&runs[..], &["--json"]].concat()));
    nothing_is_wrong_with(&report);
    assert_eq!((n(&report, "runs"), n(&report, "items"), n(&report, "done")), (3, 500, 1_500));
    let labels = ended.stdout.split("\n\n").nth(1).unwrap().lines();
    let labels: Vec<String> = labels.map(|l| l.split("  ").next().unwrap().replace(' ', "_")).collect();
    for label in &labels {
        assert!(report.get(label).is_some(), "`{label}` is no key: {report}");
    }
    for key in ["items", "lost", "doubled", "kills", "restarts", "loaders_struck", "loader_restarts"] {
        assert!(labels.iter().any(|label| label == key), "{key}: {labels:?}");
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
    assert_eq!((n(&report, "done"), n(&report, "failed")), (39, 2));
    place.nothing_is_left();
}

#[test]
fn what_cannot_be_run_ends_as_a_run_would() {
    let place = blocks();
    let text = fs::read_to_string(place.workflow()).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        place.write(text.replace(from, to));
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
    let read = "[stages.read]\nkind = \"infer\"\nfrom = ";
    let late =
        format!("[stages.late]\nkind = \"reduce\"\nfrom = \"pixels\"\nop = \"concat\"\n{read}\"late\"");
    with(&format!("{read}\"pixels\""), &late)
        .must_exit(78)
        .must_say(&["no stage of the workflow runs in worker processes while its sources are read"]);
    place.write(&text);
    let nothing = ["--kill-every", "0", "--stop-every", "never"];
    chaos(&place, &place.workflow(), &nothing).must_exit(2).must_say(&["both off"]);
    chaos(&place, &place.path("none.toml"), &OFTEN).must_exit(78).must_say(&["none.toml"]);
    for picture in fs::read_dir(place.images()).unwrap() {
        fs::write(picture.unwrap().path(), "no picture").unwrap();
    }
    let ended = chaos(&place, &place.workflow(), &OFTEN);
    ended.must_exit(65).must_say(&["none of the 64 items is done", ".png"]);
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
    ended.must_say(&["SIGABRT"]);
    assert_eq!(ended.stdout, "");
    place.nothing_is_left();
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing() {
    let place = blocks();
    // It takes for ever: workers are stopped as fast as they come.
    let arguments = ["--stop-every", "5ms", "--items", "3000", "--runs", "1000"];
    let mut run = place.start_on_file("chaos", &arguments, &[]);
    run.must_say("run 1 of 1000");
    let pid = run.pid();
    run.must_reach("a worker lives", || !workers_of(pid).is_empty());
    run.signal(Signal::INT);
    run.wait().must_exit(130).must_say(&["interrupted"]);
    place.nothing_is_left();
}
