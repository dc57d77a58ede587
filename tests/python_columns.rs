//! Columns of any type in stages in Python: each value reaches the function with its own row, in its own form, and what is no row's own is refused.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use crate::common::{Ended, Workplace, python, repository};
use orchestra_testkit::images::picture;
use orchestra_testkit::records::items;
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};

/// A workplace whose source goes through `stage.py`, with more keys of the stage and tables behind it.
fn place(source: &str, script: &str, keys: &str, more: &str) -> Option<Workplace> {
    let tables = format!(
        "[sources.rows]\n{source}\n{more}\n[stages.y]\nkind = \"python\"\n{keys}\n[sinks.results]\nkind = \"jsonl\"\nfrom = \"y\""
    );
    Workplace::with_script(script, &tables)
}

/// The results, by the indices of their items.
fn results(place: &Workplace) -> Vec<Value> {
    let mut lines = place.lines("results.jsonl");
    lines.sort_by_key(|line| line["index"].as_u64());
    lines.into_iter().map(|line| line["result"].clone()).collect()
}

/// Makes `rows.tar` of the folder `members`.
fn pack(place: &Workplace) {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "-cf", "rows.tar", "-C", "members", "."]).current_dir(place.path(""));
    assert!(tar.status().unwrap().success());
}

const NOTES: &str = "kind = \"jsonl\"\npaths = [\"rows.jsonl\"]\ncolumns = { id = \"i64\", name = \"text\", note = \"text?\" }";

fn name(id: u64) -> String {
    format!("Nr. {id} Grüße\n\0{}", "é".repeat(id as usize % 300))
}

fn write_notes(place: &Workplace, n: u64) {
    let mut rows = String::new();
    for id in 0..n {
        let row = match id % 3 {
            0 => json!({ "id": id, "name": name(id) }),
            _ => json!({ "id": id, "name": name(id), "note": format!("of {id}") }),
        };
        writeln!(rows, "{row}").unwrap();
    }
    fs::write(place.path("rows.jsonl"), rows).unwrap();
}

#[test]
fn the_script_of_the_guide_and_its_workflow_file_count_the_same() {
    let Some(python) = python() else { return };
    let page = fs::read_to_string(repository().join("docs/guide/scripts.md")).unwrap();
    let block = |kind: &str, first: &str| {
        let block = page.split(&format!("```{kind}\n{first}")).nth(1).unwrap();
        block.split("```").next().unwrap().to_owned()
    };
    let place = Workplace::of(block("toml", "# fragment: names a script"));
    let key = "script = \"stage.py\"";
    place.edit(key, &format!("{key}\npython = {python:?}"));
    fs::write(place.path("stage.py"), block("python", "# stage.py")).unwrap();
    fs::write(place.path("before.py"), block("python", "# before.py")).unwrap();
    fs::create_dir(place.path("notes")).unwrap();
    for n in 0..100 {
        fs::write(place.path(&format!("notes/{n:03}.txt")), "wörd ".repeat(n * n % 41)).unwrap();
    }
    let before = Command::new(python).arg("before.py").current_dir(place.path("")).output().unwrap();
    let mut before: Vec<String> =
        String::from_utf8(before.stdout).unwrap().lines().map(str::to_owned).collect();
    before.sort();
    place.run(&[]).must_exit(0);
    let table = fs::read_to_string(place.out().join("words.csv")).unwrap();
    let words = table.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        format!("{},{}", cells[0].rsplit('/').next().unwrap(), cells[cells.len() - 1])
    });
    let mut words: Vec<String> = words.collect();
    words.sort();
    assert_eq!((words.len(), words), (100, before));
}

#[test]
fn an_argument_without_a_column_of_its_name_is_fed_as_the_help_says() {
    let script = "import orchestra\n\n@orchestra.stage(outputs={'n': ('i64', [])})\ndef f(id, words):\n    return {'n': [len(w) + i for w, i in zip(words, id)]}\n";
    let Some(place) = place(NOTES, script, "from = \"rows\"", "") else { return };
    write_notes(&place, 5);
    let helps = [
        "stage `y` takes `words`",
        "they take: `id`, `name`, `note`;",
        "inputs = { words = \"rows.id\", .. }",
    ];
    place.on_file("check", &[]).must_exit(78).must_say(&helps);
    let text = fs::read_to_string(place.workflow()).unwrap();
    let by_hand = text.replace("from = \"rows\"\n", "inputs = { words = \"rows.name\", id = \"rows.id\" }\n");
    for (workflow, script) in [(by_hand, script.to_owned()), (text, script.replace("words", "name"))] {
        fs::write(place.workflow(), workflow).unwrap();
        fs::write(place.path("stage.py"), script).unwrap();
        place.run(&["--fresh"]).must_exit(0);
        let want = (0..5).map(|id| json!({ "n": name(id).chars().count() as u64 + id }));
        assert!(results(&place).into_iter().eq(want));
    }
}

