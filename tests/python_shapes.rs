//! Stages in Python beyond a function of batches: a generator makes parts, `None` drops a row, a function brings all parts of an item together, and a function
//! runs on its own outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use crate::common::{Workplace, npy_of};
use orchestra_testkit::images::picture;
use orchestra_testkit::records::items;
use serde_json::{Value, json};

/// Results of a sink, by the indices of their items.
fn results(place: &Workplace, file: &str) -> BTreeMap<u64, Value> {
    let lines = place.lines(file);
    let n = lines.len();
    let by_index: BTreeMap<u64, Value> =
        lines.into_iter().map(|line| (line["index"].as_u64().unwrap(), line["result"].clone())).collect();
    assert_eq!(by_index.len(), n, "one record for each item");
    by_index
}

const ROWS: &str = "[sources.rows]\nkind = \"jsonl\"\npaths = [\"rows.jsonl\"]\ncolumns = { id = \"i64\", name = \"text\" }\n";

fn write_rows(place: &Workplace, names: impl IntoIterator<Item = String>) {
    let mut rows = String::new();
    for (id, name) in names.into_iter().enumerate() {
        writeln!(rows, "{}", json!({ "id": id, "name": name })).unwrap();
    }
    fs::write(place.path("rows.jsonl"), rows).unwrap();
}

/// Words of a text as parts; those that have an `a`, in capitals; and all of an item in the order of their letters.
const WORDS: &str = r#"
import orchestra

@orchestra.stage(batch=8, each=True, outputs={"words": {"word": "text", "at": ("int64", [])}})
def words(name):
    for at, word in enumerate(name.split()):
        if word == "bad":
            raise ValueError("a bad word")
        yield {"word": word, "at": at}

@orchestra.stage(batch=8, each=True, drops=True, outputs={"said": "text", "at": ("int64", [])})
def with_a(word, at):
    if "a" in word:
        return {"said": word.upper(), "at": at}

@orchestra.stage(each=True, outputs={"text": "text", "places": ("int64", [None])})
def ordered(parts):
    parts = sorted(parts, key=lambda part: (part["said"], part["at"]))
    return {"text": " ".join(part["said"] for part in parts), "places": [part["at"] for part in parts]}
"#;

fn name(id: u64) -> String {
    let words = ["par", "ö", "calma", "bis", "ala", "a\u{0}b"];
    let mut said: Vec<&str> = (0..id % 7).map(|n| words[((id * 5 + n * n) % 6) as usize]).collect();
    if id % 40 == 13 {
        said.push("bad");
    }
    said.join(" ")
}

#[test]
fn a_generator_makes_parts_a_decision_drops_some_and_a_function_takes_all_that_are_left() {
    const ITEMS: u64 = 200;
    let tables = format!(
        "{ROWS}[stages.words]\nkind = \"python\"\nfunction = \"words\"\nfrom = \"rows.name\"\nworkers = 2\n\
         [stages.parts]\nkind = \"split\"\nfrom = \"words\"\n\
         [stages.kept]\nkind = \"python\"\nfunction = \"with_a\"\nfrom = \"parts\"\nworkers = 2\n\
         [stages.all]\nkind = \"gather\"\nfrom = \"kept\"\n\
         [stages.ordered]\nkind = \"python\"\nfunction = \"ordered\"\nfrom = \"all\"\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = \"ordered\"\n[sinks.kept]\nkind = \"jsonl\"\nfrom = \"kept\""
    );
    let Some(place) = Workplace::with_script(WORDS, &tables) else { return };
    write_rows(&place, (0..ITEMS).map(name));
    let is_bad = |id: &u64| id % 40 == 13;
    place.run(&[]).must_exit(65).must_say(&["195 done, 5 failed", "ValueError: a bad word (stage.py:8)"]);
    let found = results(&place, "results.jsonl");
    let mut n_kept = 0;
    for id in (0..ITEMS).filter(|id| !is_bad(id)) {
        let name = name(id);
        let words = name.split(' ').filter(|word| !word.is_empty()).enumerate();
        let mut kept: Vec<(String, usize)> = words
            .filter(|(_, word)| word.contains('a'))
            .map(|(at, word)| (word.to_uppercase(), at))
            .collect();
        kept.sort();
        n_kept += kept.len();
        let text = kept.iter().map(|(word, _)| &**word).collect::<Vec<_>>().join(" ");
        let places: Vec<usize> = kept.iter().map(|(_, at)| *at).collect();
        assert_eq!(
            (&found[&id]["text"], &found[&id]["places"]["data"]),
            (&json!(text), &json!(places)),
            "{id}"
        );
    }
    assert_eq!((found.len(), place.lines("kept.jsonl").len()), (195, n_kept));
    place.on_file("plan", &[]).must_print(&["    may drop rows"]);
    place.on_out("verify", &[]).must_exit(0);
    place.nothing_is_left_but(&["results.jsonl", "kept.jsonl"]);
}

