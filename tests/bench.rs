//! `orchestra bench`: figures that agree with each other, errors as those of `run`, and nothing left behind. How fast this machine is, it
//! does not judge.

use std::fs;
use std::path::Path;

use crate::common::{Blocks, Ended, Workplace, repository, write_pictures};
use rustix::process::Signal;
use serde_json::Value;

const SHORT: [&str; 4] = ["--runs", "2", "--seconds", "0.05"];

fn bench(place: &Workplace, file: &Path, more: &[&str]) -> Ended {
    place.on("bench", file, more)
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.must_exit(0).stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn spread_is_in_order(spread: &Value) {
    let [min, median, max] = ["min", "median", "max"].map(|k| number(&spread[k]));
    assert!(min <= median && median <= max, "{spread}");
}

fn blocks() -> Workplace {
    let place = Workplace::with_blocks(&Blocks { devices: 1, ..Blocks::default() });
    write_pictures(&place.images(), 40);
    place
}

#[test]
fn the_figures_of_the_example_agree_with_each_other() {
    let place = Workplace::new();
    let arguments = ["--runs", "2", "--seconds", "0.05", "--items", "10000", "--repeat", "100", "--json"];
    let report = json(&bench(&place, &repository().join("examples/digits/workflow.toml"), &arguments));
    assert_eq!(
        (&report["workflow"], &report["items"], &report["items_total"]),
        (&"digits".into(), &10_000.into(), &400.into())
    );
    let [limit, run] = ["limit_items_per_second", "run_items_per_second"].map(|k| number(&report[k]));
    assert!(limit > 0.0 && run > 0.0, "{report}");
    for key in ["limit", "run", "loading"] {
        spread_is_in_order(&report[key]);
    }
    match report["too_short"].as_bool().unwrap() {
        true => assert!(report["ratio"].is_null() && report["ratio_spread"].is_null(), "{report}"),
        false => {
            spread_is_in_order(&report["ratio_spread"]);
            assert_eq!(report["ratio"], report["ratio_spread"]["median"]);
        }
    }
    let bottleneck = report["bottleneck"].as_str().unwrap();
    assert!(["loading", "inference", "cpu", "sinks", "overhead"].contains(&bottleneck), "{bottleneck}");
    assert_eq!(report["limited_by"], "cores");
    let model = &report["models"][0];
    assert_eq!((&model["stage"], number(&model["rows_per_item"])), (&"classify".into(), 1.0));
    spread_is_in_order(&model["rows_per_second"]);
    place.nothing_is_left();
}

#[test]
fn a_run_without_a_steady_state_has_no_ratio_but_a_way_to_have_one() {
    let place = Workplace::new();
    let repeat = |ended: &Ended| -> u64 {
        let said = ended.must_exit(0).stdout.split("`--repeat ").nth(1).unwrap_or_default();
        said.split('`').next().unwrap().parse().unwrap_or_else(|_| panic!("{}", ended.stdout))
    };
    let short = bench(&place, &repository().join("examples/digits/workflow.toml"), &SHORT);
    assert!(repeat(&short) > 1 && !short.stdout.contains("run / limit"), "{}", short.stdout);
    short.must_print(&["too short "]);
    let arguments = [&SHORT[..], &["--items", "20"]].concat();
    let few = bench(&place, &repository().join("examples/digits/workflow.toml"), &arguments);
    assert!(repeat(&few) > 1 && few.stdout.contains("without `--items`"), "{}", few.stdout);
    let arguments = [&SHORT[..], &["--items", "20", "--repeat", "1000000000"]].concat();
    let few = bench(&place, &repository().join("examples/digits/workflow.toml"), &arguments);
    few.must_print(&["take `--items "]);
    let report = json(&bench(
        &place,
        &repository().join("examples/digits/workflow.toml"),
        &[&SHORT[..], &["--items", "20", "--json"]].concat(),
    ));
    assert_eq!((&report["too_short"], &report["ratio"]), (&true.into(), &Value::Null));
    place.nothing_is_left();
}

#[test]
fn the_table_says_what_was_measured_and_what_failed() {
    let place = blocks();
    fs::write(place.images().join("broken.png"), "no picture").unwrap();
    let ended = bench(&place, &place.workflow(), &SHORT);
    ended.must_exit(0).must_say(&["a first look at the items", "round 2 of 2: run"]);
    for part in ["blocks: 41 of 41 items", "loading", "stage read", "limit, set by cores", "run, items/s"] {
        ended.must_print(&[part]);
    }
    ended.must_print(&["1 item of 41"]);
    assert!(!place.out().exists(), "the output folder of the workflow is not touched");
    place.nothing_is_left();
}

#[test]
fn what_cannot_be_measured_ends_as_a_run_would() {
    let place = blocks();
    let text = fs::read_to_string(place.workflow()).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        place.write(text.replace(from, to));
        let measured = bench(&place, &place.workflow(), &SHORT);
        let code = measured.status.code().unwrap();
        assert_eq!(measured.stdout, "");
        place.run(&["--fresh"]).must_exit(code);
        measured
    };
    with("models/", "missing/").must_exit(69);
    with("use = [\"cpu\"]", "use = [\"cuda:99\"]")
        .must_exit(69)
        .must_say(&["device `cuda:99` is not available"]);
    with("kind = \"infer\"", "kind = \"infr\"").must_exit(78);
    place.write(&text);
    bench(&place, &place.path("none.toml"), &SHORT).must_exit(78).must_say(&["none.toml"]);
    bench(&place, &place.workflow(), &["--runs", "0"]).must_exit(2);
    place.nothing_is_left();
}

#[test]
fn a_workflow_without_models_or_pictures_says_so() {
    let place = blocks();
    for picture in fs::read_dir(place.images()).unwrap() {
        fs::write(picture.unwrap().path(), "no picture").unwrap();
    }
    bench(&place, &place.workflow(), &SHORT).must_exit(65).must_say(&["none of the 40 items", "error"]);
    let text = fs::read_to_string(place.workflow()).unwrap();
    place.write(text.replace("from = \"read\"", "from = \"pixels\""));
    bench(&place, &place.workflow(), &SHORT)
        .must_exit(78)
        .must_say(&["no stage of the workflow runs in worker processes"]);
    place.nothing_is_left();
}

#[test]
fn a_measurement_that_is_interrupted_in_any_part_leaves_nothing() {
    let place = blocks();
    let file = place.workflow();
    let bench = |seconds: &str| {
        place.start_command(&["bench", file.to_str().unwrap(), "--runs", "1000", "--seconds", seconds])
    };
    let interrupted = |run: crate::common::Run| {
        run.signal(Signal::INT);
        run.wait().must_exit(130).must_say(&["interrupted"]);
        place.nothing_is_left();
    };
    let mut loading = bench("3600");
    loading.must_say("round 1 of 1000: loading");
    interrupted(loading);
    let mut inferring = bench("0.05");
    inferring.must_say("round 1 of 1000: stage read");
    interrupted(inferring);
    let mut running = bench("0.05");
    running.must_say("round 2 of 1000: run");
    interrupted(running);
}
