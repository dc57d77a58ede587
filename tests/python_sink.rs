//! Sinks in Python: each part of the results reaches the script whole, once or again with the same rows, whatever is killed.

use std::fs;

use crate::common::{Ended, Run, Workplace, python};
use orchestra_machine::processes::{Process, children};
use orchestra_testkit::striker::{Fault, strike};
use orchestra_testkit::workflow_file::WorkflowFile;
use rustix::process::Signal;
use serde_json::{Value, json};

const ROWS: u64 = 5_000;
/// Of which each has at least so many rows.
const ROWS_PER_FILE: u64 = 100;

/// Writes each part to a file of its number, and fails where that is there with other rows. At two moments of each part it waits while a file says so.
const WRITES: &str = r#"
import json, os, time
import orchestra

def stop(moment, part):
    open(f"data/at-{moment}-{part}", "w").close()
    while os.path.exists(f"data/stop-{moment}-{part}"):
        time.sleep(0.01)

@orchestra.sink
def write(rows, part):
    stop("before", part)
    text = json.dumps([[row["item"], row["source"], row["n"]] for row in rows])
    path = f"data/{part}.json"
    if os.path.exists(path) and open(path).read() != text:
        raise ValueError(f"part {part} has other rows now")
    with open(path + ".new", "w") as out:
        out.write(text)
    os.replace(path + ".new", path)
    stop("after", part)
"#;

/// A workplace whose numbers go to `script` in parts.
fn place(python: &str, script: &str) -> Workplace {
    let place = Workplace::new();
    fs::create_dir(place.path("data")).unwrap();
    fs::write(place.path("write.py"), script).unwrap();
    let flow = WorkflowFile::new().source("numbers", "range", format_args!("stop = {ROWS}"));
    let flow = flow.stage("all", "select", "numbers", "columns = { n = 'n' }");
    let keys = "script = 'write.py'\nsandbox_write = 'data'\nfrom = 'all'";
    let keys = format!("kind = 'python'\npython = {python:?}\nrows_per_file = {ROWS_PER_FILE}\n{keys}");
    place.write(&*flow.table("sinks.taken", keys));
    place
}

/// The rows of each part that the script has written, by the number of the part.
fn parts(place: &Workplace) -> Vec<Vec<Value>> {
    let part = |number: usize| fs::read(place.path(&format!("data/{number}.json"))).ok();
    let parts = (0..).map_while(part).map(|text| serde_json::from_slice(&text).unwrap());
    parts.collect()
}

/// That all rows are written once, and that no part waits.
#[track_caller]
fn must_be_exact(place: &Workplace) {
    let mut rows: Vec<Value> = parts(place).concat();
    rows.sort_by_key(|row| row[2].as_u64());
    let expected: Vec<Value> = (0..ROWS).map(|n| json!([n.to_string(), "numbers", n])).collect();
    assert_eq!(rows, expected);
    let waiting = fs::read_dir(place.out()).unwrap().map(|entry| entry.unwrap().file_name());
    let waiting: Vec<_> = waiting.filter(|name| name.to_string_lossy().starts_with("taken")).collect();
    assert!(waiting.is_empty(), "{waiting:?}");
    place.no_process_is_left();
}

fn writers(run: u32) -> Vec<Process> {
    let writes = |process: &Process| process.arguments().iter().any(|word| word == "write");
    children(run).into_iter().filter(writes).collect()
}

/// Starts a run, and waits until its script stands at this moment of a part.
fn stands(place: &Workplace, moment: &str, part: u64) -> Run {
    let (stop, at) = (format!("data/stop-{moment}-{part}"), place.path(&format!("data/at-{moment}-{part}")));
    fs::write(place.path(&stop), "").unwrap();
    let _ = fs::remove_file(&at); // Of an earlier start.
    let mut run = place.start(&[]);
    run.must_reach("the script stands", || at.exists());
    run
}

fn go_on(place: &Workplace, moment: &str, part: u64) {
    fs::remove_file(place.path(&format!("data/stop-{moment}-{part}"))).unwrap();
}

#[test]
fn a_run_that_is_killed_before_and_after_each_part_is_written_has_each_row_once() {
    let Some(python) = python() else { return };
    let place = place(python, WRITES);
    for part in 0..3 {
        for moment in ["before", "after"] {
            let run = stands(&place, moment, part);
            run.signal(Signal::KILL);
            run.wait();
            go_on(&place, moment, part);
        }
    }
    place.run(&[]).must_exit(0);
    must_be_exact(&place);
    assert!(parts(&place).len() > 2);
    // Nothing comes again.
    let before = parts(&place);
    fs::remove_file(place.path("data/0.json")).unwrap();
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    assert!(parts(&place).is_empty() && !before.is_empty());
    let verified = place.on_out("verify", &[]);
    verified.must_exit(0);
    assert!(verified.stdout.contains("records of sink `taken` are not of items, or cannot be read back"));
}

#[test]
fn a_script_that_is_killed_while_it_writes_is_sent_the_part_again() {
    let Some(python) = python() else { return };
    let place = place(python, WRITES);
    for moment in ["before", "after"] {
        let run = stands(&place, moment, 1);
        let killed =
            writers(run.pid()).iter().filter(|writer| strike(run.pid(), writer.pid, Fault::Kill)).count();
        assert_eq!(killed, 1);
        go_on(&place, moment, 1);
        run.wait().must_exit(0);
        must_be_exact(&place);
        fs::remove_dir_all(place.out()).unwrap();
        fs::remove_dir_all(place.path("data")).unwrap();
        fs::create_dir(place.path("data")).unwrap();
    }
}

