//! What commands say of themselves: numbers in their lines, and which of them is the best.

use std::fs;

use crate::common::{Workplace, json_lines};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The tasks as `orchestra tasks` tells them, without a run.
fn listed(place: &Workplace, more: &[&str]) -> String {
    place.on_file("tasks", more).exited(0).stdout
}

fn known(place: &Workplace) -> Value {
    serde_json::from_str(&listed(place, &["--json"])).unwrap()
}

#[test]
fn numbers_are_read_from_lines_and_are_in_all_reports() {
    let place = Workplace::with_slots(
        1,
        r#"
[tasks.train]
command = '''
echo 'epoch 1: loss=0.5'
echo '{"acc": 0.25, "lr": 1, "loss": "none"}'
printf 'epoch 2: loss=2.5e-1\repoch 3: loss=1.0\n'
echo '{"acc": 0.75}' >&2
seq 1 100000
printf 'epoch 4: loss=0.75'
'''
metrics = [{ name = "loss", regex = 'loss=([-+0-9.e]+)' }, "acc", "never"]
"#,
    );
    place.run(&[]).must_exit(0);
    let loss = json!({ "last": 0.75, "min": 0.25, "max": 1.0, "count": 4 });
    let acc = json!({ "last": 0.75, "min": 0.25, "max": 0.75, "count": 2 });
    assert_eq!(place.tasks()["train"]["metrics"], json!({ "loss": loss, "acc": acc }));
    assert_eq!(known(&place)[0]["known"]["metrics"]["loss"], loss);
    let curves = json_lines(&place.out().join("tasks/train/attempt-1.metrics.jsonl"));
    let curve = |metric: &str| -> Vec<(u64, f64)> {
        let point = |line: &Value| Some((line["step"].as_u64().unwrap(), line[metric].as_f64()?));
        curves.iter().filter_map(point).collect()
    };
    assert_eq!(curve("loss"), [(1, 0.5), (3, 0.25), (4, 1.0), (6, 0.75)]);
    assert_eq!(curve("acc"), [(2, 0.25), (5, 0.75)]);
    assert!(curves.iter().all(|line| line["time_s"].as_f64().is_some_and(|time| time >= 0.0)));
    let listed = listed(&place, &[]);
    assert!(listed.contains("acc 0.7500, loss 0.7500"), "{listed}");
}

#[test]
fn numbers_of_a_command_outlive_the_run() {
    let place = Workplace::with_slots(
        1,
        "[tasks.train]\ncommand = \"trap '' TERM; echo loss=0.5; touch began; while ! test -e go; do sleep 0.05; done; echo loss=0.25; echo > {output}/model\"\n\
         outputs = \"{output}/model\"\ngrace = \"1h\"\nmetrics = [{ name = \"loss\", regex = \"loss=([0-9.]+)\" }]\n",
    );
    let mut run = place.start(&[]);
    run.must_reach("it has begun", || place.path("began").exists());
    run.signal(Signal::KILL);
    run.wait();
    fs::write(place.path("go"), "").unwrap();
    place.no_process_is_left();
    place.run(&[]).must_exit(0).must_say(&["1 task is done and unchanged, 0 left"]);
    let loss = &known(&place)[0]["known"]["metrics"]["loss"];
    assert_eq!(*loss, json!({ "last": 0.25, "min": 0.25, "max": 0.5, "count": 2 }));
    let curve = json_lines(&place.out().join("tasks/train/attempt-1.metrics.jsonl"));
    assert_eq!(curve.iter().map(|line| &line["loss"]).collect::<Vec<_>>(), [0.5, 0.25]);
}

const SWEEP: &str = r#"
[tasks.train]
command = "echo model {n} > {output}/model; echo loss=0.{n}; test {n} != 1 || test -e may"
matrix = { n = [3, 1, 2] }
metrics = [{ name = "loss", regex = 'loss=([0-9.]+)' }]
best = { metric = "loss", goal = "min" }

[tasks.publish]
command = "echo published >> ran; cp {tasks.train.best.output}/model published"
inputs = "{tasks.train.best.output}/model"
outputs = "published"
"#;

