//! Sources in Python: each row that a script yields is an item once, whatever is killed, and what is wrong with a row or a script is said.

use std::fs;

use crate::common::{Ended, Run, Workplace, python, write_pictures};
use crate::peak::{MOST, peak_of};
use orchestra_machine::processes::{Process, children};
use orchestra_testkit::records::items;
use orchestra_testkit::striker::{Fault, strike};
use orchestra_testkit::workflow_file::WorkflowFile;
use rustix::process::Signal;
use serde_json::json;

/// Rows that fill what lies between the script and the list.
const MANY: u64 = 8_000;

/// A workplace whose items are what `script` yields; `keys` are more lines of the source.
fn place(python: &str, script: &str, keys: &str) -> Workplace {
    let place = Workplace::new();
    fs::write(place.path("rows.py"), script).unwrap();
    let keys = format!("script = 'rows.py'\npython = {python:?}\n{keys}");
    let flow = WorkflowFile::new().source("rows", "python", keys);
    place.write(&*flow.stage("all", "select", "rows", "columns = { n = 'n' }").results("all"));
    place
}

/// A script whose source yields `n` rows, with these lines before each.
fn counts(n: u64, before_each: &str) -> String {
    format!(
        "import orchestra, os, time\n\n@orchestra.source(columns={{'n': 'i64', 't': 'text'}})\ndef rows():\n    for n in range({n}):\n        {before_each}\n        yield {{'n': n, 't': 'x' * 200}}\n"
    )
}

/// That all of `n` rows are done, each with its own number.
#[track_caller]
fn must_be_exact(place: &Workplace, n: u64) {
    for (key, record) in &place.must_hold(&items("rows", 0..n), &items("rows", 0..0)).done {
        let record = &record["results.jsonl"];
        assert_eq!(
            (&record["item"], &record["result"]["n"]),
            (&json!(key.index.to_string()), &json!(key.index))
        );
    }
}

fn listers(run: u32) -> Vec<Process> {
    let lists = |process: &Process| process.arguments().iter().any(|word| word == "list");
    children(run).into_iter().filter(lists).collect()
}

/// Waits until a process of the script lists, and kills it while the parent stands still and reads no more.
fn kill_lister(place: &Workplace, run: &mut Run) -> bool {
    let (list, pid) = (place.out().join(".orchestra/items-rows"), run.pid());
    run.until("it lists", || list.exists() && !listers(pid).is_empty());
    run.signal(Signal::STOP);
    let killed = listers(pid).iter().filter(|lister| strike(pid, lister.pid, Fault::Kill)).count();
    run.signal(Signal::CONT);
    killed > 0
}

