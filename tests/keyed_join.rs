//! Rows of a run as arrays, one for each value of a column and one for each folder: in whatever order the rows are done, an array has the numbers
//! of its own rows in the order of the items. Kills are in `kills.rs`.

use std::collections::BTreeMap;
use std::fs;

use crate::common::Workplace;
use orchestra_testkit::models;
use serde_json::Value;

/// Files in the order of their items, with their folders.
const FILES: [(&str, &str); 4] = [("a/one", "a"), ("a/two", "a"), ("b/deep/three", "b/deep"), ("four", ".")];
const ROWS_OF_FILE: u64 = 2_000;
/// No order of texts is that of these numbers.
const KEYS: [i64; 5] = [9, -1, 10, 0, 100];

/// The key and the tensor of row `n` of all files.
fn row(n: u64) -> (i64, [f32; 2]) {
    (KEYS[(n * 7_919 % 101 % 5) as usize], [n as f32, n as f32 / 4.0])
}

/// Writes the rows as files of this kind.
fn write_rows(place: &Workplace, kind: &str) {
    for (at, (name, _)) in (0..).zip(FILES) {
        let mut text = if kind == "csv" { "key,x\n".to_owned() } else { String::new() };
        for n in at * ROWS_OF_FILE..(at + 1) * ROWS_OF_FILE {
            let (key, x) = row(n);
            text += &match kind {
                "csv" => format!("{key},\"{x:?}\"\n"),
                _ => format!("{{\"x\": {x:?}, \"key\": {key}}}\n"),
            };
        }
        let file = place.path("rows").join(format!("{name}.{kind}"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

fn workflow(place: &Workplace, kind: &str) -> String {
    let model = models::affine(&place.path("models"), &[2]).unwrap();
    format!(
        r#"version = 1
[sources.rows]
kind = "{kind}"
paths = ["rows"]
columns = {{ key = "i64", x = "f32[2]" }}
[models.affine]
path = {model:?}
workers = 2
[stages.read]
kind = "infer"
from = "rows.x"
model = "affine"
batch = {{ max = 4 }}
[stages.of_key]
kind = "reduce"
from = "read"
op = "concat"
join = true
by = "rows.key"
[stages.of_folder]
kind = "reduce"
from = "read"
op = "concat"
join = true
by_folder = true
[sinks.results]
kind = "jsonl"
from = "read"
path = "results.jsonl"
[sinks.of_key]
kind = "jsonl"
from = "of_key"
[sinks.of_folder]
kind = "jsonl"
from = "of_folder"
[devices]
use = ["cpu"]
"#
    )
}

/// The arrays of a sink, in the order of their records, each with its key.
fn arrays(place: &Workplace, sink: &str) -> Vec<(String, Vec<f32>)> {
    let text = fs::read_to_string(place.out().join(format!("{sink}.jsonl"))).unwrap();
    let array = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["source"], sink, "{line}");
        let y = &record["result"]["y"];
        let data: Vec<f32> = serde_json::from_value(y["data"].clone()).unwrap();
        assert_eq!(y["shape"], serde_json::json!([data.len()]));
        (record["item"].as_str().unwrap().to_owned(), data)
    };
    text.lines().map(array).collect()
}

/// Whether the arrays are what plain arithmetic makes of the rows.
fn must_be_of_the_rows(place: &Workplace) {
    let (mut of_key, mut of_folder) = (BTreeMap::<i64, Vec<f32>>::new(), BTreeMap::<String, Vec<f32>>::new());
    for n in 0..FILES.len() as u64 * ROWS_OF_FILE {
        let (key, x) = row(n);
        let folder = FILES[(n / ROWS_OF_FILE) as usize].1;
        let y = x.map(|x| 2.0 * x + 1.0);
        of_key.entry(key).or_default().extend(y);
        of_folder.entry(folder.to_owned()).or_default().extend(y);
    }
    assert_eq!((of_key.len(), of_folder.len()), (5, 3));
    let of_key: Vec<_> = of_key.into_iter().map(|(key, y)| (key.to_string(), y)).collect();
    assert!(arrays(place, "of_key") == of_key, "{}", place.out().display());
    assert!(arrays(place, "of_folder") == Vec::from_iter(of_folder), "{}", place.out().display());
}

#[test]
fn arrays_have_the_rows_of_their_key_or_folder_in_the_order_of_the_items() {
    for kind in ["csv", "jsonl"] {
        let place = Workplace::new();
        write_rows(&place, kind);
        fs::write(place.workflow(), workflow(&place, kind)).unwrap();
        place.run(&[]).must_exit(0);
        must_be_of_the_rows(&place);
        let verified = place.start_command(&["verify", place.out().to_str().unwrap()]).wait();
        assert!(verified.must_exit(0).stdout.contains("0 lost, 0 doubled"), "{}", verified.stdout);
        place.no_process_is_left();
    }
}
