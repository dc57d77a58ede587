//! `orchestra bench`: figures that agree with each other, errors as those of `run`, and nothing left behind. How fast this machine is, it
//! does not judge.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Blocks, Ended, Workplace, write_pictures};
use orchestra_machine::processes;
use orchestra_testkit::{chaos, models};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SHORT: [&str; 4] = ["--runs", "2", "--seconds", "0.05"];

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/workflow.toml").canonicalize().unwrap()
}

fn bench(place: &Workplace, file: &Path, more: &[&str]) -> Ended {
    let mut arguments = vec!["bench", file.to_str().unwrap()];
    arguments.extend(more);
    place.start_command(&arguments).wait()
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
    let mut arguments = SHORT.to_vec();
    arguments.extend(["--items", "100", "--json"]);
    let report = json(&bench(&place, &example(), &arguments));
    assert_eq!(
        (&report["workflow"], &report["items"], &report["items_total"]),
        (&"digits".into(), &100.into(), &400.into())
    );
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    let mut of_rounds = [0.0; 3];
    for round in rounds {
        let names = ["limit_items_per_second", "run_items_per_second", "ratio"];
        let [limit, run, ratio] = names.map(|k| number(&round[k]));
        assert!(limit > 0.0 && run > 0.0 && (ratio - run / limit).abs() < 1e-9, "{round}");
        // The median of two is their mean.
        of_rounds = [of_rounds[0] + limit / 2.0, of_rounds[1] + run / 2.0, of_rounds[2] + ratio / 2.0];
    }
    for (name, mean) in ["limit_items_per_second", "run_items_per_second", "ratio"].iter().zip(of_rounds) {
        let found = number(&report[name]);
        assert!((found - mean).abs() <= 1e-9 * mean, "{name}: {found}, not {mean}");
    }
    let bottleneck = report["bottleneck"].as_str().unwrap();
    assert!(["loading", "inference", "cpu", "sinks", "overhead"].contains(&bottleneck), "{bottleneck}");
    assert_eq!(report["decode"][0]["source"], "scans");
    assert_eq!(
        (&report["infer"][0]["stage"], &report["infer"][0]["batch"]),
        (&"classify".into(), &64.into())
    );
    for part in [&report["decode"][0], &report["infer"][0]] {
        ["items_per_second", "items_per_second_per_core", "core_seconds_per_item", "cpu_seconds_per_item"]
            .iter()
            .for_each(|k| spread_is_in_order(&part[k]));
    }
    ["items_per_second", "seconds_starting", "useful_cpu_share"]
        .iter()
        .for_each(|k| spread_is_in_order(&report["run"][k]));
    assert_eq!((&report["tune"], &report["patch"]), (&Value::Null, &Value::Null));
    place.nothing_is_left();
}

#[test]
fn the_table_says_what_was_measured_and_what_cannot_be_read() {
    let place = blocks();
    fs::write(place.images().join("broken.png"), "no picture").unwrap();
    let ended = bench(&place, &place.workflow(), &SHORT);
    ended.must_exit(0).must_say(&["measuring with all 41 items", "round 2 of 2"]);
    for part in
        ["blocks: 41 of 41 items", "decode scans", "infer read on cpu", "limit, set by cores", "run / limit"]
    {
        assert!(ended.stdout.contains(part), "`{part}` is missing:\n{}", ended.stdout);
    }
    assert!(ended.stdout.contains("1 item of 41 cannot be read or decoded"), "{}", ended.stdout);
    assert!(!place.out().exists(), "the output folder of the workflow is not touched");
    place.nothing_is_left();
}

