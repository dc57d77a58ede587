//! What commands say of themselves: numbers in their lines, and which of them is the best.

use std::fs;

use crate::common::Workplace;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The tasks as `orchestra tasks` tells them, without a run.
fn listed(place: &Workplace, more: &[&str]) -> String {
    let file = place.workflow();
    let ended = place.command(&[&["tasks", file.to_str().unwrap()], more].concat()).exited(0);
    ended.stdout
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
    assert_eq!(place.tasks()["train[n=2]"]["best"], true);
    assert_eq!(place.tasks()["train[n=3]"]["best"], false);
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
    assert!(publish["why"].as_str().unwrap().contains("no task of `train` has ended well"), "{publish}");
}