#[test]
fn rows_of_a_script_are_items_with_typed_columns_and_a_bad_one_fails_alone_by_name() {
    let Some(python) = python() else { return };
    let script = r#"
import numpy as np
import orchestra

@orchestra.source(columns={"id": "text", "n": "i64", "v": ("float32", [2]), "w": "f64?", "photo": "picture"}, key="id")
def rows():
    photo = {"photo": "images/00000001.png"}
    yield {"id": "a#1", "n": 2**62, "v": np.array([0.5, np.nan], np.float32), "w": None, **photo}
    yield {"id": "b", "n": np.int64(7), "v": [1, 2], "w": 0.1, **photo}
    yield {"id": "no number", "n": "many", "v": [1, 2], "w": 0.1, **photo}
    yield {"id": "no picture", "n": 1, "v": [1, 2], "w": 0.1, "photo": "images/none.png"}
    yield {"id": "a typo", "n": 1, "v": [1, 2], "w": 0.1, "foto": "", **photo}
    yield 3
"#;
    let place = Workplace::new();
    write_pictures(&place.images(), 2);
    fs::write(place.path("rows.py"), script).unwrap();
    let keys = format!("script = 'rows.py'\npython = {python:?}");
    let columns = "columns = { id = 'id', n = 'n', v = 'v', w = 'w' }";
    let flow = WorkflowFile::new().source("rows", "python", keys).stage("all", "select", "rows", columns);
    let flow = flow.stage("pixels", "image", "rows.photo", "size = [1, 1]\ncolor = 'gray'");
    place.write(&*flow.results(["all", "pixels"]));
    place.run(&[]).must_exit(65).must_say(&[
        "6 items read, 2 done, 4 failed",
        "`n` is no i64: found the text",
        "none.png",
        "the row has `foto`, which `columns` does not name",
        "the source yields a int where a dict is expected",
    ]);
    let mut done = place.lines("results.jsonl");
    done.sort_by_key(|record| record["index"].as_u64());
    let shown = |at: usize| {
        let result = |name: &str| done[at]["result"][format!("all.{name}")].clone();
        (done[at]["item"].clone(), result("id"), result("n"), result("v")["data"].clone(), result("w"))
    };
    assert_eq!(shown(0), (json!("a#1"), json!("a#1"), json!(1_i64 << 62), json!([0.5, "NaN"]), json!(null)));
    assert_eq!(shown(1), (json!("b"), json!("b"), json!(7), json!([1.0, 2.0]), json!(0.1)));
    let mut failed: Vec<_> = place.lines("failures.jsonl").iter().map(|r| r["item"].to_string()).collect();
    failed.sort();
    assert_eq!(failed, ["\"no number\"", "\"no picture\"", "\"row 4\"", "\"row 5\""]);
    place.nothing_is_left();
}

#[test]
fn rows_of_any_size_cross_to_a_stage_that_reads_them_without_a_loader_that_is_stuck() {
    let Some(python) = python() else { return };
    for size in [100, 4_000, 10_000, 25_000, 60_000] {
        let stage = "\n@orchestra.stage(outputs={'n': ('int64', [])})\ndef length(t):\n    return {'n': [len(one) for one in t]}\n";
        let script = counts(400, "pass").replace("200", &size.to_string()) + stage;
        let place = place(python, &script, "");
        let keys = format!("kind = 'python'\nfrom = 'rows.t'\nscript = 'rows.py'\npython = {python:?}");
        place.edit("kind = \"select\"\nfrom = \"rows\"\ncolumns = { n = 'n' }", &keys);
        place.run(&[]).must_exit(0);
        assert_eq!(place.report()["loaders"]["restarts"], 0, "a loader was stuck with rows of {size} bytes");
        let results = place.lines("results.jsonl");
        assert!(
            results.len() == 400 && results.iter().all(|line| line["result"]["n"] == size),
            "{size} bytes"
        );
    }
}

#[test]
fn a_row_whose_key_another_row_had_fails_by_name() {
    let Some(python) = python() else { return };
    let script = "import orchestra\n\n@orchestra.source(columns={'n': 'i64'}, key='k')\ndef rows():\n    for n, k in enumerate(['a', 2, 'a', '2', 0, None, 'a']):\n        yield {'n': n, 'k': k}\n";
    let place = place(python, script, "");
    place.run(&[]).must_exit(65).must_say(&["another row is called `a`, too", "`key` must name"]);
    let mut names: Vec<_> =
        place.failures().iter().map(|failure| failure["item"].as_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["2 (row 3)", "a (row 2)", "a (row 6)", "row 5"]);
    assert_eq!(place.lines("results.jsonl").len(), 3);
}

