//! Commands and items of one file: sources that use what a command has made, and commands that use what a sink has written. Each command is done
//! once and each item has one record, whatever is killed between them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Workplace, json_lines, python_env, repository};
use rustix::process::Signal;
use serde_json::Value;

/// Each command makes its output as the last step, once, and what asks it to end comes before or behind that.
const FILE: &str = r#"version = 1
name = "joined"

[tasks.prepare]
command = '''
cp rows.jsonl {output}/rows.jsonl
trap '' TERM
mkdir {output}/done || exit 8
echo prepare >> ran
'''
inputs = "rows.jsonl"
outputs = "{output}/done"

[tasks.apart]
command = "echo apart >> ran"

[tasks.upload]
command = '''
cp {sinks.results.path} {output}/copy
trap '' TERM
echo upload >> ran
'''
outputs = "{output}/copy"
"#;

/// What reads the rows of `prepare`, and writes twice the number of each.
pub const ITEMS: &str = r#"
[sources.rows]
kind = "jsonl"
paths = ["{tasks.prepare.output}/*.jsonl"]
[sources.rows.columns]
n = "f32"

[stages.twice]
kind = "select"
from = "rows"
columns = { m = "n * 2" }

[sinks.results]
kind = "jsonl"
from = "twice"
"#;

fn file() -> String {
    format!("{FILE}{ITEMS}")
}

pub fn place(text: &str, rows: &str) -> Workplace {
    let place = Workplace::of(text);
    fs::write(place.path("rows.jsonl"), rows).unwrap();
    place
}

pub fn rows(n: u64) -> String {
    (0..n).map(|n| format!("{{\"n\": {n}}}\n")).collect()
}

fn ran(place: &Workplace) -> Vec<String> {
    let mut ran: Vec<String> =
        fs::read_to_string(place.path("ran")).unwrap_or_default().lines().map(str::to_owned).collect();
    ran.sort();
    ran
}

/// Each row has one record, with twice its number.
#[track_caller]
pub fn holds_all(file: &Path, n: u64) {
    let mut seen = BTreeSet::new();
    for record in json_lines(file) {
        let index = record["index"].as_u64().unwrap();
        assert_eq!(record["result"]["m"].as_f64(), Some(2.0 * index as f64), "{record}");
        assert!(seen.insert(index), "two records for {index}");
    }
    assert_eq!(seen, (0..n).collect());
}

#[test]
fn a_source_reads_what_a_command_has_made_and_a_command_what_a_sink_has_written() {
    let place = place(&file(), &rows(20));
    let later = "source `rows` uses values of `prepare`";
    for command in ["check", "plan", "tasks"] {
        place.on_file(command, &[]).must_exit(0).must_print(&[later]);
    }
    place.on_file("graph", &[]).must_exit(75).must_say(&[later]);
    place
        .run(&[])
        .must_exit(0)
        .must_say(&["joined finished: 20 items read, 20 done, 0 failed", "3 tasks, 3 done, 0 failed"]);
    holds_all(&place.out().join("results.jsonl"), 20);
    holds_all(&place.out().join("tasks/upload/output/copy"), 20);
    assert_eq!(ran(&place), ["apart", "prepare", "upload"]);
    let report = place.report();
    for task in ["prepare", "apart", "upload"] {
        assert_eq!(
            (&place.tasks()[task]["state"], &place.tasks()[task]["before"]),
            (&"done".into(), &false.into())
        );
    }
    assert_eq!(report["pipelines"]["rows"]["end"], "complete");
    place.on_out("verify", &[]).must_exit(0);
    place.on_file("graph", &[]).must_exit(0);
    let run_id = report["run_id"].clone();
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do: 20 items read"]);
    assert_eq!((ran(&place).len(), &place.report()["run_id"]), (3, &run_id));
    // More rows: those that have records were read from what `prepare` had made before.
    fs::write(place.path("rows.jsonl"), rows(30)).unwrap();
    place.edit("mkdir {output}/done || exit 8", "mkdir -p {output}/done");
    for _ in 0..2 {
        let made_anew = "the output of `prepare` for source `rows` changed";
        place.run(&[]).must_exit(78).must_say(&[made_anew, "--fresh", "discards 20 finished items"]);
        holds_all(&place.out().join("results.jsonl"), 20);
    }
    place.run(&["--fresh"]).must_exit(0).must_say(&["30 items read, 30 done, 0 failed"]);
    holds_all(&place.out().join("tasks/upload/output/copy"), 30);
    assert_ne!(place.report()["run_id"], run_id);
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do: 30 items read"]);
    // A file that no run wrote is in the way of a sink that the first part does not know.
    let second = place.path("second");
    fs::create_dir(&second).unwrap();
    fs::write(second.join("results.jsonl"), "not ours\n").unwrap();
    let output = ["--output", second.to_str().unwrap()];
    place.run(&output).must_exit(78).must_say(&["results.jsonl", "--fresh"]);
    place.run(&[&output[..], &["--fresh"]].concat()).must_exit(0).must_say(&["30 items read, 30 done"]);
    holds_all(&second.join("results.jsonl"), 30);
    place.no_process_is_left();
}