/// A number, and the same filter by a stage of its own.
const KEEPS: &str = r#"
import orchestra

@orchestra.stage(batch=8, each=True, drops=True, outputs={"kept": ("int64", []), "some": ("float32", [None])})
def kept(id, name):
    return None if KEEPS else {"kept": id, "some": [0.5] * 3}
"#;

#[test]
fn a_row_for_which_a_function_gives_none_ends_as_one_that_filter_drops() {
    const ITEMS: u64 = 300;
    let tables = format!(
        "{ROWS}[stages.kept]\nkind = \"python\"\nfunction = \"kept\"\nfrom = \"rows\"\nworkers = 2\n\
         [stages.filtered]\nkind = \"filter\"\nfrom = \"rows\"\nkeep = \"id < 250 and id > 200\"\n\
         [stages.total]\nkind = \"reduce\"\nfrom = \"kept.kept\"\nop = \"sum\"\n[sinks.total]\nkind = \"jsonl\"\nfrom = \"total\"\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = [\"kept.kept\", \"rows.name\"]\n\
         [sinks.both]\nkind = \"jsonl\"\nfrom = [\"kept.kept\", \"filtered\"]\n\
         [sinks.filtered]\nkind = \"jsonl\"\nfrom = \"filtered\"\nordered = true"
    );
    // The first 200 items are dropped, and are no reason to stop the run.
    for (rule, kept) in [("id < 200 or id % 3 == 0", 67), ("True", 0)] {
        let Some(place) = Workplace::with_script(&KEEPS.replace("KEEPS", rule), &tables) else { return };
        write_rows(&place, (0..ITEMS).map(|id| format!("Nr. {id}")));
        place.run(&[]).must_exit(0).must_say(&["300 done, 0 failed"]);
        let is_kept = |id: &u64| kept > 0 && *id >= 200 && !id.is_multiple_of(3);
        let found = results(&place, "results.jsonl");
        let record = |id: u64| (id, json!({ "kept.kept": id, "rows.name": format!("Nr. {id}") }));
        assert_eq!(found.len(), kept);
        assert_eq!(found, (0..ITEMS).filter(is_kept).map(record).collect::<BTreeMap<_, _>>());
        let both: Vec<u64> = results(&place, "both.jsonl").into_keys().collect();
        assert!(both.into_iter().eq((201..250).filter(is_kept)));
        assert_eq!(place.lines("filtered.jsonl").len(), 49);
        let sum: u64 = (0..ITEMS).filter(is_kept).sum();
        let total: f64 =
            place.lines("total.jsonl").iter().map(|line| line["result"]["sum"].as_f64().unwrap()).sum();
        assert_eq!(total, sum as f64);
        place.on_out("verify", &[]).must_exit(0);
        assert!(place.failures().is_empty());
    }
    // Who forgets to return something is told.
    let forgets = KEEPS.replace("KEEPS", "id == 7").replace("drops=True, ", "");
    let Some(place) = Workplace::with_script(&forgets, &tables) else { return };
    write_rows(&place, (0..20).map(|id| id.to_string()));
    place
        .run(&[])
        .must_exit(65)
        .must_say(&["it gave None; a function that drops rows is declared with drops=True"]);
    assert_eq!(place.failures().len(), 1);
    assert_eq!(place.failures()[0]["index"], 7);
}

/// Boxes one beside the other, each with a name and a score; and which of them are left when none may overlap a better one.
const BOXES: &str = r#"
from collections import Counter
import orchestra

@orchestra.stage(each=True, outputs={"boxes": {"box": ("float32", [4]), "score": ("int64", []), "name": "text"}})
def find(picture):
    n = picture.shape[1] // 8
    for k in range(n):
        yield {"box": [4 * k, 2, 4 * k + 8, 10], "score": 7 * k % n, "name": "ab"[k * k % 3 % 2]}

@orchestra.stage(each=True, outputs={
    "best": {"left": ("float32", []), "sum": ("int64", []), "name": "text"}, "vote": "text",
})
def suppress(parts):
    best = []
    for part in sorted(parts, key=lambda part: -part["score"]):
        assert part["pixels"].shape == (1, 8, 8) and part["pixels"].dtype == "uint8"
        if all(abs(part["box"][0] - other["box"][0]) >= 8 for other in best):
            best.append(part)
    votes = Counter(part["name"] for part in best)
    return {
        "best": [{"left": one["box"][0], "sum": one["pixels"].sum(), "name": one["name"]} for one in best],
        "vote": max(sorted(votes), key=votes.get, default=""),
    }