#[test]
fn arguments_have_the_columns_of_their_names_and_texts_come_and_go_as_they_are() {
    const ROWS: u64 = 1_000;
    let script = r#"
import orchestra

@orchestra.stage(batch=16, outputs={"said": "text", "length": ("int64", [])})
def say(name, id, note):
    assert isinstance(name, list) and not id.flags.writeable and len(name) == len(id) == len(note)
    if 500 in id:
        raise orchestra.ItemError(id.tolist().index(500), "not this one")
    said = [f"{one}|{number}|{more}" for one, number, more in zip(name, id, note)]
    return {"said": said, "length": [len(one) for one in name]}
"#;
    let Some(place) = place(NOTES, script, "from = \"rows\"\nworkers = 2", "") else { return };
    write_notes(&place, ROWS);
    place.run(&[]).must_exit(65).must_say(&["999 done, 1 failed", "not this one"]);
    place.must_hold(&items("rows", (0..ROWS).filter(|id| *id != 500)), &items("rows", [500]));
    let expected = (0..ROWS).filter(|id| *id != 500).map(|id| {
        let note = if id % 3 == 0 { "None".to_owned() } else { format!("of {id}") };
        json!({ "said": format!("{}|{id}|{note}", name(id)), "length": name(id).chars().count() })
    });
    assert!(results(&place).into_iter().eq(expected));
    place.nothing_is_left();
}

#[test]
fn a_picture_has_its_own_pixels_and_the_content_of_a_file_its_own_bytes() {
    const ITEMS: u64 = 40;
    let script = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=8, outputs={"size": ("int64", [3]), "sum": ("int64", []), "bytes": ("uint8", [None]), "text": "text"})
def look(picture, content, text):
    assert all(type(one) is bytes for one in content) and all(one.dtype == np.uint8 for one in picture)
    sums = [(one.ravel().astype(np.int64) * np.arange(one.size)).sum() for one in picture]
    at_most = max(len(one) for one in content)
    content = np.array([np.frombuffer(one.ljust(at_most, b"\0"), "u1") for one in content])
    return {"size": [one.shape for one in picture], "sum": sums, "bytes": content, "text": text}
"#;
    let inputs = "inputs = { picture = \"rows.png\", content = \"rows.bin\", text = \"rows.txt\" }";
    let source = "kind = \"tar\"\npaths = [\"rows.tar\"]\ncolumns = [\"png\", \"bin\", \"txt\"]";
    let Some(place) = place(source, script, &format!("{inputs}\nbatch = {{ max = 1 }}"), "") else { return };
    let size = |index: u64| (20 + index as u32, 31 + 3 * (index as u32 % 7));
    let bytes = |index: u64| (0..=index as u8).map(|n| n.wrapping_mul(77)).collect::<Vec<u8>>();
    let folder = place.path("members");
    fs::create_dir(&folder).unwrap();
    for index in 0..ITEMS {
        let (width, height) = size(index);
        picture(index, width, height).save(folder.join(format!("{index:03}.png"))).unwrap();
        fs::write(folder.join(format!("{index:03}.bin")), bytes(index)).unwrap();
        fs::write(folder.join(format!("{index:03}.txt")), format!("text of {index}")).unwrap();
    }
    pack(&place);
    place.run(&[]).must_exit(0);
    let found = results(&place);
    assert_eq!(found.len() as u64, ITEMS);
    for (index, found) in (0..).zip(found) {
        let (width, height) = size(index);
        let pixels = picture(index, width, height).into_raw();
        let sum: u64 = (0..).zip(pixels).map(|(at, pixel)| at * u64::from(pixel)).sum();
        assert_eq!(found["size"]["data"], json!([height, width, 1]));
        assert_eq!((&found["sum"], &found["text"]), (&sum.into(), &format!("text of {index}").into()));
        assert_eq!(found["bytes"]["data"], json!(bytes(index)), "{index}");
    }
}