#[test]
fn a_later_task_takes_values_of_the_best_in_its_words_and_variables() {
    let later = r#"
[tasks.train]
command = "test {n} != 1 || test -e may || exit 3; echo loss=0.{n}"
for_each = "names.jsonl"
metrics = [{ name = "loss", regex = 'loss=([0-9.]+)' }]
best = { metric = "loss", goal = "min" }

[tasks.words]
command = ["sh", "-c", 'echo "$1,$2,$V" >> words', "sh", "n={tasks.train.best.n}.{tasks.train.best.n}", "{tasks.train.best.name}"]
env = { V = "<{tasks.train.best.name}>" }

[tasks.shell]
command = """
echo {tasks.train.best.name}x "{tasks.train.best.n}" {{tasks.train.best.n}} >> shell
"""
"#;
    let place = Workplace::with_slots(1, later);
    let rows = [(3, "a b"), (1, "it's $HOME"), (2, "{tasks.train.best.n}")];
    let rows = rows.map(|(n, name)| format!("{}\n", json!({ "n": n, "name": name })));
    fs::write(place.path("names.jsonl"), rows.concat()).unwrap();
    place.run(&[]).must_exit(65);
    let name = "{tasks.train.best.n}";
    assert_eq!(place.text("words"), format!("n=2.2,{name},<{name}>\n"));
    assert_eq!(place.text("shell"), format!("{name}x 2 {name}\n"));
    place.run(&[]).must_exit(65);
    assert_eq!(place.text("words").lines().count(), 1, "the same is best");
    // Another one is, and what takes values of it runs again.
    fs::write(place.path("may"), "").unwrap();
    place.run(&[]).must_exit(0);
    let home = "it's $HOME";
    assert!(place.text("words").ends_with(&format!("\nn=1.1,{home},<{home}>\n")), "{}", place.text("words"));
    assert!(place.text("shell").ends_with(&format!("\n{home}x 1 {name}\n")), "{}", place.text("shell"));
}

#[test]
fn a_later_task_takes_the_best_of_those_that_are_done_and_runs_again_when_another_is_best() {
    let place = Workplace::with_slots(1, SWEEP);
    let ran = || place.text("ran").lines().count();
    place.run(&[]).must_exit(65).must_say(&[
        "4 tasks, 3 done, 1 failed",
        "  metrics   train[n=3]: loss 0.3000\n            train[n=1]: loss 0.1000 (failed)\n            train[n=2]: loss 0.2000\n",
        "  best      train[n=2]: loss 0.2000",
    ]);
    assert_eq!(place.text("published"), "model 2\n", "the first is worse, the second has failed");
    assert_eq!(place.tasks()["train[n=2]"]["best"], json!(["tasks.train.best"]));
    assert_eq!(place.tasks()["train[n=3]"]["best"], json!([]));
    place.run(&[]).must_exit(65);
    assert_eq!(ran(), 1, "the same is best, whatever has failed again");
    fs::write(place.path("may"), "").unwrap();
    place.run(&[]).must_exit(0).must_say(&["train[n=1]: loss 0.1000"]);
    assert_eq!((place.text("published").as_str(), ran()), ("model 1\n", 2));
    place.write_slots(1, &SWEEP.replace("\"min\"", "\"max\""));
    place.run(&[]).must_exit(0);
    assert_eq!((place.text("published").as_str(), ran()), ("model 3\n", 3), "more is better now");
    assert_eq!(fs::read_to_string(place.out().join(".orchestra/best/train/model")).unwrap(), "model 3\n");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    place.on_out("verify", &[]).must_exit(0);
}

#[test]
fn where_none_has_the_metric_nothing_is_the_best() {
    let place = Workplace::with_slots(1, &SWEEP.replace("echo loss=0.{n}", "echo los=0.{n}"));
    place.run(&[]).must_exit(65);
    let publish = &place.tasks()["publish"];
    assert_eq!((&publish["state"], &publish["end"]), (&"failed".into(), &"missing".into()));
    assert!(publish["why"].as_str().unwrap().contains("there is no `tasks.train.best`"), "{publish}");
}

/// Two trainings with files and losses of their own, of which `mlp` has two settings. `value` says which of their values counts.
fn zoo(value: &str) -> String {
    format!(
        r#"
[tasks.mlp]
command = "cat mlp-{{n}}; echo mlp {{n}} > {{output}}/model"
matrix = {{ n = [1, 2] }}
metrics = ["val", "loss"]
inputs = "mlp-{{n}}"
outputs = {{ model = "{{output}}/model" }}

[tasks.svm]
command = "cat svm; echo svm > {{output}}/model"
metrics = ["val"]
inputs = "svm"
outputs = {{ model = "{{output}}/model" }}

[best.winner]
of = ["mlp", "svm"]
metric = "val"
goal = "max"
value = "{value}"

[tasks.publish]
command = "cat {{best.winner.model}} >> published; echo {{best.winner.task}} {{best.winner.val}} >> published"

[tasks.other]
command = ["sh", "-c", "echo $V $1 >> other", "sh", "{{tasks.svm.val}}"]
env = {{ V = "v={{tasks.mlp[n=1].val}}" }}
"#
    )
}

fn write_curve(place: &Workplace, file: &str, values: &[&str]) {
    let lines: String = values.iter().map(|value| format!("{{\"val\": {value}}}\n")).collect();
    fs::write(place.path(file), lines).unwrap();
}

fn zoo_of(value: &str, [one, two, svm]: [&[&str]; 3]) -> Workplace {
    let place = Workplace::with_slots(2, &zoo(value));
    [("mlp-1", one), ("mlp-2", two), ("svm", svm)]
        .iter()
        .for_each(|(file, of)| write_curve(&place, file, of));
    place
}