#[test]
fn a_command_may_make_anew_what_no_record_was_made_of() {
    let place = place(&file(), "");
    place.edit("mkdir {output}/done || exit 8", "mkdir -p {output}/done");
    place.run(&[]).must_exit(0).must_say(&["0 items read"]);
    fs::write(place.path("rows.jsonl"), rows(9)).unwrap();
    place.run(&[]).must_exit(0).must_say(&["9 items read, 9 done, 0 failed"]);
    holds_all(&place.out().join("tasks/upload/output/copy"), 9);
    place.run(&["--dry-run"]).must_exit(0).must_print(&["done unless items are new"]);
    place.run(&["--dry-run", "--fresh"]).must_exit(0).must_print(&["3 tasks would run"]);
}

#[test]
fn a_run_that_is_interrupted_between_its_parts_goes_on_where_it_was() {
    let manifest = file().replace(
        "paths = [\"{tasks.prepare.output}/*.jsonl\"]",
        "manifest = \"list.csv\"\nroot = \"{tasks.prepare.output}\"",
    );
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let place = place(&manifest, &rows(9));
        // No process writes to it: the second part waits for its list.
        let list = place.path("list.csv");
        assert!(Command::new("mkfifo").arg(&list).status().unwrap().success());
        let mut run = place.start(&[]);
        run.must_reach("the first part is over", || place.out().join("run.json").exists());
        run.signal(signal);
        let ended = run.wait();
        if signal != Signal::KILL {
            ended.must_exit(130).must_say(&["interrupted", "again to go on"]);
        }
        place.no_process_is_left();
        let report = place.report();
        assert_eq!((&report["exit_code"], &place.tasks()["prepare"]["state"]), (&130.into(), &"done".into()));
        assert!(!place.out().join("results.jsonl").exists() || place.n_results() == 0);
        fs::remove_file(&list).unwrap();
        fs::write(&list, "file\nrows.jsonl\n").unwrap();
        place.run(&[]).must_exit(0).must_say(&["9 items read, 9 done, 0 failed"]);
        holds_all(&place.out().join("results.jsonl"), 9);
        assert_eq!(ran(&place).iter().filter(|task| *task == "prepare").count(), 1);
    }
}

#[test]
fn where_a_command_fails_whose_values_are_used_nothing_of_the_items_starts_and_all_else_runs() {
    let place = place(&file(), &rows(3));
    place.edit("mkdir {output}/done || exit 8", "test -e good || exit 8; mkdir {output}/done");
    place.run(&[]).must_exit(65).must_say(&[
        "joined stopped: 3 tasks, 1 done, 1 failed, 1 skipped",
        "pipelines not started: `rows`, because task `prepare` has failed",
        "prepare: the command ended with code 8",
    ]);
    let report = place.report();
    assert_eq!(
        (&report["exit_code"], &report["pipelines"]["rows"]["end"]),
        (&65.into(), &"not started".into())
    );
    assert_eq!(place.tasks()["prepare"]["attempts"], 1);
    assert_eq!(
        place.tasks()["upload"]["why"],
        "was not started, because the sources, stages and sinks of the file were not started"
    );
    assert_eq!(ran(&place), ["apart"]);
    fs::write(place.path("good"), "").unwrap();
    place.run(&[]).must_exit(0).must_say(&["3 items read, 3 done, 0 failed"]);
    assert_eq!(ran(&place), ["apart", "prepare", "upload"]);
    place.nothing_is_left();
}