#[test]
fn parts_that_were_gathered_come_as_dicts_by_the_names_of_their_columns() {
    let script = r#"
import orchestra

@orchestra.stage(batch=4, outputs={"said": "text"})
def say(parts):
    return {"said": [" ".join(f"{part['page']}:{'x'.join(map(str, part['size']))}" for part in of) for of in parts]}
"#;
    let more = "[stages.pages]\nkind = \"pages\"\nfrom = \"rows\"\n\
        [stages.small]\nkind = \"image\"\nfrom = \"pages\"\nsize = [8, 8]\nfit = \"contain\"\n\
        [stages.size]\nkind = \"size\"\nfrom = \"small\"\n\
        [stages.each]\nkind = \"select\"\nfrom = [\"pages\", \"size\"]\ncolumns = { page = \"pages.page\", size = \"size\" }\n\
        [stages.all]\nkind = \"gather\"\nfrom = \"each\"\n";
    let Some(place) = place("kind = \"images\"\npaths = [\"*.png\"]", script, "from = \"all\"", more) else {
        return;
    };
    for index in 0..6 {
        picture(index, 16, 16).save(place.path(&format!("{index}.png"))).unwrap();
    }
    place.run(&[]).must_exit(0);
    assert_eq!(results(&place), vec![json!("1:8x8"); 6]);
}

#[test]
fn large_values_wait_for_room_go_both_ways_at_once_and_one_that_never_fits_fails_by_name() {
    const ITEMS: u64 = 48;
    let script = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=8, outputs={"back": ("uint8", [None]), "same": ("bool", [])})
def back(bin):
    at_most = max(map(len, bin))
    back = np.array([np.frombuffer(one.ljust(at_most, b"\0"), "u1") for one in bin])
    return {"back": back, "same": [set(one[:1]) == set(one) for one in bin]}
"#;
    let source = "kind = \"tar\"\npaths = [\"rows.tar\"]\ncolumns = [\"bin\"]";
    let more = "[limits]\nmemory = \"128MiB\"";
    let keys = "from = \"rows\"\nworkers = 2";
    let Some(place) = place(source, script, keys, more) else { return };
    // What goes back in such rows is no record that anybody reads.
    place.edit("from = \"y\"", "from = \"y.same\"");
    let folder = place.path("members");
    fs::create_dir(&folder).unwrap();
    for index in 0..ITEMS {
        let length = if index == 17 { 40 << 20 } else { 1 << 20 };
        fs::write(folder.join(format!("{index:03}.bin")), vec![index as u8; length]).unwrap();
    }
    pack(&place);
    place.run(&[]).must_exit(65).must_say(&["47 done, 1 failed", "raise `limits.memory`"]);
    place.must_hold(&items("rows", (0..ITEMS).filter(|index| *index != 17)), &items("rows", [17]));
    assert!(results(&place).iter().all(|result| result["same"] == true));
    assert_eq!(place.restarts(), 0, "no worker waited for the run while the run waited for it");
}

#[test]
fn what_a_row_has_of_other_rows_ends_the_run_and_what_fits_no_argument_is_said_before_it() {
    let script = |arguments: &str, outputs: &str, body: &str| {
        format!(
            "import orchestra\n\n@orchestra.stage(batch=16, outputs={{{outputs}}})\ndef f({arguments}):\n    return {{{body}}}\n"
        )
    };
    let said = |script: &str, from: &str, command: &str| -> Option<Ended> {
        let place = place(NOTES, script, from, "")?;
        write_notes(&place, 100);
        Some(place.on_file(command, &[]))
    };
    let longest = script("name", "\"said\": \"text\"", "\"said\": [max(name)] * len(name)");
    let Some(ended) = said(&longest, "from = \"rows.name\"", "run") else { return };
    ended.must_exit(78).must_say(&["`said`", "in its batch", "alone"]);
    let fits = script("name, title", "\"said\": \"text\"", "\"said\": name");
    let ended = said(&fits, "from = \"rows\"", "check").unwrap();
    ended.must_exit(78).must_say(&["takes `title`", "`id`, `name`, `note`", "inputs = {"]);
    let several = script("x", "\"said\": \"text\"", "\"said\": [str(one) for one in x]");
    let ended = said(&several, "from = \"rows\"", "check").unwrap();
    ended
        .must_exit(78)
        .must_say(&["must say which of the outputs", "write \"rows.id\" or \"rows.name\" or \"rows.note\""]);
    let wrong = script("name", "\"said\": \"text\"", "\"said\": [1] * len(name)");
    let ended = said(&wrong, "from = \"rows.name\"", "run").unwrap();
    ended.must_exit(65).must_say(&["declared as text, and is int, not str"]);
    let short = script("name", "\"said\": \"text\"", "\"said\": name[1:] or ['x', 'y']");
    let ended = said(&short, "from = \"rows.name\"", "run").unwrap();
    ended.must_exit(65).must_say(&["must be a list of as many texts"]);
}

