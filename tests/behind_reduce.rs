//! Stages behind a reduce work on each of its rows once, wherever the run is killed, and on none before all items have ended. `kills.rs` kills their workers.

use std::fs;

use crate::common::Workplace;
use crate::part_kills::kill_at;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

const ROWS: u64 = 40;

/// Totals, what is made of them, and a command behind that. Of the rows `bad` fail.
fn place(bad: u64) -> Workplace {
    let place = Workplace::new();
    let good: String = (0..ROWS - bad).map(|x| format!("{{\"x\": {x}}}\n")).collect();
    let bad: String = (0..bad).map(|_| "{\"x\": \"none\"}\n").collect();
    fs::write(place.path("rows.jsonl"), bad + &good).unwrap();
    let flow = WorkflowFile::new()
        .source("n", "jsonl", "paths = ['rows.jsonl']\ncolumns = { x = 'i64' }")
        .stage("total", "reduce", "n", "op = 'sum'")
        .stage("doubled", "select", "total", "columns = { y = 'sum * 2' }")
        .stage("every", "reduce", "n", "op = 'concat'")
        .stage("each", "select", "every", "columns = { y = 'x * 2' }")
        .stage("again", "reduce", "each", "op = 'sum'")
        .stage("last", "select", "again", "columns = { y = 'sum' }");
    let sinks = [("doubled", "jsonl"), ("each", "jsonl"), ("last", "jsonl"), ("total", "jsonl")];
    let flow = sinks.into_iter().fold(flow, |flow, (name, kind)| flow.sink(name, kind, name));
    place.write(flow.to_string() + "[tasks.look]\ncommand = \"cp {sinks.doubled.path} seen\"\n");
    place
}

fn values(place: &Workplace, file: &str, column: &str) -> Vec<u64> {
    let value = |line: Value| line["result"][column].as_f64().unwrap() as u64;
    place.lines(file).into_iter().map(value).collect()
}

/// All is there once, of this many rows of which none has failed.
#[track_caller]
fn assert_exact(place: &Workplace, good: u64) {
    let total = good * (good - 1) / 2;
    assert_eq!(values(place, "total.jsonl", "sum"), [total]);
    assert_eq!(values(place, "doubled.jsonl", "y"), [2 * total]);
    assert_eq!(values(place, "last.jsonl", "y"), [2 * total]);
    let mut each = values(place, "each.jsonl", "y");
    each.sort_unstable();
    assert!(each.into_iter().eq((0..good).map(|x| 2 * x)));
    assert_eq!(fs::read(place.path("seen")).unwrap(), fs::read(place.out().join("doubled.jsonl")).unwrap());
    let sources = &place.report()["sources"];
    assert_eq!([&sources["total"], &sources["every"], &sources["again"]], [1, good, 1], "{sources}");
    place.on_out("verify", &[]).must_exit(0).must_print(&["0 lost, 0 doubled"]);
}

#[test]
fn a_run_that_is_killed_at_any_entry_of_its_journal_works_on_each_row_of_a_reduce_once() {
    let Some((_folder, library)) = kill_at() else { return };
    let at = |moment: &'static str, nth: &str| {
        [("LD_PRELOAD", &*library), ("KILL_AT", moment), ("KILL_AT_NAME", ""), ("KILL_AT_NTH", nth)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let killed = |place: &Workplace, moment, nth: u64| {
        let variables = at(moment, &nth.to_string());
        let variables = variables.each_ref().map(|(name, value)| (&**name, &**value));
        let ended = place.run_with(&variables);
        place.no_process_is_left();
        ended.status.code().is_none()
    };
    let mut n_kills = 0;
    for nth in 1.. {
        let place = place(0);
        let was_killed = killed(&place, "counting", nth);
        if was_killed {
            place.run(&[]).must_exit(0);
        }
        assert_exact(&place, ROWS);
        place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
        if !was_killed {
            break;
        }
        n_kills += 1;
    }
    assert!(n_kills >= 8, "{n_kills} kills");
    // Each start says that it goes on, and comes an entry further.
    let place = place(0);
    let starts = (1..).take_while(|_| killed(&place, "counted", 3)).count();
    assert!(starts >= 5, "{starts} starts");
    assert_exact(&place, ROWS);
}

#[test]
fn a_run_that_stops_with_the_last_item_leaves_what_is_behind_a_reduce_to_the_next_start() {
    let place = place(3);
    place.run(&["--set", "limits.max_failed=2"]).must_exit(65);
    // The limit stops the run while its last items end, or right after.
    let pipelines = &place.report()["pipelines"];
    assert!(["total", "every"].iter().all(|name| pipelines[name]["end"] != "complete"), "{pipelines}");
    assert_eq!(pipelines["again"]["end"], "not started", "{pipelines}");
    assert_eq!(values(&place, "doubled.jsonl", "y"), [0; 0]);
    place.run(&["--set", "limits.max_failed=100"]).must_exit(65).must_say(&["1 task, 1 done"]);
    assert_exact(&place, ROWS - 3);
}

#[test]
fn a_row_of_a_reduce_fails_alone_and_is_tried_again() {
    let place = place(0);
    place.edit("'sum * 2'", "'(sum - 780) / (sum - 780)'");
    place.run(&[]).must_exit(65).must_say(&["`total`"]);
    let [failure] = place.failures().try_into().unwrap();
    assert_eq!((&failure["source"], &failure["stage"]), (&"total".into(), &"doubled".into()));
    place.run(&[]).must_exit(65).must_say(&["nothing is left to do"]);
    let retried = place.on_out("retry", &[]);
    retried.must_exit(65);
    assert_eq!((place.failures().len(), values(&place, "total.jsonl", "sum")), (1, vec![780]));
    place.on_out("verify", &[]).must_exit(0).must_print(&["0 lost, 0 doubled"]);
}