"#;

#[test]
fn a_function_of_all_parts_has_their_texts_numbers_and_pixels() {
    const ITEMS: u64 = 24;
    let tables = "[sources.pictures]\nkind = \"images\"\npaths = [\"pictures\"]\n\
         [stages.find]\nkind = \"python\"\nfunction = \"find\"\nfrom = \"pictures\"\n\
         [stages.parts]\nkind = \"crop\"\nfrom = [\"pictures\", \"find\"]\nsize = [8, 8]\ncolor = \"gray\"\ndtype = \"u8\"\n\
         [stages.all]\nkind = \"gather\"\nfrom = \"parts\"\n\
         [stages.suppress]\nkind = \"python\"\nfunction = \"suppress\"\nfrom = \"all\"\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = \"suppress\"";
    let Some(place) = Workplace::with_script(BOXES, tables) else { return };
    fs::create_dir(place.path("pictures")).unwrap();
    let width = |index: u64| 7 + 4 * index as u32;
    for index in 0..ITEMS {
        let file = place.path(&format!("pictures/{index:02}.png"));
        picture(index, width(index), 16).save(file).unwrap();
    }
    place.run(&[]).must_exit(0);
    for (index, found) in results(&place, "results.jsonl") {
        let n = i64::from(width(index)) / 8;
        let mut boxes: Vec<i64> = (0..n).collect();
        boxes.sort_by_key(|k| -(7 * k % n));
        let mut best: Vec<i64> = Vec::new();
        for k in boxes {
            if best.iter().all(|other| (4 * (k - other)).abs() >= 8) {
                best.push(k);
            }
        }
        let pixels = picture(index, width(index), 16);
        let name = |k: i64| if k * k % 3 % 2 == 0 { "a" } else { "b" };
        let row = |k: &i64| {
            let at = |n: u32| pixels.get_pixel(4 * *k as u32 + n % 8, 2 + n / 8).0[0];
            json!({ "left": (4 * k) as f32, "sum": (0..64).map(|n| u64::from(at(n))).sum::<u64>(), "name": name(*k) })
        };
        let n_a = best.iter().filter(|k| name(**k) == "a").count();
        let vote = if best.is_empty() {
            ""
        } else if 2 * n_a >= best.len() {
            "a"
        } else {
            "b"
        };
        assert_eq!(
            found,
            json!({ "best": best.iter().map(row).collect::<Vec<_>>(), "vote": vote }),
            "{index}"
        );
    }
    place.must_hold(&items("pictures", 0..ITEMS), &BTreeSet::new());
}

/// A round of Newton's method over rows, and a text that grows.
const ROUNDS: &str = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=16, outputs={"x": ("float64", []), "residual": ("float64", [1])})
def newton(x, a):
    assert not x.flags.writeable
    x = (x + a / x) / 2
    return {"x": x, "residual": abs(x * x - a)[:, None]}

@orchestra.stage(batch=16, each=True, outputs={"name": "text", "left": ("int64", []), "history": {"said": "text"}})
def grow(name, id):
    if len(name) == 20 and id % 50 == 0:
        raise ValueError("twenty")
    name += "." * (1 + id % 3)
    return {"name": name, "left": 24 - len(name), "history": [{"said": name}]}
"#;

fn newton(a: f64) -> (f64, f64, u64) {
    let (mut x, mut rounds) = (a, 0);
    loop {
        x = (x + a / x) / 2.0;
        rounds += 1;
        let residual = (x * x - a).abs();
        if residual <= 0.001 || rounds == 9 {
            return (x, residual, rounds);
        }
    }
}