#[test]
fn what_is_wrong_is_told_with_its_place_early_or_late() {
    let place = place(&file(), "");
    place.edit("{tasks.prepare.output}/*.jsonl", "{tasks.prepare.output}/*.txt");
    place.run(&[]).must_exit(78).must_say(&["workflow.toml:27:10", "*.txt"]);
    assert_eq!(ran(&place), ["prepare"], "what was done before counts");
    let report = place.report();
    assert_eq!((&report["exit_code"], &place.tasks()["prepare"]["state"]), (&78.into(), &"done".into()));
    assert_eq!(report["pipelines"]["rows"]["end"], "not started");
    place.edit("{tasks.prepare.output}/*.txt", "{tasks.prepair.output}/*.jsonl");
    place.run(&[]).must_exit(78).must_say(&[
        "workflow.toml:27:10",
        "there is no task `prepair`",
        "`prepare`",
    ]);
    place.edit("{tasks.prepair.output}/*.jsonl", "{tasks.upload.output}/*.jsonl");
    let circle =
        "task `upload` comes after sink `results`, so no source, model, stage or sink can use its values";
    place.run(&[]).must_exit(78).must_say(&["workflow.toml:27:10", circle]);
}

#[test]
fn items_that_fail_hold_no_command_and_a_command_alone_brings_what_it_comes_after() {
    let place = place(&file(), &(rows(4) + "{\"n\": \"no number\"}\n"));
    place.run(&["--only", "prepare"]).must_exit(0).must_say(&["1 task, 1 done"]);
    assert_eq!(ran(&place), ["prepare"]);
    assert!(!place.out().join("results.jsonl").exists());
    place
        .run(&["--only", "upload"])
        .must_exit(65)
        .must_say(&["5 items read, 4 done, 1 failed", "1 task, 1 done"]);
    assert_eq!(ran(&place), ["prepare", "upload"]);
    holds_all(&place.out().join("tasks/upload/output/copy"), 4);
    place.run(&[]).must_exit(65).must_say(&["3 tasks, 3 done (2 before this start)"]);
    assert_eq!(ran(&place), ["apart", "prepare", "upload"]);
}

#[test]
fn a_folder_that_is_moved_goes_on_where_it_was() {
    let place = place(&file(), &rows(20));
    let folder = |name: &str| place.path(name);
    fs::create_dir(folder("here")).unwrap();
    for file in ["workflow.toml", "rows.jsonl"] {
        fs::rename(place.path(file), folder("here").join(file)).unwrap();
    }
    let run = |name: &str| {
        let file = folder(name).join("workflow.toml");
        place.command(&["run", file.to_str().unwrap()])
    };
    let report = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(folder(name).join("out/run.json")).unwrap()).unwrap()
    };
    run("here").must_exit(0).must_say(&["20 items read, 20 done, 0 failed"]);
    let run_id = report("here")["run_id"].clone();
    // It ends with the name of another folder, too.
    fs::rename(folder("here"), folder("there-here")).unwrap();
    let moved = "there-here";
    run(moved).must_exit(0).must_say(&["nothing is left to do: 20 items read"]);
    assert_eq!(report(moved)["run_id"], run_id);
    let ran = || fs::read_to_string(folder(moved).join("ran")).unwrap();
    assert_eq!(ran().lines().count(), 3);
    // What is changed there runs again.
    let file = folder(moved).join("workflow.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("echo upload >> ran", "echo upload again >> ran")).unwrap();
    run(moved).must_exit(0).must_say(&["3 tasks, 3 done"]);
    assert!(ran().ends_with("upload again\n") && ran().lines().count() == 4, "{}", ran());
    holds_all(&folder(moved).join("out/tasks/upload/output/copy"), 20);
    place.no_process_is_left();
}