#[test]
fn a_function_of_one_row_gets_values_and_each_row_fails_by_itself() {
    const ROWS: u64 = 200;
    let script = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=16, each=True, outputs={"said": "text", "places": ("int64", [None]), "next": ("int64", [])})
class Say:
    def __call__(self, name, id):
        assert isinstance(name, str) and id.shape == ()
        if id % 50 == 7:
            raise ValueError(f"not {id}")
        return {"said": name.upper(), "places": np.arange(id % 3), "next": id + 1}
"#;
    let Some(place) = place(NOTES, script, "from = \"rows\"", "") else { return };
    write_notes(&place, ROWS);
    place.run(&[]).must_exit(65).must_say(&["196 done, 4 failed"]);
    let is_bad = |id: &u64| id % 50 == 7;
    place.must_hold(
        &items("rows", (0..ROWS).filter(|id| !is_bad(id))),
        &items("rows", (0..ROWS).filter(is_bad)),
    );
    for failure in place.failures() {
        assert_eq!(
            failure["error"],
            format!("ValueError: not {} (stage.py:10)", failure["index"]),
            "{failure}"
        );
    }
    for (id, found) in (0..ROWS).filter(|id| !is_bad(id)).zip(results(&place)) {
        let places: Vec<u64> = (0..id % 3).collect();
        assert_eq!((&found["said"], &found["next"]), (&name(id).to_uppercase().into(), &(id + 1).into()));
        assert_eq!(found["places"]["data"], json!(places), "{found}");
    }
}

#[test]
fn files_of_any_kind_come_as_bytes_with_their_path_and_size() {
    let script = r#"
import hashlib
import orchestra

@orchestra.stage(each=True, outputs={"digest": "text", "name": "text", "size": ("int64", [])})
def digest(content, path, size):
    return {"digest": hashlib.sha1(content).hexdigest(), "name": path.rpartition("/")[2], "size": size}
"#;
    let source = "kind = \"files\"\npaths = [\"files\"]";
    let Some(place) = place(source, script, "from = \"rows\"", "") else { return };
    let folder = place.path("files");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("empty"), b"").unwrap();
    fs::write(folder.join("Ton.wav"), b"RIFF\0\xff".repeat(100_000)).unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"z-\xe4.txt")), b"abc").unwrap();
    fs::create_dir(folder.join("x")).unwrap();
    rustix::fs::mknodat(CWD, folder.join("a.pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let ended = place.run(&[]);
    let found: Vec<Value> = results(&place);
    let expected = [
        ("0b5e4fd4b9b0bbb3", "Ton.wav", 600_000),
        ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "empty", 0),
        ("a9993e364706816aba3e25717850c26c9cd0d89d", "z-\\xE4.txt", 3),
    ];
    println!("{}", ended.stderr);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, (digest, name, size)) in found.iter().zip(expected).skip(1) {
        assert_eq!(found, &json!({ "digest": digest, "name": name, "size": size }));
    }
    assert_eq!((&found[0]["name"], &found[0]["size"]), (&"Ton.wav".into(), &600_000.into()));
}

