//! Sources that are edited between two starts: a row that is finished is refused by name where another one stands in its place, and nothing is lost, doubled or
//! taken for another item.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fastrand::Rng;
use orchestra_testkit::size::scaled;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::common::random::random;
use crate::common::{Workplace, npy};

fn results(place: &Workplace) -> Vec<u8> {
    fs::read(place.out().join("results.jsonl")).unwrap()
}

/// A workplace whose rows go through a filter to one file of records, from files of this kind; pictures through a stage that decodes them.
pub fn rows_of(kind: &str, file: &str) -> Workplace {
    let (stage, keys) = match kind {
        "zip" => ("image", "size = [1, 1]\ncolor = 'gray'\ndtype = 'u8'"),
        _ => ("filter", "keep = 'true'"),
    };
    let flow = WorkflowFile::new().source("s", kind, format_args!("paths = [{file:?}]"));
    Workplace::of(flow.stage("all", stage, "s", keys).results("all"))
}

/// Writes a file in its place, and gives it the time that it had.
pub fn edit_and_hide(file: &Path, bytes: &[u8]) {
    let meta = file.metadata().unwrap();
    assert_eq!(bytes.len() as u64, meta.len(), "of the same size");
    let changed_at = || file.metadata().map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
    // The clock of a file system ticks some hundred times a second.
    while changed_at() == (meta.ctime(), meta.ctime_nsec()) {
        fs::write(file, bytes).unwrap();
        fs::File::options().write(true).open(file).unwrap().set_modified(meta.modified().unwrap()).unwrap();
    }
}

#[test]
fn rows_that_stand_elsewhere_since_a_run_are_refused_by_name_and_those_behind_them_are_done() {
    for (kind, file, header, row) in [
        ("csv", "rows.csv", "id,text\n", (|n: u64| format!("{n},row {n:03}")) as fn(u64) -> String),
        ("jsonl", "rows.jsonl", "", |n| format!("{{\"id\": {n}, \"text\": \"row {n:03}\"}}")),
    ] {
        let place = rows_of(kind, file);
        let path = place.path(file);
        let text = |rows: &[u64]| {
            let rows: Vec<String> = rows.iter().map(|n| row(*n)).collect();
            format!("{header}{}", rows.join("\n"))
        };
        let rows: Vec<u64> = (100..120).collect();
        fs::write(&path, text(&rows)).unwrap();
        place.run(&[]).must_exit(0);
        let before = results(&place);
        let refused = |names: &[&str]| {
            place.run(&[]).must_exit(78).must_say(&["finished item", "`s`", "--fresh"]).must_say(names);
            place.run(&["--retry-failed"]).must_exit(78).must_say(names);
            assert_eq!(results(&place), before);
        };
        // One more above: all behind it are others, and one is new.
        fs::write(&path, text(&[&[999], &rows[..]].concat())).unwrap();
        let first =
            if kind == "csv" { "20 finished items are not the same any more" } else { "rows.jsonl:1`" };
        refused(&[first, file]);
        let mut swapped = rows.clone();
        swapped.swap(3, 17);
        fs::write(&path, text(&rows)).unwrap();
        edit_and_hide(&path, text(&swapped).as_bytes());
        let line = if kind == "csv" { 5 } else { 4 };
        refused(&[&format!("`{file}:{line}`, `{file}:{}`", line + 14), "2 finished items are not"]);
        // What comes behind is new, also behind a row that had no line feed; a copy is what it is a copy of.
        fs::write(&path, text(&[&rows[..], &[120, 121]].concat()) + "\n").unwrap();
        place.run(&[]).must_exit(0).must_say(&["22 items read, 22 done"]);
        assert!(results(&place).starts_with(&before));
    }
}