#[test]
fn a_second_start_does_the_rows_that_are_new_and_refuses_those_that_are_others_or_gone() {
    let Some(python) = python() else { return };
    let keyed = |rows: &str| {
        format!(
            "import orchestra\n\n@orchestra.source(columns={{'n': 'i64'}}, key='n')\ndef rows():\n    return {rows}\n"
        )
    };
    let place = place(python, &keyed("[{'n': n} for n in (3, 1)]"), "");
    place.run(&[]).must_exit(0).must_say(&["2 items read, 2 done"]);
    let edit = |rows: &str| fs::write(place.path("rows.py"), keyed(rows)).unwrap();
    // By their key, wherever they come.
    edit("[{'n': n} for n in (0, 1, 2, 3)]");
    place.run(&[]).must_exit(0).must_say(&["4 items read, 4 done"]);
    let mut done: Vec<_> =
        place.lines("results.jsonl").iter().map(|r| (r["index"].as_u64(), r["item"].to_string())).collect();
    done.sort();
    assert_eq!(done, [(0, "3"), (1, "1"), (2, "0"), (3, "2")].map(|(at, n)| (Some(at), format!("\"{n}\""))));
    let before = fs::read(place.out().join("results.jsonl")).unwrap();
    edit("[{'n': n} for n in (0, 1, 3)]");
    place.run(&[]).must_exit(78).must_say(&["source `rows` names 1 item less (`2`)"]);
    edit("[{'n': str(n) if n == 1 else n} for n in (0, 1, 2, 3)]");
    place.run(&[]).must_exit(78).must_say(&["1 finished item is not the same any more", "`1`"]);
    assert_eq!(fs::read(place.out().join("results.jsonl")).unwrap(), before);
}

#[test]
fn a_list_whose_script_is_killed_is_finished_by_another_process_exactly() {
    let Some(python) = python() else { return };
    let place = place(python, &counts(MANY, "pass"), "");
    let mut run = place.start(&[]);
    assert!(kill_lister(&place, &mut run), "{}", run.said());
    run.wait().must_exit(0);
    must_be_exact(&place, MANY);
    place.nothing_is_left();
}

#[test]
fn a_script_that_yields_other_rows_when_it_is_started_again_ends_the_source() {
    let Some(python) = python() else { return };
    let script = counts(MANY, "pass").replace("'n': n,", "'n': n + os.getpid(),");
    let place = place(python, &script, "");
    let mut run = place.start(&[]);
    assert!(kill_lister(&place, &mut run), "{}", run.said());
    run.wait().must_exit(78).must_say(&["rows.py` has yielded other rows when it was started again"]);
}

#[test]
fn a_run_that_is_killed_while_its_script_lists_goes_on_exactly() {
    let Some(python) = python() else { return };
    // The first start waits in the middle of its list, so that it is killed there.
    let waits = "while n == 6_000 and not os.path.exists('go'): time.sleep(0.01)";
    let place = place(python, &counts(MANY, waits), "");
    let mut run = place.start(&[]);
    run.must_reach("rows are done", || place.n_results() > 1_000);
    run.signal(Signal::KILL);
    run.wait();
    fs::write(place.path("go"), "").unwrap();
    place.run(&[]).must_exit(0);
    must_be_exact(&place, MANY);
    place.nothing_is_left();
}

#[test]
fn a_script_that_fails_ends_the_source_and_the_next_start_goes_on() {
    let Some(python) = python() else { return };
    let fails = |before_each: &str, words: &[&str]| -> Ended {
        let place = place(python, &counts(10, before_each), "");
        let ended = place.run(&[]);
        ended.must_exit(78).must_say(words).must_say(&["source `rows`", "rows.py`"]);
        fs::write(place.path("rows.py"), counts(10, "pass")).unwrap();
        place.run(&[]).must_exit(0).must_say(&["10 items read, 10 done"]);
        must_be_exact(&place, 10);
        ended
    };
    fails(
        "if n == 7: raise ValueError('no such table')",
        &[
            "has raised an error after 7 rows: ValueError: no such table (rows.py:6)",
            "mend it, and start again",
        ],
    );
    fails("if n == 7: raise SystemExit(3)", &["after 7 rows: SystemExit: 3"]);
    fails("if n == 7: os._exit(0)", &["has ended", "processes"]);
    fails("if n == 7: os.abort()", &["has ended 2 processes", "SIGABRT"]);
    fails("if n == 7: os.write(3, b'rubbish' * 1000)", &["has ended", "processes"]);
    fails("if n == 7: open('/etc/passwd/none', 'w')", &["after 7 rows", "rows.py:6"]);
}

