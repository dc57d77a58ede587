//! `orchestra bench`: figures that agree with each other, errors as those of `run`, and nothing left behind. How fast this machine is, it
//! does not judge.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::{Blocks, Ended, Workplace, write_pictures};
use orchestra_testkit::models;
use orchestra_testkit::striker::{Fault, strike, workers_of};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
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
    // Long enough for a steady state, except on a machine that does 40,000 items within a second.
    let arguments = ["--runs", "2", "--seconds", "0.05", "--items", "40000", "--repeat", "100", "--json"];
    let report = json(&bench(&place, &example(), &arguments));
    assert_eq!(
        (&report["workflow"], &report["items"], &report["items_total"]),
        (&"digits".into(), &40_000.into(), &400.into())
    );
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    let too_short = report["too_short"].as_bool().unwrap();
    let mut of_rounds = [0.0; 2];
    let mut ratios = 0.0;
    for round in rounds {
        let [limit, run] = ["limit_items_per_second", "run_items_per_second"].map(|k| number(&round[k]));
        assert!(limit > 0.0 && run > 0.0, "{round}");
        // The median of two is their mean.
        of_rounds = [of_rounds[0] + limit / 2.0, of_rounds[1] + run / 2.0];
        match too_short {
            true => assert!(round["ratio"].is_null(), "{round}"),
            false => {
                assert!((number(&round["ratio"]) - run / limit).abs() < 1e-9, "{round}");
                ratios += number(&round["ratio"]) / 2.0;
            }
        }
    }
    for (name, mean) in ["limit_items_per_second", "run_items_per_second"].iter().zip(of_rounds) {
        let found = number(&report[name]);
        assert!((found - mean).abs() <= 1e-9 * mean, "{name}: {found}, not {mean}");
    }
    match too_short {
        true => assert!(report["ratio"].is_null() && report["ratio_spread"].is_null(), "{report}"),
        false => {
            assert!((number(&report["ratio"]) - ratios).abs() < 1e-9, "{report}");
            spread_is_in_order(&report["ratio_spread"]);
        }
    }
    let bottleneck = report["bottleneck"].as_str().unwrap();
    assert!(["loading", "inference", "cpu", "sinks", "overhead"].contains(&bottleneck), "{bottleneck}");
    assert_eq!(report["decode"][0]["source"], "scans");
    assert_eq!(
        (&report["infer"][0]["stage"], &report["infer"][0]["batch"]),
        (&"classify".into(), &64.into())
    );
    for part in [&report["decode"][0], &report["infer"][0]] {
        ["items_per_second", "core_seconds_per_item"].iter().for_each(|k| spread_is_in_order(&part[k]));
    }
    ["items_per_second", "seconds", "seconds_starting"]
        .iter()
        .for_each(|k| spread_is_in_order(&report["run"][k]));
    place.nothing_is_left();
}

#[test]
fn a_run_without_a_steady_state_has_no_ratio_but_a_way_to_have_one() {
    let place = Workplace::new();
    let repeat = |ended: &Ended| -> u64 {
        let said = ended.must_exit(0).stdout.split("`--repeat ").nth(1).unwrap_or_default();
        said.split('`').next().unwrap().parse().unwrap_or_else(|_| panic!("{}", ended.stdout))
    };
    let short = bench(&place, &example(), &SHORT);
    assert!(repeat(&short) > 1 && !short.stdout.contains("run / limit"), "{}", short.stdout);
    assert!(short.stdout.contains("too short "), "{}", short.stdout);
    let arguments = [&SHORT[..], &["--items", "20"]].concat();
    let few = bench(&place, &example(), &arguments);
    assert!(repeat(&few) > 1 && few.stdout.contains("without `--items`"), "{}", few.stdout);
    let arguments = [&SHORT[..], &["--items", "20", "--repeat", "1000000000"]].concat();
    let few = bench(&place, &example(), &arguments);
    assert!(few.stdout.contains("take `--items "), "{}", few.stdout);
    let report = json(&bench(&place, &example(), &[&SHORT[..], &["--items", "20", "--json"]].concat()));
    assert_eq!((&report["too_short"], &report["ratio"]), (&true.into(), &Value::Null));
    assert!(number(&report["items_needed"]) > 20.0, "{report}");
    place.nothing_is_left();
}

#[test]
fn the_table_says_what_was_measured_and_what_cannot_be_read() {
    let place = blocks();
    fs::write(place.images().join("broken.png"), "no picture").unwrap();
    let ended = bench(&place, &place.workflow(), &SHORT);
    ended.must_exit(0).must_say(&["running with all 41 items", "round 2 of 2: run"]);
    for part in [
        "blocks: 41 of 41 items",
        "decode scans",
        "stage read on cpu",
        "limit, set by cores",
        "run, from start",
    ] {
        assert!(ended.stdout.contains(part), "`{part}` is missing:\n{}", ended.stdout);
    }
    assert!(ended.stdout.contains("1 item of 41 cannot be read or decoded"), "{}", ended.stdout);
    assert!(!place.out().exists(), "the output folder of the workflow is not touched");
    place.nothing_is_left();
}

