//! Commands and items of one file while the run and the keepers of its commands are killed: each command that says by an output that it is done is
//! done once, and each row that the first one makes has one record, of which the last one has a copy. What a training has said of itself is known, and
//! that it is the best.

use std::fs;
use std::path::PathBuf;

use super::Moment::{Ending, MidBatch, Reading};
use super::judge::is_verified;
use super::{ALL, row};
use crate::common::{Ended, Run, Workplace, json_lines};
use crate::late::{self, holds_all};
use crate::part_kills::kill_at;
use orchestra_testkit::size::storm;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const ROWS: u64 = 5_000;

/// Each command notes its keeper and waits until it may go on. The first makes its output as the last step, once, and what asks it to end comes
/// before or behind that.
const FILE: &str = r#"version = 1
[devices]
slots = 4

[tasks.prepare]
command = '''
echo $PPID > {output}/next; mv {output}/next keeper-prepare
until test -e go-prepare; do sleep 0.01; done
cp rows.jsonl {output}/rows.jsonl
trap '' TERM
mkdir {output}/done || exit 8
echo prepare >> ran
'''
outputs = "{output}/done"
retries = { signal = 1 }

[tasks.apart]
command = '''
echo $PPID > {output}/next; mv {output}/next keeper-apart
until test -e go-apart; do sleep 0.01; done
echo apart >> ran
'''
retries = { signal = 1 }

[tasks.train]
command = '''
echo '{"loss": 0.25}'
echo $PPID > {output}/next; mv {output}/next keeper-train
until test -e go-train; do sleep 0.01; done
echo '{"loss": 0.75}'
trap '' TERM
echo model > {output}/model
'''
metrics = "loss"
outputs = { model = "{output}/model" }
retries = { signal = 1 }

[best.winner]
of = "train"
metric = "loss"
goal = "min"
value = "best"

[tasks.upload]
command = '''
echo $PPID > {output}/next; mv {output}/next keeper-upload
until test -e go-upload; do sleep 0.01; done
cp {sinks.results.path} {output}/copy
echo {best.winner.task} {best.winner.loss} $(cat {best.winner.model}) > {output}/best
'''
outputs = ["{output}/copy", "{output}/best"]
retries = { signal = 1 }
"#;

fn place() -> Workplace {
    late::place(&format!("{FILE}{}", late::ITEMS), &late::rows(ROWS))
}

/// Waits until the command is at work.
#[track_caller]
fn is_at_work(run: &mut Run, place: &Workplace, command: &str) {
    let keeper = place.path(&format!("keeper-{command}"));
    run.must_reach("the command is at work", || keeper.exists());
}

fn may_go_on(place: &Workplace, command: &str) {
    fs::write(place.path(&format!("go-{command}")), "").unwrap();
}

fn curves(place: &Workplace, attempt: u64) -> PathBuf {
    place.out().join(format!("tasks/train/attempt-{attempt}.metrics.jsonl"))
}

/// The losses of an attempt, as its file has them.
fn curve(place: &Workplace, attempt: u64) -> Vec<f64> {
    json_lines(&curves(place, attempt)).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

#[track_caller]
fn assert_exact(place: &Workplace) {
    let train = &place.tasks()["train"];
    assert_eq!(curve(place, train["attempts"].as_u64().unwrap()), [0.25, 0.75]);
    assert_eq!(train["metrics"]["loss"], json!({ "last": 0.75, "min": 0.25, "max": 0.75, "count": 2 }));
    assert_eq!(train["best"], json!(["best.winner"]));
    let best = fs::read_to_string(place.out().join("tasks/upload/output/best")).unwrap();
    assert_eq!(best, "train 0.25 model\n");
    holds_all(&place.out().join("results.jsonl"), ROWS);
    holds_all(&place.out().join("tasks/upload/output/copy"), ROWS);
    let ran = || fs::read_to_string(place.path("ran")).unwrap();
    assert_eq!(ran().lines().filter(|task| *task == "prepare").count(), 1);
    is_verified(place, ROWS);
    place.nothing_is_left();
    let before = ran();
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    assert_eq!(ran(), before);
}

#[test]
fn each_command_is_done_once_and_each_row_has_one_record_whenever_keepers_are_killed() {
    assert_eq!(row("tasks").keeper.moments, [Reading, MidBatch, Ending]);
    let place = place();
    let mut run = place.start(&[]);
    for command in ["prepare", "apart", "train", "upload"] {
        is_at_work(&mut run, &place, command);
        let file = place.path(&format!("keeper-{command}"));
        let keeper: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        fs::remove_file(file).unwrap();
        kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
        is_at_work(&mut run, &place, command);
        may_go_on(&place, command);
    }
    run.wait().must_exit(0).must_say(&["the command is tried again", "4 tasks, 4 done"]);
    let tasks = place.report()["tasks"].as_array().unwrap().clone();
    assert!(tasks.iter().all(|task| task["attempts"] == 2), "{tasks:?}");
    assert_exact(&place);
}

#[test]
fn each_command_is_done_once_and_each_row_has_one_record_whenever_the_run_is_killed() {
    let _turn = storm();
    assert_eq!(row("tasks").parent.moments, ALL.moments);
    let Some((_folder, library)) = kill_at() else { return };
    let place = place();
    let killed = |ended: Ended| {
        assert_eq!(ended.status.code(), None, "it was not killed:\n{}", ended.stderr);
        place.no_process_is_left();
    };
    let kill_when = |what: &str, reached: &dyn Fn() -> bool| {
        let mut run = place.start(&[]);
        run.must_reach(what, reached);
        run.signal(Signal::KILL);
        killed(run.wait());
    };
    let list = place.out().join(".orchestra/items-rows");
    kill_when("the first command is at work", &|| place.path("keeper-prepare").exists());
    may_go_on(&place, "prepare");
    kill_when("the first command is done", &|| place.out().join("tasks/prepare/output/done").exists());
    kill_when("what it made is listed", &|| list.exists());
    for moment in ["counting", "counted"] {
        let at = [("LD_PRELOAD", &*library), ("KILL_AT", moment), ("KILL_AT_NAME", ""), ("KILL_AT_NTH", "2")];
        killed(place.run_with(&at));
    }
    drop(fs::remove_file(place.path("keeper-train")));
    kill_when("a training is at work", &|| place.path("keeper-train").exists());
    // An attempt whose start was noted and whose keeper was not there yet has no file.
    let begun = (1..100).rev().find(|attempt| curves(&place, *attempt).exists()).unwrap();
    assert_eq!(curve(&place, begun), [0.25], "its keeper has outlived the run");
    may_go_on(&place, "train");
    kill_when("the last command is at work", &|| place.path("keeper-upload").exists());
    may_go_on(&place, "apart");
    may_go_on(&place, "upload");
    for moment in ["before", "named"] {
        let at = [("LD_PRELOAD", &*library), ("KILL_AT", moment), ("KILL_AT_NAME", "/run.json")];
        killed(place.run_with(&at));
    }
    place.run(&[]).must_exit(0);
    assert_exact(&place);
}