#[test]
fn a_script_is_confined_unless_the_file_says_otherwise_and_its_words_name_the_key() {
    let Some(python) = python() else { return };
    let asks = "import socket; socket.create_connection(('127.0.0.1', 9), 1) if n == 0 else None";
    let place = place(python, &counts(3, asks), "");
    place.run(&[]).must_exit(78).must_say(&["sandbox = \"off\"", "rows.py:6"]);
    place.edit("script = 'rows.py'", "script = 'rows.py'\nsandbox = 'off'");
    place.run(&[]).must_exit(78).must_say(&["ConnectionRefusedError"]);
}

#[test]
fn a_script_that_yields_nothing_for_long_is_ended() {
    let Some(python) = python() else { return };
    let place = place(python, &counts(10, "while n == 7: time.sleep(0.01)"), "");
    place.edit("version = 1", "version = 1\nlimits.item_timeout = '1s'");
    place
        .run(&[])
        .must_exit(78)
        .must_say(&["has yielded nothing for 10 s (ten times `limits.item_timeout`, at least 10 s)"]);
    place.no_process_is_left();
}

#[test]
fn more_rows_than_a_source_may_have_are_refused_and_an_interrupt_ends_a_list_without_end() {
    let Some(python) = python() else { return };
    let endless = counts(0, "pass").replace("range(0)", "iter(int, 1)");
    let place = place(python, &endless, "");
    place.edit("version = 1", "version = 1\nlimits.max_items = 5000");
    place.run(&[]).must_exit(78).must_say(&["more than `limits.max_items = 5000` items"]);
    place.edit("limits.max_items = 5000", "");
    let mut run = place.start(&["--fresh"]);
    run.must_reach("rows are done", || place.n_results() > 1_000);
    run.signal(Signal::INT);
    run.wait().must_exit(130);
    place.no_process_is_left();
}

#[test]
fn rows_that_are_larger_than_the_memory_of_the_run_lie_on_the_disk() {
    const LARGE: u64 = 12_000;
    let Some(python) = python() else { return };
    let script = counts(LARGE, "pass").replace("'x' * 200", "'#' * 10_000");
    let place = place(python, &script, "");
    // Each `#` takes six bytes in the list.
    let peak = peak_of(&place, &[], 0);
    assert!(peak < MOST, "{peak} bytes of memory for {} of rows", LARGE * 60_000);
    must_be_exact(&place, LARGE);
}

#[test]
fn what_is_wrong_with_the_script_is_said_before_anything_runs() {
    let Some(python) = python() else { return };
    let source = |decorator: &str| format!("import orchestra\n\n{decorator}\ndef rows():\n    return []\n");
    for (script, keys, words) in [
        (source(""), "", "no function has @orchestra.source(..)"),
        (source("@orchestra.source"), "", "`rows` does not say what its rows hold"),
        (source("@orchestra.source(columns={'n': 'i128'})"), "", "`n` cannot be \"i128\"; a type is"),
        (source("@orchestra.source(columns={'n': ('f32', [-1])})"), "", "`n` cannot be ('f32', [-1])"),
        (source("@orchestra.source").replace("rows()", "rows(x)"), "", "a source takes no arguments"),
        (
            source("@orchestra.source(columns={'n': 'i64'})"),
            "function = 'other'",
            "there is no source `other`; there are: rows",
        ),
        (source("@orchestra.source(columns={'n': 'i64'})"), "paths = ['a']", "no key `paths`"),
    ] {
        let place = place(python, &script, keys);
        place.on_file("check", &[]).must_exit(78).must_say(&[words]);
    }
}