#[test]
fn the_best_of_several_tables_and_metrics_are_values_of_later_commands() {
    let place = zoo_of("last", [&["0.5", "0.9", "0.7"], &["0.25"], &["0.75"]]);
    place.run(&[]).must_exit(0).must_say(&[
        "  metrics   mlp[n=1]: val 0.7000 (best 0.9000)\n            mlp[n=2]: val 0.2500\n            svm: val 0.7500\n",
        "  best      winner: svm: val 0.7500",
    ]);
    assert_eq!(place.text("published"), "svm\nsvm 0.75\n");
    assert_eq!(place.text("other"), "v=0.7 0.75\n");
    assert_eq!(place.tasks()["svm"]["best"], json!(["best.winner"]));
    assert_eq!(place.tasks()["svm"]["goals"], json!({ "val": "max" }));
    assert!(listed(&place, &[]).contains("val 0.7000 (best 0.9000)"));
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    // What it takes has changed, though nothing else of it has.
    place.edit("value = \"last\"", "value = \"best\"");
    place.run(&[]).must_exit(0).must_say(&["winner: mlp[n=1]: val 0.7000 (best 0.9000)"]);
    assert_eq!(place.text("published"), "svm\nsvm 0.75\nmlp 1\nmlp[n=1] 0.9\n");
    assert_eq!(place.text("other").lines().count(), 1, "of the others nothing has");
    // A training that is done again says something else, so what takes its value runs again.
    write_curve(&place, "svm", &["1e-9"]);
    place.run(&[]).must_exit(0);
    assert!(place.text("other").ends_with("\nv=0.7 0.000000001\n"), "{}", place.text("other"));
    assert_eq!(place.text("published").lines().count(), 4, "the same is best");
    place.on_out("verify", &[]).must_exit(0);
}

#[test]
fn of_equals_the_first_is_best_and_what_is_no_finite_number_never_is() {
    let place = zoo_of("last", [&["NaN"], &["0.5"], &["0.5"]]);
    place.run(&[]).must_exit(65);
    assert_eq!(place.text("published"), "mlp 2\nmlp[n=2] 0.5\n");
    let other = &place.tasks()["other"];
    assert_eq!((&other["state"], &other["end"]), (&"failed".into(), &"missing".into()));
    let why = other["why"].as_str().unwrap();
    assert!(why.contains("`mlp[n=1]` has no finite value of its metric `val`"), "{why}");

    for (file, values) in [("mlp-1", "Infinity"), ("mlp-2", "-Infinity"), ("svm", "null")] {
        write_curve(&place, file, &[values]);
    }
    place.run(&["--fresh"]).must_exit(65);
    let why = place.tasks()["publish"]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("there is no `best.winner`: none of its tasks has ended well"), "{why}");
}

#[test]
fn where_all_of_several_tables_fail_nothing_is_the_best_of_them() {
    let place = zoo_of("last", [&["1"], &["2"], &["3"]]);
    place.edit("cat mlp-{n};", "cat mlp-{n}; exit 3;");
    place.run(&[]).must_exit(65);
    assert_eq!(place.text("published"), "svm\nsvm 3\n", "those of one table are left");
    place.edit("cat svm;", "cat svm; exit 3;");
    place.run(&["--fresh"]).must_exit(65);
    let tasks = place.tasks();
    assert_eq!((&tasks["publish"]["end"], &tasks["other"]["state"]), (&"missing".into(), &"skipped".into()));
}

#[test]
fn tables_of_items_take_metrics_as_numbers_and_in_texts() {
    let place = Workplace::with_slots(
        2,
        r#"
[tasks.count]
command = "cat count"
metrics = "n"
inputs = "count"

[tasks.judge]
command = "echo '{\"above\": {above}, \"score\": {score}}'"
matrix = { above = [5, 7], score = [1, 2] }
metrics = ["above", "score"]
best = { metric = "score", goal = "max" }

[sources.numbers]
kind = "range"
stop = "{tasks.count.n}"

[stages.large]
kind = "filter"
from = "numbers"
keep = "n > {tasks.judge.best.above}"

[sinks.results]
kind = "jsonl"
from = "large"
"#,
    );
    fs::write(place.path("count"), "{\"n\": 10}\n").unwrap();
    place.on_file("check", &[]).must_exit(0);
    place.run(&[]).must_exit(0).must_say(&["best      judge[above=5,score=2]: above 5, score 2"]);
    assert_eq!(place.n_results(), 4, "6, 7, 8 and 9");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    // What items were made of has another value: the records would not go together.
    fs::write(place.path("count"), "{\"n\": 12}\n").unwrap();
    place.run(&[]).must_exit(78);
    place.run(&["--fresh"]).must_exit(0);
    assert_eq!(place.n_results(), 6);
    fs::write(place.path("count"), "{\"n\": null}\n").unwrap();
    place.run(&["--fresh"]).must_exit(78).must_say(&["`{tasks.count.n}` has no value"]);
}
