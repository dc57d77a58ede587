//! Each source accounts for all that it was given: what another reader finds is an item, or was passed over for a reason that is counted, or the file is
//! refused by name. The other readers are Python's own `tarfile`, `zipfile` and `csv`, pyarrow, NumPy and tifffile.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::common::{Ended, Workplace, python_env};
use serde::Deserialize;
use serde_json::Value;

/// Writes files of many shapes, and prints what another reader finds in them.
const FILES: &str = include_str!("nothing_vanishes/files.py");

/// What another reader finds.
#[derive(Deserialize)]
struct Found {
    /// By the name of the item: its value, or `null` where it must fail by name.
    items: BTreeMap<String, Value>,
    passed_over: BTreeMap<String, u64>,
}

fn found(place: &Workplace, python: &str, what: &str, seed: u64) -> Found {
    let folder = place.path("");
    let command = Command::new(python).args(["-c", FILES, what, &seed.to_string()]).arg(folder).output();
    let output = command.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a workflow of one source `s`, whose items are written by the sink `o`.
fn run(place: &Workplace, source: &str, rest: &str) -> Ended {
    place.write(format!(
        "version = 1\n[sources.s]\n{source}\n{rest}\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"last\"\n"
    ));
    place.run(&["--fresh"])
}

/// A column as it is.
fn column(name: &str) -> String {
    format!("[stages.last]\nkind = \"select\"\nfrom = \"s\"\ncolumns = {{ t = \"{name}\" }}")
}

const PIXELS: &str =
    "[stages.last]\nkind = \"image\"\nfrom = \"s\"\nsize = [1, 1]\ncolor = \"gray\"\ndtype = \"u8\"";

/// Compares the records, failures and counts of a run, and what `verify` says of it, with what another reader finds.
#[track_caller]
fn must_be_all(place: &Workplace, ended: &Ended, expected: &Found, value: impl Fn(&Value) -> Value) {
    let n_failed = expected.items.values().filter(|value| value.is_null()).count();
    ended.must_exit(if n_failed > 0 { 65 } else { 0 });
    let records = place.lines("o.jsonl").into_iter();
    let done = records.map(|record| (record["item"].as_str().unwrap().to_owned(), value(&record["result"])));
    let failed = place.failures().into_iter().map(|failure| {
        assert!(!failure["error"].as_str().unwrap().is_empty());
        (failure["item"].as_str().unwrap().to_owned(), Value::Null)
    });
    let ends: BTreeMap<String, Value> = done.chain(failed).collect();
    assert_eq!(ends, expected.items);
    let report = place.report();
    let counts: BTreeMap<String, u64> =
        serde_json::from_value(report["passed_over"]["s"].clone()).unwrap_or_default();
    assert_eq!(counts, expected.passed_over);
    let verified = place.on_out("verify", &[]).exited(0);
    for (reason, n) in &counts {
        let words: Vec<_> =
            verified.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert!(words.contains(&vec![reason.as_str(), &n.to_string()]), "{}", verified.stdout);
        ended.must_say(&[&format!("{reason} {n}")]);
    }
}

fn text_of(result: &Value) -> Value {
    result.as_object().map_or_else(|| result.clone(), |columns| columns.values().next().unwrap().clone())
}

#[test]
fn members_of_tar_archives_of_every_shape_are_items_or_counted() {
    for seed in 1..=4 {
        let place = Workplace::new();
        let expected = found(&place, "python3", "tar", seed);
        let ended = run(&place, "kind = \"tar\"\npaths = [\"*.tar\"]\ncolumns = [\"txt\"]", &column("txt"));
        must_be_all(&place, &ended, &expected, text_of);
    }
}

#[test]
fn members_of_zip_archives_of_every_shape_are_items_or_counted() {
    let place = Workplace::new();
    let expected = found(&place, "python3", "zip", 1);
    let ended = run(&place, "kind = \"zip\"\npaths = [\"*.zip\"]", PIXELS);
    must_be_all(&place, &ended, &expected, |_| Value::Bool(true));
}

#[test]
fn a_folder_its_zip_and_its_tar_have_the_same_items() {
    let place = Workplace::new();
    let expected = found(&place, "python3", "folder", 1);
    let kinds = [
        ("images", "paths = [\"folder\"]", ""),
        ("zip", "paths = [\"folder.zip\"]", "folder.zip/"),
        ("tar", "paths = [\"folder.tar\"]\ncolumns = [\"png\"]", "folder.tar/"),
    ];
    for (kind, keys, prefix) in kinds {
        let from = if kind == "tar" { "s.png" } else { "s" };
        let pixels = PIXELS.replace("from = \"s\"", &format!("from = \"{from}\""));
        run(&place, &format!("kind = \"{kind}\"\n{keys}"), &pixels).must_exit(0);
        let lines = place.lines("o.jsonl").into_iter();
        let names: Vec<String> = lines
            .map(|line| line["item"].as_str().unwrap().to_owned())
            .map(|name| name.strip_prefix(prefix).unwrap().trim_end_matches(".png").to_owned() + ".png")
            .collect();
        assert!(names.iter().all(|name| expected.items.contains_key(name)), "{kind}: {names:?}");
        assert_eq!(names.len(), expected.items.len(), "{kind}");
        let hidden = place.report()["passed_over"]["s"]["hidden"].as_u64();
        assert_eq!(hidden, expected.passed_over.get("hidden").copied(), "{kind}");
    }
}

#[test]
fn rows_of_tables_are_items_or_counted() {
    let place = Workplace::new();
    for (what, keys) in [("csv", "columns = { t = \"text\" }"), ("jsonl", "columns = { t = \"text\" }")] {
        let expected = found(&place, "python3", what, 1);
        let ended = run(&place, &format!("kind = \"{what}\"\npaths = [\"*.{what}\"]\n{keys}"), &column("t"));
        must_be_all(&place, &ended, &expected, text_of);
    }
}

#[test]
fn rows_of_parquet_files_are_items_and_files_that_were_put_together_are_refused() {
    let Some(python) = python_env("pyarrow") else { return };
    let place = Workplace::new();
    let expected = found(&place, &python, "parquet", 1);
    let source =
        |paths: &str| format!("kind = \"parquet\"\npaths = [\"{paths}\"]\ncolumns = {{ t = \"text\" }}");
    let ended = run(&place, &source("good-*.parquet"), &column("t"));
    must_be_all(&place, &ended, &expected, text_of);
    // A bare number would not say what it counts.
    let times = "kind = \"parquet\"\npaths = [\"times.parquet\"]";
    run(&place, times, &column("t")).must_exit(78).must_say(&["`when` is a date or a time", "`i64`"]);
    let named = format!("{times}\ncolumns = {{ when = \"i64\", day = \"i64\" }}");
    run(&place, &named, &column("when")).must_exit(0);
    let record = fs::read_to_string(place.out().join("o.jsonl")).unwrap();
    assert!(record.contains("1577840523456789"), "{record}");
    for name in ["both.parquet", "mixed.parquet"] {
        let ended = run(&place, &source(name), &column("t"));
        assert_ne!(ended.status.code(), Some(0));
        ended.must_say(&[name, "before it", "a file of its own"]);
    }
}

#[test]
fn rows_of_arrays_are_items_with_the_numbers_that_numpy_reads() {
    let Some(python) = python_env("reference") else { return };
    for seed in 1..=2 {
        let place = Workplace::new();
        let mut expected = found(&place, &python, "arrays", seed);
        let numbers = |result: &Value| match result["x"].as_f64() {
            Some(number) => serde_json::json!([number]),
            None => {
                let mut all = Vec::new();
                flatten(&result["x"]["data"], &mut all);
                all.into()
            }
        };
        // Rows of one shape and type are a source.
        for path in fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().path()) {
            let Some(folder) = path.file_name().unwrap().to_str().filter(|name| name.starts_with("of"))
            else {
                continue;
            };
            for file in
                fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap())
            {
                let keys = format!("kind = \"tensors\"\npaths = [\"{folder}/{file}\"]\ncolumns = [\"x\"]");
                let keys = if file.ends_with("npy") { keys.replace("\ncolumns = [\"x\"]", "") } else { keys };
                let of_file = format!("{file}[");
                let items = expected.items.extract_if(.., |item, _| item.starts_with(&of_file)).collect();
                let ended = run(
                    &place,
                    &keys,
                    "[stages.last]\nkind = \"select\"\nfrom = \"s\"\ncolumns = { x = \"x\" }",
                );
                must_be_all(&place, &ended, &Found { items, passed_over: BTreeMap::new() }, numbers);
            }
        }
        assert!(expected.items.is_empty(), "{:?}", expected.items);
    }
}