#[test]
fn each_row_of_a_loop_in_python_has_the_rounds_that_it_needs() {
    const ITEMS: u64 = 200;
    let tables = format!(
        "{ROWS}[sources.numbers]\nkind = \"tensors\"\npaths = [\"numbers.npy\"]\n\
         [stages.root]\nkind = \"python\"\nfunction = \"newton\"\ninputs = {{ x = \"numbers\", a = \"numbers\" }}\nworkers = 2\n\
         rounds = 9\nuntil = \"residual <= 0.001\"\n\
         [stages.grow]\nkind = \"python\"\nfunction = \"grow\"\nfrom = \"rows\"\nrounds = 30\nfeed = {{ name = \"name\" }}\nuntil = \"left < 1\"\n\
         [sinks.root]\nkind = \"jsonl\"\nfrom = \"root\"\n[sinks.grow]\nkind = \"jsonl\"\nfrom = \"grow\""
    );
    let Some(place) = Workplace::with_script(ROUNDS, &tables) else { return };
    let number = |index: u64| (index * index) as f64 * 37.5 + 0.1;
    let bytes: Vec<u8> = (0..ITEMS).flat_map(|index| number(index).to_le_bytes()).collect();
    fs::write(place.path("numbers.npy"), npy_of("<f8", &format!("({ITEMS},)"), &bytes)).unwrap();
    write_rows(&place, (0..ITEMS).map(|id| "x".repeat(id as usize % 20)));
    place.run(&[]).must_exit(65);
    let roots = results(&place, "root.jsonl");
    assert_eq!(roots.len() as u64, ITEMS);
    for (index, found) in roots {
        let (x, residual, rounds) = newton(number(index));
        let number = |value: &Value| value.as_f64().unwrap();
        // A reader of JSON may round the last bit of a number.
        let is_near = |a: f64, b: f64| (a - b).abs() <= f64::EPSILON * b.abs();
        assert!(
            is_near(number(&found["x"]), x) && is_near(number(&found["residual"]["data"][0]), residual),
            "{found}"
        );
        assert_eq!(found["rounds"], rounds, "{found}");
    }
    let (mut grown, mut n_failed) = (results(&place, "grow.jsonl"), 0);
    for id in 0..ITEMS {
        let (mut length, each, mut rounds) = (id % 20, 1 + id % 3, 0);
        let mut fails = false;
        while rounds == 0 || length < 24 {
            fails |= length == 20 && id % 50 == 0;
            length += each;
            rounds += 1;
        }
        let Some(found) = grown.remove(&id) else {
            assert!(fails, "{id}");
            n_failed += 1;
            continue;
        };
        assert!(!fails);
        let name = found["name"].as_str().unwrap();
        assert_eq!((name.len() as u64, &found["rounds"]), (length, &rounds.into()), "{found}");
        assert_eq!((&found["history"], &found["left"]), (&json!([name]), &(24 - length as i64).into()));
    }
    assert!(n_failed > 0 && place.failures().len() == n_failed);
    assert!(place.errors().iter().all(|error| error.starts_with("ValueError: twenty (stage.py:")));
    let described = place.on_file("plan", &[]);
    described.must_print(&[
        "loop: up to 9 rounds, x <- x, until residual <= 0.001",
        "loop: up to 30 rounds, name <- name",
    ]);
}

#[test]
fn what_python_cannot_loop_over_is_refused_with_the_reason() {
    let tables = |keys: &str| {
        format!(
            "{ROWS}[stages.y]\nkind = \"python\"\nfrom = \"rows\"\n{keys}\n[sinks.results]\nkind = \"jsonl\"\nfrom = \"y\""
        )
    };
    let script = |decorator: &str| {
        format!("import orchestra\n\n@orchestra.stage({decorator})\ndef f(id, name):\n    pass\n")
    };
    let of = |outputs: &str| script(&format!("outputs={{{outputs}}}"));
    for (script, keys, says) in [
        (
            of("'id': ('i64', [])"),
            "until = \"id < 3\"",
            &["stage `y` needs the key `rounds`", "rounds = 100"][..],
        ),
        (of("'id': ('i64', [])"), "feed = { id = \"id\" }", &["stage `y` needs the key `rounds`"]),
        (of("'id': ('i64', [])"), "rounds = 0", &["`rounds` of stage `y` must be from 1 to"]),
        (
            of("'n': ('i64', [])"),
            "rounds = 3",
            &["must say what a round takes", "inputs of script `stage.py`: `id`, `name`", "outputs: `n`"],
        ),
        (
            of("'n': ('f32', [])"),
            "rounds = 3\nfeed = { id = \"n\" }",
            &["output `n` of script `stage.py` cannot become its input `id`", "arrays of the same type"],
        ),
        (
            of("'id': ('i64', [None])"),
            "rounds = 3",
            &["output `id` of script `stage.py` cannot become", "fixed shape"],
        ),
        (
            of("'name': {'n': 'text'}"),
            "rounds = 3",
            &["output `name` of script `stage.py` cannot become", "list of"],
        ),
        (
            of("'name': 'text'"),
            "rounds = 3\nuntil = \"name < 3\"",
            &["compares one number per row", "output `name` has no fixed number of them"],
        ),
        (
            of("'id': ('i64', []), 'rounds': 'text'"),
            "rounds = 3",
            &["an output `rounds` of its own", "another name in the script"],
        ),
        (
            script("outputs={'id': ('i64', [])}, each=True, drops=True"),
            "rounds = 3",
            &["it drops rows", "put a `filter` behind the stage"],
        ),
    ] {
        let Some(place) = Workplace::with_script(&script, &tables(keys)) else { return };
        write_rows(&place, ["one".to_owned()]);
        place.on_file("check", &[]).must_exit(78).must_say(says);
    }
}