#[test]
fn lists_that_a_function_gives_are_those_of_their_rows_and_are_split_into_parts() {
    const ITEMS: u64 = 60;
    let script = r#"
import orchestra

@orchestra.stage(batch=8, outputs={"found": {"box": ("float32", [4]), "name": "text", "inner": {"n": ("int64", [])}}})
def find(picture):
    def of(one):
        return [{"box": [n, 0, n + 1, one.shape[0]], "name": f"{n} of {one.shape[1]}", "inner": [{"n": n}] * n} for n in range(one.shape[1] % 4)]
    return {"found": [of(one) for one in picture]}
"#;
    let behind = "[stages.parts]\nkind = \"split\"\nfrom = \"y\"\n[sinks.parts]\nkind = \"jsonl\"\nfrom = \"parts\"\n\
        [stages.again]\nkind = \"gather\"\nfrom = \"parts\"\n[sinks.again]\nkind = \"jsonl\"\nfrom = \"again\"";
    let source = "kind = \"images\"\npaths = [\"*.png\"]";
    let Some(place) = place(source, script, "from = \"rows\"\nworkers = 2", behind) else { return };
    for index in 0..ITEMS {
        picture(index, 20 + index as u32, 24).save(place.path(&format!("{index:02}.png"))).unwrap();
    }
    place.run(&[]).must_exit(0);
    let list = |index: u64| {
        let row = |n: u64| {
            json!({
                "box": [n as f32, 0.0, (n + 1) as f32, 24.0],
                "name": format!("{n} of {}", 20 + index),
                "inner": vec![json!({ "n": n }); n as usize],
            })
        };
        Value::Array((0..(20 + index) % 4).map(row).collect())
    };
    let found = results(&place);
    assert_eq!(found.len() as u64, ITEMS);
    for (index, found) in (0..).zip(found) {
        assert_eq!(found, list(index), "{index}");
    }
    let mut again = place.lines("again.jsonl");
    again.sort_by_key(|line| line["index"].as_u64());
    assert!(again.iter().zip(0..).all(|(line, index)| line["result"] == list(index)), "{again:?}");
    let parts: usize = (0..ITEMS).map(|index| list(index).as_array().unwrap().len()).sum();
    assert_eq!(place.lines("parts.jsonl").len(), parts);
    let wrong = script.replace("\"name\": f\"{n} of {one.shape[1]}\", ", "").replace("% 4", "% 2");
    fs::write(place.path("stage.py"), wrong).unwrap();
    place
        .run(&["--fresh"])
        .must_exit(65)
        .must_say(&["a row of output `found` must be a dict of ['box', 'name', 'inner']"]);
}

#[test]
fn what_a_row_gives_is_judged_by_itself_and_not_by_the_rows_of_its_batch() {
    const ROWS: u64 = 40;
    // Each of these, alone, is a right row or fails, whatever stands beside it.
    for (outputs, body, bad, says) in [
        ("\"said\": \"text\"", "{'error': 1} if id % 4 == 0 else {'said': ['a'] * 4}", [0, 1, 2, 3], "said"),
        (
            "\"v\": (\"int64\", [])",
            "{'v': [1, 2]} if id % 4 == 1 else {'v': id}",
            [1; 4],
            "must have the shape",
        ),
        ("\"v\": (\"float64\", [])", "{'v': 0.5 if id % 4 else 2**60 + 1}", [0; 4], "cannot hold"),
        ("\"v\": (\"int64\", [])", "{'v': 2.0 if id % 4 == 2 else 2**60 + int(id)}", [9; 4], ""),
        ("\"v\": (\"float32\", [])", "{'v': int(id) if id % 4 else 2**24 + 1}", [0; 4], "float32"),
        ("\"said\": \"text\"", "{'said': name if id % 4 else '\\ud800'}", [0; 4], "output `said` is no text"),
        ("\"said\": \"text\"", "{'said': Own.A}", [9; 4], ""),
    ] {
        let script = format!(
            "import enum\nimport orchestra\n\nclass Own(str, enum.Enum):\n    A = \"a\"\n\n\
             @orchestra.stage(batch=8, each=True, outputs={{{outputs}}})\ndef f(id, name):\n    return {body}\n"
        );
        let Some(place) = place(NOTES, &script, "from = \"rows\"", "") else { return };
        write_notes(&place, ROWS);
        place.run(&[]);
        let is_bad = |id: &u64| bad.contains(&(id % 4));
        place.must_hold(
            &items("rows", (0..ROWS).filter(|id| !is_bad(id))),
            &items("rows", (0..ROWS).filter(is_bad)),
        );
        for error in place.errors() {
            assert!(error.contains(says), "{body}: {error}");
        }
        if body.contains("Own") {
            assert!(results(&place).iter().all(|said| *said == "a"));
        }
    }
}

#[test]
fn a_function_of_one_row_is_called_once_for_each_whatever_it_raises_reuses_or_gives_of_another_size() {
    const ROWS: u64 = 320;
    let script = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=64, each=True, outputs={"v": ("float32", [None]), "n": ("int64", [2])})
class Reuses:
    def __init__(self):
        self.v, self.n = np.empty(4, "f4"), np.empty(2, "i8")

    def __call__(self, id):
        with open("calls/log", "a") as log:
            log.write("x")
        self.v[:], self.n[:] = id, id
        if id % 3 == 1:
            raise ValueError("one of three")
        return {"v": self.v[: id % 4], "n": np.ma.masked_array(self.n, [False, id % 3 == 2 and id > 300])}