fn tar(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

fn zip(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in members {
        archive.start_file(&**name, stored).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

const KINDS: [(&str, &str); 6] = [
    ("csv", "a.csv"),
    ("jsonl", "a.jsonl"),
    ("tensors", "a.npy"),
    ("tar", "a.tar"),
    ("zip", "a.zip"),
    ("parquet", "a.parquet"),
];

/// The file of these numbers, an item each with so many bytes more, and what the items are called.
pub fn file_of(file: &str, rows: &[u64], more: usize) -> (Vec<u8>, Vec<String>) {
    let named = |name: &dyn Fn(usize, u64) -> String| {
        rows.iter().enumerate().map(|(at, n)| format!("{file}{}", name(at, *n))).collect::<Vec<_>>()
    };
    // No compression takes much of it.
    let text = |n: u64| {
        let mut rng = Rng::with_seed(n);
        (0..more).map(|_| rng.alphanumeric()).collect::<String>()
    };
    let lines = |line: &dyn Fn(u64) -> String| rows.iter().map(|n| line(*n)).collect::<String>().into_bytes();
    let members = |name: &str, bytes: &dyn Fn(u64) -> Vec<u8>| {
        rows.iter().map(|n| (format!("k{n}.{name}"), bytes(*n))).collect::<Vec<_>>()
    };
    let csv = || [b"id,text\n".to_vec(), lines(&|n| format!("{n},\"the\nrow{}\"\n", text(n)))].concat();
    let array = || match more {
        0 => npy(&format!("({},)", rows.len()), rows.iter().map(|n| *n as f32)),
        _ => {
            let each = more / 4;
            let numbers = rows.iter().flat_map(|n| std::iter::repeat_n(*n as f32, each));
            npy(&format!("({}, {each})", rows.len()), numbers)
        }
    };
    let by_place = || named(&|at, _| format!("[{at}]"));
    match file.rsplit('.').next().unwrap() {
        // Each row has two lines.
        "csv" => (csv(), named(&|at, _| format!(":{}", 2 + 2 * at))),
        "jsonl" => {
            let line = |n| format!("{{\"id\": {n}, \"t\": \"{}\"}}\n", text(n));
            (lines(&line), named(&|at, _| format!(":{}", 1 + at)))
        }
        "npy" => (array(), by_place()),
        "npz" => (zip(&[("x.npy".to_owned(), array())]), by_place()),
        "tar" => {
            let member = |n: u64| format!("{n}{}", text(n)).into_bytes();
            (tar(&members("txt", &member)), named(&|_, n| format!("/k{n}")))
        }
        "zip" => {
            let picture = |n: u64| {
                let mut png = Cursor::new(Vec::new());
                image::GrayImage::from_pixel(1, 1, image::Luma([n as u8]))
                    .write_to(&mut png, image::ImageFormat::Png)
                    .unwrap();
                // Behind its end a picture may have any bytes.
                [png.into_inner(), vec![0; more]].concat()
            };
            (zip(&members("png", &picture)), named(&|_, n| format!("/k{n}.png")))
        }
        // Our own sink makes it of CSV.
        _ => {
            let place = rows_of("csv", "a.csv");
            fs::write(place.path("a.csv"), csv()).unwrap();
            place.edit("kind = \"jsonl\"", "kind = \"parquet\"\npath = \"a.parquet\"\nordered = true");
            place.run(&[]).must_exit(0);
            (fs::read(place.out().join("a-00000.parquet")).unwrap(), by_place())
        }
    }
}

/// What each item of the results holds.
fn numbers(place: &Workplace) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for record in serde_json::Deserializer::from_slice(&results(place)).into_iter::<Value>() {
        let record = record.unwrap();
        let result = &record["result"];
        let values = [&result["id"], &result["x"], &result["pixels"]["data"][0][0][0], result];
        let number = values.iter().find_map(|value| value.as_f64().or_else(|| value.as_str()?.parse().ok()));
        let number = number.unwrap_or_else(|| panic!("{record}")) as u64;
        let is_new = found.insert(record["item"].as_str().unwrap().to_owned(), number).is_none();
        assert!(is_new, "an item has two records: {record}");
    }
    found
}

/// Another list of numbers, and whether the items that it had are the same under their names: then the run must go on, unless all of a file is compared.
fn edited(rng: &mut Rng, kind: &str, rows: &[u64]) -> (Vec<u64>, bool) {
    let (mut rows, n) = (rows.to_vec(), rows.len());
    let unused = (100..250).find(|number| !rows.contains(number)).unwrap();
    // A member of an archive is called by its key, and not by its place.
    let is_keyed = ["tar", "zip"].contains(&kind);
    match rng.u8(..5) {
        0 => rows.push(unused),
        1 => {
            let at = rng.usize(..n);
            rows.insert(at, unused);
            return (rows, is_keyed);
        }
        2 => {
            let (one, other) = (rng.usize(..n - 1), n - 1);
            rows.swap(one, other);
            return (rows, is_keyed);
        }
        3 => {
            rows[rng.usize(..n)] = unused;
            return (rows, false);
        }
        _ => {
            rows.remove(rng.usize(..n));
            return (rows, false);
        }
    }
    (rows, true)
}

#[test]
fn whatever_is_done_to_a_source_between_two_starts_no_record_is_wrong_lost_or_doubled_without_a_word() {
    let mut rng = random();
    for round in 0..scaled(300, 30) {
        let (kind, file) = KINDS[round % KINDS.len()];
        let place = rows_of(kind, file);
        let mut rows: Vec<u64> = (100..250).collect();
        rng.shuffle(&mut rows);
        rows.truncate(rng.usize(2..12));
        let path = place.path(file);
        fs::write(&path, file_of(file, &rows, 0).0).unwrap();
        place.run(&[]).must_exit(0);
        let before = results(&place);
        let (now, is_same) = edited(&mut rng, kind, &rows);
        let (bytes, names) = file_of(file, &now, 0);
        let of = |path: &Path| path.metadata().unwrap();
        match bytes.len() as u64 == of(&path).len() {
            true => edit_and_hide(&path, &bytes),
            false => {
                let time = of(&path).modified().unwrap();
                fs::write(&path, bytes).unwrap();
                fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            }
        }
        let what = format!("{kind}: {rows:?}, then {now:?}");
        let ended = place.run(&[]);
        if ended.status.code() == Some(78) {
            ended.must_say(&["`s`", "--fresh"]);
            assert_eq!(results(&place), before, "{what}");
            // Of a table or an array all of the file is compared.
            assert!(!is_same || ["tensors", "parquet"].contains(&kind), "{what}: {ended:?}");
        } else {
            ended.must_exit(0);
            let expected: BTreeMap<String, u64> = names.into_iter().zip(now).collect();
            assert_eq!(numbers(&place), expected, "{what}");
        }
    }
}