/// Runs an example and its check into a folder of this test; its `run.json`.
#[track_caller]
fn example(name: &str, code: i32, says: &[&str], checked: &str) -> Option<Value> {
    let python = python_env("reference")?;
    let bin = Path::new(&python).parent().unwrap().display();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let place = Workplace::new();
    let folder = repository().join("examples").join(name);
    let (file, out) = (folder.join("workflow.toml"), place.out());
    let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    place.start_command_with(&arguments, &[("PATH", &path)]).wait().must_exit(code).must_say(says);
    let check = Command::new("python3")
        .arg(folder.join("check.py"))
        .arg("--output")
        .arg(&out)
        .env("PATH", path)
        .output();
    let said = String::from_utf8(check.unwrap().stdout).unwrap();
    assert!(said.contains(checked), "{said}");
    place.no_process_is_left();
    Some(place.report())
}

#[test]
fn the_best_of_the_trained_models_reads_digits_in_the_same_run() {
    let says = [
        "100 items read, 100 done, 0 failed",
        "train[lr=10000]: the command ended with code 1: the loss is no number",
        "  metrics   train[lr=0.01]: loss ",
        "            train[lr=0.1]: loss ",
        "            train[lr=0.5]: loss ",
        "            train[lr=10000]: loss ",
    ];
    let Some(report) = example("train-many", 65, &says, "the best of 3 models read 100 held-out images")
    else {
        return;
    };
    let places = report["tasks"].as_array().unwrap().iter().map(|task| task["place"].as_str().unwrap());
    let mut places: Vec<&str> = places.collect();
    places.sort_unstable();
    // Where there are GPUs, commands wait for these.
    if places.iter().any(|place| place.contains("cuda")) {
        let has_one = |place: &&str| place.starts_with("slot ") && place.matches("cuda:").count() == 1;
        assert!(places.len() == 4 && places.iter().all(has_one), "{places:?}");
    } else {
        assert_eq!(places, ["slot 0", "slot 1", "slot 2", "slot 3"]);
    }
}

#[test]
fn the_best_of_three_different_trainings_reads_digits_in_the_same_run() {
    let says = [
        "5 tasks, 5 done, 0 failed",
        "  metrics   mlp[width=16]: loss ",
        "            mlp[width=48]: loss ",
        "            svm: hinge ",
        "            means: far ",
        "  best      winner: ",
    ];
    example("train-zoo", 0, &says, "is the best of 4 models, and read 50 images");
}

#[test]
fn what_was_prepared_is_trained_with_inferred_from_and_uploaded() {
    example("prepare-train-infer", 0, &["3 tasks, 3 done, 0 failed"], "100 records in the bucket");
}

#[test]
fn a_task_that_failed_before_the_items_were_planned_counts_with_only_too_and_its_table_has_a_best() {
    let text = r#"version = 1
[tasks.train]
command = "test {lr} != 1 || exit 3; echo loss={lr}; echo '{\"n\": {lr}}' > {output}/rows.jsonl"
matrix = { lr = [1, 2, 3] }
metrics = [{ name = "loss", regex = 'loss=(\S+)' }]
best = { metric = "loss", goal = "min" }
[tasks.apart]
command = "echo apart >> ran"
[tasks.upload]
command = "cp {sinks.results.path} {output}/copy"
"#;
    let place = place(&format!("{text}{}", ITEMS.replace("prepare", "train.best")), "");
    place.run(&["--only", "upload"]).must_exit(65).must_say(&["train[lr=1]", "1 failed"]);
    assert_eq!(ran(&place), [""; 0]);
    let copy = fs::read_to_string(place.out().join("tasks/upload/output/copy")).unwrap();
    assert!(copy.contains("\"m\":4"), "{copy}");
    let tasks = place.report()["tasks"].as_array().unwrap().clone();
    assert!(
        tasks.iter().any(|task| task["task"] == "train[lr=1]" && task["state"] == "failed"),
        "{tasks:#?}"
    );
}