#[test]
fn the_models_of_several_branches_are_measured_each() {
    let place = Workplace::new();
    let guide = example().parent().unwrap().join("../../docs/guide/workflow-file.md");
    let guide = fs::read_to_string(guide).unwrap();
    let text = guide.split("```toml\n").find(|b| b.contains("name = \"two-models\"")).unwrap();
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
    let mut decoding = bench("3600");
    let folder = place.path("tmp");
    assert!(decoding.until("there is a folder", || fs::read_dir(&folder).unwrap().next().is_some()));
    interrupted(decoding);
    let mut inferring = bench("4");
    assert!(inferring.until_it_says("round 1 of 1000: batches"));
    interrupted(inferring);
    let mut running = bench("0.05");
    assert!(running.until_it_says("round 2 of 1000: run"));
    interrupted(running);
}

#[test]
fn no_process_outlives_a_measurement_that_is_killed() {
    let place = blocks();
    let file = place.workflow();
    for part in ["batches", "run"] {
        let mut run =
            place.start_command(&["bench", file.to_str().unwrap(), "--runs", "1000", "--seconds", "0.05"]);
        assert!(run.until_it_says(&format!("round 2 of 1000: {part}")));
        run.signal(Signal::KILL);
        run.wait();
        place.no_process_is_left();
    }
}

#[test]
fn a_worker_that_dies_ends_the_measurement_with_its_reason() {
    let place = blocks();
    let file = place.workflow();
    let mut run =
        place.start_command(&["bench", file.to_str().unwrap(), "--batch-sizes", "--seconds", "3600"]);
    let pid = run.pid();
    // A worker that has just been started may not be struck yet, so that a second look may be needed.
    assert!(run.until("a worker is struck", || {
        let workers = workers_of(pid);
        workers.first().is_some_and(|worker| strike(pid, worker.pid, Fault::Kill))
    }));
    run.wait().must_exit(69).must_say(&["a worker of stage `read` on cpu ended unasked"]);
    place.nothing_is_left();
}

#[test]
fn the_workflow_file_is_read_once() {
    let place = blocks();
    let (pipe, rubbish) = (place.path("pipe.toml"), place.path("rubbish"));
    fs::write(&rubbish, "this is no workflow").unwrap();
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (text, file) = (fs::read_to_string(place.workflow()).unwrap(), pipe.clone());
    let writing = std::thread::spawn(move || {
        // It opens when the command opens the pipe to read. The command has the whole text once `open` is dropped; what opens the path from
        // then on reads rubbish.
        let mut open = fs::OpenOptions::new().write(true).open(&file).unwrap();
        open.write_all(text.as_bytes()).unwrap();
        fs::rename(&rubbish, &file).unwrap();
    });
    let report = json(&bench(&place, &pipe, &[&SHORT[..], &["--json"]].concat()));
    assert_eq!((&report["items"], report["rounds"].as_array().unwrap().len()), (&40.into(), 2));
    writing.join().unwrap();
    place.nothing_is_left();
}

#[test]
fn each_batch_size_up_to_the_largest_has_a_rate() {
    let place = Workplace::new();
    let args = ["--batch-sizes", "--seconds", "0.05", "--set", "stages.classify.batch.max=6", "--json"];
    let report = json(&bench(&place, &example(), &args));
    assert_eq!(report["workflow"], "digits");
    let measured = report["batch_sizes"].as_array().unwrap();
    let sizes: Vec<u64> = measured.iter().map(|r| r["batch"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 2, 4, 6]);
    for size in measured {
        assert_eq!(size["stage"], "classify");
        assert!(number(&size["items_per_second"]) > 0.0 && number(&size["workers"]) >= 1.0, "{size}");
        let (first, median) = (number(&size["first_batch_seconds"]), number(&size["median_batch_seconds"]));
        assert!(first > 0.0 && median > 0.0 && number(&size["switched_batch_seconds"]) > 0.0, "{size}");
        let busy = number(&size["device_busy"]);
        assert!((0.0..1.5).contains(&busy), "{size}");
    }
    let named = |sizes: &'static str| {
        let of = ["--seconds", "0.05", "--set", "stages.classify.batch.max=6", sizes];
        bench(&place, &example(), &[&of[..], &["--json"]].concat())
    };
    let report = json(&named("--batch-sizes=6,2"));
    let sizes: Vec<&Value> = report["batch_sizes"].as_array().unwrap().iter().map(|r| &r["batch"]).collect();
    assert_eq!(sizes, [6, 2]);
    // A worker has as long to load as in a run.
    let late = bench(&place, &example(), &["--batch-sizes", "--set", "limits.load_timeout=1ms"]);
    let why = &late.must_exit(69).stderr;
    assert!(why.contains("gave no answer within 1ms"), "{why}");
    let refused = named("--batch-sizes=7");
    let why = &refused.must_exit(2).stderr;
    assert!(why.contains("`7`") && why.contains("up to `6` rows") && why.contains("`batch.max`"), "{why}");
    place.nothing_is_left();
}