/// The numbers of nested lists.
fn flatten(value: &Value, all: &mut Vec<Value>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| flatten(value, all)),
        number => all.push(serde_json::json!(number.as_f64())),
    }
}

#[test]
fn pages_of_tiff_files_are_parts_or_counted() {
    let Some(python) = python_env("reference") else { return };
    let place = Workplace::new();
    let expected = found(&place, &python, "tiff", 1);
    let source = "kind = \"images\"\npaths = [\"*.tif\"]";
    run(&place, source, PIXELS).must_exit(0);
    assert_eq!(place.lines("o.jsonl").len(), expected.items.len());
    let left_out = place.report()["left_out"].clone();
    let n = left_out.as_array().unwrap().iter().map(|of| of["count"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(n, expected.passed_over["pages"], "{left_out}");
    let each = PIXELS.replace("from = \"s\"", "from = \"pages\"");
    run(&place, source, &format!("[stages.pages]\nkind = \"pages\"\nfrom = \"s\"\n{each}")).must_exit(0);
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in place.lines("o.jsonl") {
        let gray = record["result"]["pixels"]["data"][0][0][0].as_u64().unwrap();
        found.entry(record["item"].as_str().unwrap().to_owned()).or_default().push(gray);
    }
    found.values_mut().for_each(|pages| pages.sort_unstable());
    let found: BTreeMap<String, Value> =
        found.into_iter().map(|(item, pages)| (item, pages.into())).collect();
    assert_eq!(found, expected.items);
    assert_eq!(place.report()["left_out"].as_array().unwrap().len(), 0);
}

#[test]
fn a_source_of_which_all_is_passed_over_is_told_before_the_run() {
    let place = Workplace::new();
    found(&place, "python3", "nothing", 1);
    let (of_tar, texts) = ("columns = [\"txt\"]", column("txt"));
    let cases = [
        ("tar", "hidden.tar", of_tar, &*texts, "hidden 2"),
        ("tar", "folders.tar", of_tar, &texts, "folder 1, special 1"),
        ("zip", "hidden.zip", "", PIXELS, "hidden 2"),
        ("zip", "notes.zip", "", PIXELS, "folder 1, not_taken 1"),
    ];
    for (kind, name, columns, rest, reasons) in cases {
        let ended = run(&place, &format!("kind = \"{kind}\"\npaths = [\"{name}\"]\n{columns}"), rest);
        assert_ne!(ended.status.code(), Some(0), "{name}: {}", ended.stderr);
        ended.must_say(&[name, reasons]);
        place.on_file("check", &[]).must_say(&["warning", name, reasons]);
    }
}