#[test]
fn an_interrupted_run_leaves_parts_and_the_next_start_sends_them() {
    let Some(python) = python() else { return };
    let place = place(python, WRITES);
    let run = stands(&place, "after", 1);
    run.signal(Signal::INT);
    run.wait().must_exit(130);
    go_on(&place, "after", 1);
    place.run(&[]).must_exit(0);
    must_be_exact(&place);
}

#[test]
fn a_script_that_fails_ends_the_run_and_the_next_start_goes_on_with_the_part() {
    let Some(python) = python() else { return };
    let fails = |lines: &str, words: &[&str]| -> Ended {
        let place = place(python, &WRITES.replace("    stop(\"before\", part)\n", &format!("    {lines}\n")));
        let ended = place.run(&[]);
        ended.must_exit(75).must_say(words).must_say(&["sink `taken`", "write.py`, at part 2,"]);
        fs::write(place.path("write.py"), WRITES).unwrap();
        place.run(&[]).must_exit(0);
        must_be_exact(&place);
        ended
    };
    fails(
        "if part == 2: raise OSError('no room in the table')",
        &["has raised an error: OSError: no room in the table (write.py:"],
    );
    fails("if part == 2: os.abort()", &["has ended 2 processes", "SIGABRT"]);
    fails("if part == 2: os._exit(0)", &["has ended", "processes"]);
    fails("if part == 2: os.write(3, b'rubbish' * 1000)", &["has ended", "processes"]);
}

#[test]
fn a_part_that_takes_too_long_ends_the_run() {
    let Some(python) = python() else { return };
    let place = place(python, &WRITES.replace("stop(\"before\", part)", "time.sleep(3600)"));
    place.edit("version = 1", "version = 1\nlimits.item_timeout = '1s'");
    place
        .run(&[])
        .must_exit(75)
        .must_say(&["has not returned for 10 s (ten times `limits.item_timeout`, at least 10 s)"]);
    place.no_process_is_left();
}

#[test]
fn columns_of_any_type_but_pictures_reach_the_script_as_values_of_python() {
    let Some(python) = python() else { return };
    let place = Workplace::new();
    fs::create_dir(place.path("data")).unwrap();
    let rows = r##"
import orchestra

@orchestra.source(columns={"t": "text", "w": "f64?", "v": ("f32", [2]), "item": "i64"})
def rows():
    yield {"t": "#ä", "w": None, "v": [0.1, float("nan")], "item": 7}

@orchestra.stage(outputs={"l": {"name": "text", "box": ("f32", [2])}}, inputs={}, each=True)
def lists(t):
    return {"l": [{"name": t, "box": [1, 2]}]}

@orchestra.sink
def write(rows, part):
    (row,) = rows
    v = row["same.v"]
    assert v.dtype == "float32" and v.shape == (2,), v
    row["same.v"] = [float(v[0]), str(v[1])]
    row["lists"] = [{**one, "box": one["box"].tolist()} for one in row["lists"]]
    with open(f"data/{part}.txt", "w") as out:
        print(sorted(row.items()), file=out)
"##;
    fs::write(place.path("all.py"), rows).unwrap();
    let script = format!("script = 'all.py'\npython = {python:?}");
    let flow = WorkflowFile::new().source("rows", "python", &script);
    let flow = flow.stage("same", "select", "rows", "columns = { t = 't', w = 'w', v = 'v', item = 'item' }");
    let flow = flow.stage("lists", "python", "rows.t", &script);
    let keys = format!("kind = 'python'\n{script}\nsandbox_write = 'data'\nfrom = ['same', 'lists']");
    place.write(&*flow.table("sinks.taken", keys));
    place.run(&[]).must_exit(0);
    let said = fs::read_to_string(place.path("data/0.txt")).unwrap();
    let expected = "[('index', 0), ('item', '0'), ('lists', [{'name': '#ä', 'box': [1.0, 2.0]}]), ('same.item', 7), ('same.t', '#ä'), \
         ('same.v', [0.10000000149011612, 'nan']), ('same.w', None), ('source', 'rows')]\n";
    assert_eq!(said, expected);
}

#[test]
fn what_is_wrong_with_the_script_or_the_columns_is_said_before_anything_runs() {
    let Some(python) = python() else { return };
    let checked = |place: &Workplace| place.on_file("check", &[]);
    for (from, to, words) in [
        ("@orchestra.sink", "", "no function has @orchestra.sink(..)"),
        ("write(rows, part)", "write(rows)", "write: a sink is called with two arguments, rows and part"),
        ("import orchestra", "import no_such_module", "No module named 'no_such_module'"),
    ] {
        let place = place(python, &WRITES.replace(from, to));
        checked(&place).must_exit(78).must_say(&[words, "sink `taken`"]);
    }
    let place = place(python, WRITES);
    place.edit("from = 'all'", "from = 'all'\npath = 's3://bucket/parts'");
    checked(&place).must_exit(78).must_say(&["sinks of this kind write to the output folder alone"]);
}