#[test]
fn the_models_of_several_branches_are_measured_each() {
    let place = Workplace::new();
    let readme = fs::read_to_string(example().parent().unwrap().join("../../README.md")).unwrap();
    let text = readme.split("```toml\n").find(|b| b.contains("name = \"two-models\"")).unwrap();
    let top = example().parent().unwrap().join("../..").canonicalize().unwrap();
    let text = text.split("```").next().unwrap();
    let text = text.replace("\"models/", &format!("\"{}/models/", top.display()));
    fs::write(place.workflow(), text.replace("\"examples/", &format!("\"{}/examples/", top.display())))
        .unwrap();
    let report = json(&bench(&place, &place.workflow(), &["--runs", "1", "--seconds", "0.05", "--json"]));
    let stages: Vec<&str> =
        report["infer"].as_array().unwrap().iter().map(|p| p["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["run-digits", "run-parity"]);
    place.nothing_is_left();
}

#[test]
fn models_behind_models_are_measured_each_with_what_the_one_before_gives() {
    let place = blocks();
    let model = models::affine(&place.path("models"), &[1, 8, 8]).unwrap();
    let infer = |name: &str, from: &str| {
        format!(
            "[stages.{name}]\nkind = \"infer\"\nfrom = \"{from}\"\nmodel = \"affine\"\nbatch = {{ max = 4 }}\n"
        )
    };
    let text = format!(
        "version = 1
[sources.scans]
kind = \"images\"
paths = [\"images\"]
[models.affine]
path = {model:?}
[stages.pixels]
kind = \"image\"
from = \"scans\"
size = [8, 8]
color = \"gray\"
{}{}[sinks.results]
kind = \"jsonl\"
from = \"twice\"
[devices]
use = [\"cpu\", \"cpu\"]
",
        infer("once", "pixels"),
        infer("twice", "once"),
    );
    fs::write(place.workflow(), text).unwrap();
    let report = json(&bench(&place, &place.workflow(), &["--runs", "1", "--seconds", "0.05", "--json"]));
    let infer = report["infer"].as_array().unwrap();
    let parts: Vec<_> =
        infer.iter().map(|p| [&p["stage"], &p["device"]].map(|v| v.as_str().unwrap())).collect();
    assert_eq!(parts, [["once", "cpu"], ["once", "cpu:1"], ["twice", "cpu"], ["twice", "cpu:1"]]);
    assert!(infer.iter().all(|p| number(&p["weight"]) == 1.0), "{report}");
    place.nothing_is_left();
}

#[test]
fn what_cannot_be_measured_ends_as_a_run_would() {
    let place = blocks();
    let text = fs::read_to_string(place.workflow()).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(place.workflow(), text.replace(from, to)).unwrap();
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
    fs::write(place.workflow(), &text).unwrap();
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
    fs::write(place.workflow(), text.replace("from = \"read\"", "from = \"pixels\"")).unwrap();
    bench(&place, &place.workflow(), &SHORT).must_exit(78).must_say(&["no stage of kind `infer`"]);
    place.nothing_is_left();
}

#[test]
fn a_measurement_that_is_interrupted_in_any_part_leaves_nothing() {
    let place = blocks();
    let file = place.workflow();
    let bench = |seconds: &str| {
        place.start_command(&["bench", file.to_str().unwrap(), "--runs", "1000", "--seconds", seconds])
    };
    let interrupted = |run: common::Run| {
        run.signal(Signal::INT);
        run.wait().must_exit(130).must_say(&["interrupted"]);
        place.nothing_is_left();
    };
    let mut decoding = bench("3600");
    let folder = place.path("tmp");
    assert!(decoding.until("there is a folder", || fs::read_dir(&folder).unwrap().next().is_some()));
    interrupted(decoding);
    let mut inferring = bench("4");
    let pid = inferring.pid();
    assert!(inferring.until("a worker lives", || !chaos::workers_of(pid).is_empty()));
    interrupted(inferring);
    let mut running = bench("0.05");
    let said = running.stderr();
    assert!(running.until("runs began", || fs::read_to_string(&said).unwrap().contains("round 2 of")));
    interrupted(running);
}

/// A benchmark whose parts take turns.
fn parts_take_turns(place: &Workplace) -> common::Run {
    let file = place.workflow();
    let mut run =
        place.start_command(&["bench", file.to_str().unwrap(), "--runs", "1000", "--seconds", "0.05"]);
    assert!(run.until_it_says("round 2 of"));
    run
}

#[test]
fn nobody_stays_stopped_when_a_measurement_is_killed() {
    let place = blocks();
    let run = parts_take_turns(&place);
    run.signal(Signal::KILL);
    run.wait();
    place.no_process_is_left();
}

#[test]
fn a_part_that_dies_ends_the_measurement_with_its_reason() {
    let place = blocks();
    let mut run = parts_take_turns(&place);
    let (pid, said) = (run.pid(), run.stderr());
    // One that has told what it found dies unnoticed, and between two rounds there is none.
    assert!(run.until("a part is missed", || {
        let parts = processes::child_ids(pid).into_iter();
        for part in parts.filter_map(|part| Pid::from_raw(part.cast_signed())).take(1) {
            let _ = kill_process(part, Signal::KILL);
        }
        fs::read_to_string(&said).unwrap().contains("killed by signal 9")
    }));
    run.wait().must_exit(75).must_say(&["killed by signal 9"]);
    place.nothing_is_left();
}

#[test]
fn the_patch_of_the_tuning_applies_and_is_a_good_file() {
    let place = blocks();
    let before = fs::read_to_string(place.workflow()).unwrap();
    let mut arguments = SHORT.to_vec();
    arguments.extend(["--tune", "--trials", "2", "--json"]);
    let report = json(&bench(&place, &place.workflow(), &arguments));
    assert_eq!(fs::read_to_string(place.workflow()).unwrap(), before, "the file itself is never edited");
    let trials = report["tune"]["trials"].as_array().unwrap();
    assert!(!trials.is_empty() && trials.len() <= 2, "{report}");
    let settings = report["tune"]["settings"].as_array().unwrap();
    let patch = report["patch"].as_str().unwrap();
    assert_eq!(settings.is_empty(), patch.is_empty(), "{report}");
    // What is better here is for this machine to say; the patch of a change that is sure is looked at all the same.
    let sure = orchestra_bench::edited(&before, &[("stages.read.batch.max".to_owned(), 4)]).unwrap();
    let sure = orchestra_bench::unified_diff("workflow.toml", &before, &sure);
    for patch in [patch, &sure].into_iter().filter(|p| !p.is_empty()) {
        fs::write(place.workflow(), &before).unwrap();
        fs::write(place.path("tuned.patch"), patch).unwrap();
        let folder = place.path("");
        let applied = Command::new("git").args(["apply", "-p0", "tuned.patch"]).current_dir(&folder).output();
        let applied = applied.unwrap();
        assert!(applied.status.success(), "{patch}\n{}", String::from_utf8_lossy(&applied.stderr));
        assert_ne!(fs::read_to_string(place.workflow()).unwrap(), before);
        place.start_command(&["check", place.workflow().to_str().unwrap()]).wait().must_exit(0);
    }
    place.nothing_is_left();
}

#[test]
fn the_workflow_file_is_read_once_for_all_parts_and_trials() {
    let place = blocks();
    let (pipe, rubbish) = (place.path("pipe.toml"), place.path("rubbish"));
    fs::write(&rubbish, "this is no workflow").unwrap();
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (text, file) = (fs::read_to_string(place.workflow()).unwrap(), pipe.clone());
    let writing = std::thread::spawn(move || {
        // Opened as soon as somebody reads, who sees the end of it when whatever opens the file anew reads rubbish.
        let mut open = fs::OpenOptions::new().write(true).open(&file).unwrap();
        open.write_all(text.as_bytes()).unwrap();
        fs::rename(&rubbish, &file).unwrap();
    });
    let mut arguments = SHORT.to_vec();
    arguments.extend(["--tune", "--trials", "1", "--json"]);
    let report = json(&bench(&place, &pipe, &arguments));
    assert_eq!((&report["items"], report["tune"]["trials"][0]["tried"].is_null()), (&40.into(), false));
    writing.join().unwrap();
    place.nothing_is_left();
}

#[test]
fn rungs_are_the_ladder_and_each_has_a_rate() {
    let place = Workplace::new();
    let rungs = ["--rungs", "--seconds", "0.05", "--set", "stages.classify.batch.max=6", "--json"];
    let report = json(&bench(&place, &example(), &rungs));
    assert_eq!(report["workflow"], "digits");
    let rungs = report["rungs"].as_array().unwrap();
    let sizes: Vec<u64> = rungs.iter().map(|r| r["batch"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 2, 4, 6]);
    for rung in rungs {
        assert_eq!(rung["stage"], "classify");
        assert!(number(&rung["items_per_second"]) > 0.0 && number(&rung["workers"]) >= 1.0, "{rung}");
        let (first, median) = (number(&rung["first_batch_seconds"]), number(&rung["median_batch_seconds"]));
        assert!(first > 0.0 && median > 0.0 && number(&rung["switched_batch_seconds"]) > 0.0, "{rung}");
    }
    place.nothing_is_left();
}