"#;
    let keys = "from = \"rows.id\"\nsandbox_write = \"calls\"";
    let Some(place) = place(NOTES, script, keys, "") else { return };
    fs::create_dir(place.path("calls")).unwrap();
    write_notes(&place, ROWS);
    place.run(&[]).must_exit(65);
    let is_bad = |id: &u64| id % 3 == 1 || id % 3 == 2 && *id > 300;
    place.must_hold(
        &items("rows", (0..ROWS).filter(|id| !is_bad(id))),
        &items("rows", (0..ROWS).filter(is_bad)),
    );
    assert_eq!(fs::read(place.path("calls/log")).unwrap().len() as u64, ROWS);
    for failure in place.failures() {
        let says =
            if failure["index"].as_u64().unwrap() % 3 == 1 { "one of three" } else { "is masked at [1]" };
        assert!(failure["error"].as_str().unwrap().contains(says), "{failure}");
        assert_eq!((&failure["attempts"], &failure["kind"]), (&json!(1), &json!("model")), "{failure}");
    }
    for (id, found) in (0..ROWS).filter(|id| !is_bad(id)).zip(results(&place)) {
        assert_eq!(found["v"]["data"], json!(vec![id as f32; id as usize % 4]), "{found}");
        assert_eq!(found["n"]["data"], json!([id, id]), "{found}");
    }
    for log in fs::read_dir(place.out().join("logs")).unwrap() {
        let log = fs::read_to_string(log.unwrap().path()).unwrap();
        assert!(!log.contains("batch failed in its worker"), "{log}");
    }
}

#[test]
fn a_generator_without_end_fails_its_row_as_too_large_and_no_other() {
    let script = "import orchestra\n\n@orchestra.stage(each=True, outputs={\"w\": {\"t\": \"text\"}})\ndef f(n):\n    while n == 3:\n        yield {\"t\": \"x\" * 1000}\n    yield {\"t\": \"end\"}\n";
    let Some(place) =
        place("kind = \"range\"\nstop = 8", script, "from = \"rows\"", "[limits]\nmemory = \"256MiB\"")
    else {
        return;
    };
    place.run(&[]).must_exit(65);
    place.must_hold(&items("rows", (0..8).filter(|n| *n != 3)), &items("rows", 3..4));
    let failures = place.failures();
    assert_eq!(
        (&failures[0]["kind"], &failures[0]["attempts"]),
        (&json!("too_large"), &json!(1)),
        "{failures:?}"
    );
}

#[test]
fn a_number_that_may_be_missing_is_none_and_an_argument_of_no_columns_name_is_asked_for() {
    let script = "import orchestra\n\n@orchestra.stage(batch=4, outputs={\"said\": \"text\"})\ndef f(n):\n    return {\"said\": [str(one) for one in n]}\n";
    let source = "kind = \"jsonl\"\npaths = [\"rows.jsonl\"]\ncolumns = { n = \"f64?\", other = \"text\" }";
    let Some(place) = place(source, script, "from = \"rows\"", "") else { return };
    let rows = "{\"n\": 1, \"other\": \"a\"}\n{\"other\": \"b\"}\n{\"n\": null, \"other\": \"c\"}\n{\"n\": 4.5, \"other\": \"d\"}\n";
    fs::write(place.path("rows.jsonl"), rows).unwrap();
    place.run(&[]).must_exit(0);
    assert_eq!(results(&place), ["1.0", "None", "None", "4.5"]);
    fs::write(place.path("stage.py"), script.replace("(n)", "(m)").replace("in n", "in m")).unwrap();
    let ended = place.on_file("check", &[]);
    ended.must_exit(78).must_say(&["which of the outputs", "write \"rows.n\" or \"rows.other\""]);
}

#[test]
fn a_text_that_is_too_large_fails_at_once_and_halves_its_batch() {
    let script = "import orchestra\n\n@orchestra.stage(batch=8, outputs={\"said\": \"text\"})\ndef f(content):\n    return {\"said\": [one.decode() for one in content]}\n";
    let more = "[limits]\nmemory = \"128MiB\"";
    let Some(place) = place("kind = \"files\"\npaths = [\"*.txt\"]", script, "from = \"rows.content\"", more)
    else {
        return;
    };
    for index in 0..16 {
        let length = if index % 4 == 3 { 20 << 20 } else { 3 };
        fs::write(place.path(&format!("{index:02}.txt")), vec![b'a'; length]).unwrap();
    }
    place.run(&[]).must_exit(65).must_say(&["12 done, 4 failed", "raise `limits.memory`"]);
    for failure in place.failures() {
        assert_eq!(failure["kind"], "too_large", "{failure}");
    }
}
