//! Shapes whose functions are in Python, with the gate of the trap operator. Kills nothing.

use std::fs;

use super::shapes::{
    BATCH, FIRST, LOOP, PLAIN, ROUNDS, ROWS_PER_FILE, Shape, write_array, write_over_array, write_stage,
};
use crate::common::{Workplace, python};
use serde_json::{Value, json};

/// A function in Python, of a number in a slot and of a text beside it.
pub const PYTHON: Shape = Shape {
    name: "python",
    source: "x",
    write: |place, n| {
        let rows: String = (0..n).map(|row| format!("{row},row {row}\n")).collect();
        fs::write(place.path("x.csv"), format!("number,name\n{rows}")).unwrap();
        let source = "kind = \"csv\"\npaths = [\"x.csv\"]\ncolumns = { number = \"i64\", name = \"text\" }";
        write_python(place, "one_more")
            .is_some_and(|stage| write_stage(place, source, "", &format!("{stage}\nfrom = \"x\"")))
    },
    shows: |record, index| record["result"] == json!({ "said": format!("row {index}!"), "sum": index + 1 }),
    ..PLAIN
};

/// A file of bytes that a generator makes texts of, each a part; a function drops one of them, and another one takes those that are left.
pub const PYTHON_PARTS: Shape = Shape {
    name: "python-parts",
    source: "x",
    rows: 3,
    write: |place, n| {
        fs::create_dir_all(place.path("x")).unwrap();
        for row in 0..n {
            fs::write(place.path(&format!("x/{row:05}")), format!("row {row}")).unwrap();
        }
        let [words, odd, both] = ["words", "odd", "both"].map(|function| write_python(place, function));
        let (Some(words), Some(odd), Some(both)) = (words, odd, both) else { return false };
        let before = format!(
            "[stages.words]\n{words}\nfrom = \"x.content\"\n[stages.parts]\nkind = \"split\"\nfrom = \"words\"\n\
             [stages.odd]\n{odd}\nfrom = \"parts\"\n[stages.all]\nkind = \"gather\"\nfrom = \"odd\""
        );
        write_stage(place, "kind = \"files\"\npaths = [\"x\"]", &before, &format!("{both}\nfrom = \"all\""))
    },
    shows: |record, index| record["result"] == format!("row {index}.0!row {index}.2!"),
    ..PLAIN
};

/// A function in Python that runs on its own outputs.
pub const PYTHON_LOOP: Shape = Shape {
    name: "python-loop",
    source: "x",
    rows: ROUNDS,
    write: |place, n| {
        write_array(place, n, 1, |row, _| FIRST + row);
        write_python(place, "step").is_some_and(|stage| {
            write_over_array(place, "", &format!("{stage}\nfrom = \"x\"\nrounds = {ROUNDS}"))
        })
    },
    shows: LOOP.shows,
    ..PLAIN
};

/// A function in Python yields the rows, and another one writes them, a file for each part.
pub const PYTHON_ENDS: Shape = Shape {
    name: "python-ends",
    write: |place, n| {
        let Some(stage) = write_python(place, "one_more") else { return false };
        fs::create_dir_all(place.path("store")).unwrap();
        let script = ENDS.replace("STORE", place.path("store").to_str().unwrap());
        fs::write(place.path("ends.py"), script.replace("ITEMS", &n.to_string())).unwrap();
        let both = format!("kind = \"python\"\nscript = \"ends.py\"\npython = {:?}", python().unwrap());
        let sink =
            format!("{both}\nfrom = \"y\"\nsandbox_write = [\"store\"]\nrows_per_file = {ROWS_PER_FILE}");
        let is_written = write_stage(place, &both, "", &format!("{stage}\nfrom = \"x\""));
        place.edit("[devices]", &format!("[sinks.store]\n{sink}\n[devices]"));
        is_written
    },
    judge: |place, n| {
        let files = fs::read_dir(place.path("store")).unwrap().map(|file| file.unwrap().path());
        let texts: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
        let mut rows: Vec<Value> = texts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        rows.sort_by_key(|row| row["index"].as_u64());
        let expected = (0..n).map(|index| json!({ "index": index, "said": format!("row {index}!") }));
        assert!(rows.into_iter().eq(expected), "each row is in one part");
    },
    ..PYTHON
};

/// The rows of [`PYTHON_ENDS`], and what becomes of them.
const ENDS: &str = r#"
import json, os
import orchestra

@orchestra.source(columns={"number": "i64", "name": "text"}, key="number")
def rows():
    for n in range(ITEMS):
        yield {"number": n, "name": f"row {n}"}

@orchestra.sink
def store(rows, part):
    if part == 0:  # what a run before `--fresh` has left
        for old in os.listdir("STORE"):
            os.remove(f"STORE/{old}")
    name = f"STORE/{part}.jsonl"
    with open(f"{name}.new", "w") as file:
        for row in rows:
            file.write(json.dumps({"index": row["index"], "said": row["said"]}) + "\n")
    os.replace(f"{name}.new", name)
"#;

/// Functions with the gate of the trap operator. A row alone goes through: a worker compares it with what it had in its batch, and would stand there with a
/// batch that is done.
const SCRIPT: &str = r#"
import os, time
import orchestra

def gate(rows):
    try:
        limit = int(open("GATE/limit").read())
    except FileNotFoundError:
        return
    with open("GATE/rows", "ab", buffering=0) as file:
        file.write(b"." * rows)
        before = file.tell() - rows
    if before >= limit:
        with open("GATE/waiting", "ab") as file:
            file.write(b".")
        while os.path.exists("GATE/limit"):
            time.sleep(0.005)

@orchestra.stage(batch=8, outputs={"said": "text", "sum": ("int64", [])})
def one_more(name, number):
    if len(name) > 1:
        gate(len(name))
    return {"said": [f"{text}!" for text in name], "sum": number + 1}

@orchestra.stage(batch=8, each=True, outputs={"words": {"word": "text", "content": ("uint8", [None])}})
def words(content):
    for n in range(3):
        word = f"{content.decode()}.{n}"
        yield {"word": word, "content": list(word.encode())}

@orchestra.stage(batch=8, each=True, drops=True, outputs={"said": "text"})
def odd(word, content):
    gate(1)
    assert word.encode() == content.tobytes()
    return None if word.endswith(".1") else {"said": f"{word}!"}

@orchestra.stage(batch=8, each=True, outputs={"text": "text"})
def both(parts):
    return {"text": "".join(part["said"] for part in parts)}

@orchestra.stage(batch=8, each=True, outputs={"y": ("float32", [1])})
def step(x):
    gate(1)
    return {"y": x + 1}
"#;

/// Writes the script, and gives the keys of a stage that runs this function of it; `None`: there is no Python.
fn write_python(place: &Workplace, function: &str) -> Option<String> {
    let python = python()?;
    let script = SCRIPT.replace("GATE", place.path("gate").to_str().unwrap());
    fs::write(place.path("stage.py"), script).unwrap();
    Some(format!(
        "kind = \"python\"\nscript = \"stage.py\"\nfunction = \"{function}\"\npython = {python:?}\nsandbox_write = [\"gate\"]\n\
         workers = 2\nbatch = {{ max = {BATCH} }}"
    ))
}
