//! The small examples: each gives the numbers of plain arithmetic over the same files, also while its workers are killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Workplace, copy_folder, python_env, repository};
use orchestra_testkit::striker::{Fault, Striker};

/// Runs an example of the repository to its end.
fn run(place: &Workplace, example: &str) {
    let (file, out) = (repository().join("examples").join(example).join("workflow.toml"), place.out());
    place
        .start_command(&["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()])
        .wait()
        .must_exit(0);
    assert!(place.failures().is_empty());
}

/// The numbers of an array.
fn numbers(file: &Path) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let data = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[data..].as_chunks().0.iter().map(|n| f32::from_le_bytes(*n)).collect()
}

/// The cells of a table behind `item,index,source`, by item; the names of the columns are in `columns`.
fn table(place: &Workplace, file: &str, columns: &str) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(place.out().join(file)).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(&*format!("item,index,source,{columns}")));
    let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut found = BTreeMap::new();
    for mut line in lines.map(cells) {
        let values = line.split_off(3);
        assert!(found.insert(line.swap_remove(0), values).is_none(), "an item has one line");
    }
    found
}

/// Numbers whose squares, and sums of these, are exact.
fn energy(row: &[f32]) -> f32 {
    row.iter().map(|x| x * x).sum()
}

#[test]
fn each_of_a_hundred_tasks_has_its_sum() {
    let place = Workplace::new();
    run(&place, "hundred-tasks");
    let arrays = fs::read_dir(repository().join("examples/hundred-tasks/arrays")).unwrap();
    let expected = arrays.map(|file| {
        let file = file.unwrap();
        (format!("{}[0]", file.file_name().to_str().unwrap()), energy(&numbers(&file.path())))
    });
    let expected: BTreeMap<String, f32> = expected.collect();
    let found = table(&place, "results.csv", "energy");
    assert_eq!(expected.len(), 100);
    assert_eq!(
        found.into_iter().map(|(item, cells)| (item, cells[0].parse().unwrap())).collect::<BTreeMap<_, _>>(),
        expected
    );
}

/// Whether levels and totals are those of these readings.
fn levels_are_exact(place: &Workplace, readings: &[f32]) {
    let rows: Vec<&[f32]> = readings.chunks(64).collect();
    let levels = table(place, "levels.csv", "energy,mean,is_loud");
    assert_eq!(levels.len(), rows.len());
    for (at, row) in rows.iter().enumerate() {
        let [energy, mean, is_loud] = &levels[&format!("readings.npy[{at}]")][..] else {
            panic!("three cells")
        };
        let expected = self::energy(row);
        assert_eq!(
            (energy.parse(), mean.parse(), is_loud.parse()),
            (Ok(expected), Ok(expected / 64.0), Ok(expected > 256.0))
        );
    }
    let only = |file: &str| {
        let mut found: Vec<_> = table(place, file, "sum,rows,items").into_values().collect();
        assert_eq!(found.len(), 1);
        found.remove(0).into_iter().map(|cell| cell.parse::<f32>().unwrap()).collect::<Vec<_>>()
    };
    let total: f64 = readings.iter().map(|x| f64::from(x * x)).sum();
    let n = rows.len() as f32;
    let louds = readings.iter().filter(|x| *x * *x > 9.0).count() as f32;
    assert_eq!((only("total.csv"), only("louds.csv")), (vec![total as f32, n, n], vec![louds, n, n]));
}

#[test]
fn levels_and_totals_of_readings_are_exact() {
    let place = Workplace::new();
    run(&place, "post-sum");
    levels_are_exact(&place, &numbers(&repository().join("examples/post-sum/readings.npy")));
}

#[test]
fn levels_and_totals_are_exact_while_a_worker_is_killed_every_300_ms() {
    const ROWS: usize = 60_000;
    let place = Workplace::new();
    let folder = place.path("examples/post-sum");
    copy_folder(&repository().join("examples/post-sum"), &folder);
    fs::copy(repository().join("models/energy.onnx"), place.path("models/energy.onnx")).unwrap();
    let readings: Vec<f32> =
        (0..64 * ROWS as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 27) as f32 / 4.0 - 4.0).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, 64), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend(readings.iter().flat_map(|x| x.to_le_bytes()));
    fs::write(folder.join("readings.npy"), bytes).unwrap();
    let (file, out) = (folder.join("workflow.toml"), place.out());
    let run = place.start_command(&["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()]);
    let storm = Striker::of_process(run.pid(), Duration::from_millis(300), Fault::Kill);
    let ended = run.wait();
    let killed = storm.stop().len();
    ended.must_exit(0);
    assert!(killed > 0);
    println!("{killed} kills, {} restarts", place.restarts());
    levels_are_exact(&place, &readings);
    place.no_process_is_left();
}

#[test]
fn two_arrays_of_ten_million_floats_are_added_in_chunks_bit_for_bit() {
    const COUNT: usize = 10_000_000;
    let place = Workplace::new();
    let folder = place.path("examples/vector-add");
    copy_folder(&repository().join("examples/vector-add"), &folder);
    fs::copy(repository().join("models/vector-add.onnx"), place.path("models/vector-add.onnx")).unwrap();
    let vectors = folder.join("vectors.npz");
    if !vectors.exists() {
        assert!(Command::new("python3").arg(folder.join("data.py")).status().unwrap().success());
    }
    let (file, out) = (folder.join("workflow.toml"), place.out());
    let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    place.start_command(&arguments).wait().must_exit(0).must_say(&["10 items read, 10 done"]);
    // The members of the archive are stored as they are.
    let archive = fs::read(vectors).unwrap();
    let (a, at) = array_in(&archive, 0);
    let (b, _) = array_in(&archive, at);
    let sum = fs::read(out.join("sum/whole.npy")).unwrap();
    let (sum, end) = array_in(&sum, 0);
    assert_eq!((a.len(), b.len(), sum.len()), (4 * COUNT, 4 * COUNT, 4 * COUNT));
    assert_eq!(end, fs::metadata(out.join("sum/whole.npy")).unwrap().len() as usize);
    for ((a, b), sum) in a.as_chunks().0.iter().zip(b.as_chunks().0).zip(sum.as_chunks().0) {
        let expected = f32::from_le_bytes(*a) + f32::from_le_bytes(*b);
        assert_eq!(f32::from_le_bytes(*sum).to_bits(), expected.to_bits());
    }
}

/// The elements of the first array of ten million floats behind `from`, and where they end.
fn array_in(bytes: &[u8], from: usize) -> (&[u8], usize) {
    let at = from + bytes[from..].windows(6).position(|window| window == b"\x93NUMPY").unwrap();
    let begin = at + 10 + usize::from(u16::from_le_bytes([bytes[at + 8], bytes[at + 9]]));
    assert!(str::from_utf8(&bytes[at + 10..begin]).unwrap().contains("'<f4'"));
    let end = begin + 40_000_000;
    (&bytes[begin..end], end)
}

/// The vectors of a table as pyarrow reads it.
fn vectors_in_parquet(python: &str, file: &Path) -> BTreeMap<String, Vec<f64>> {
    let script = "import json, sys, pyarrow.parquet as pq\n\
                  print(json.dumps({row['item']: row['embedding'] for row in pq.read_table(sys.argv[1]).to_pylist()}))";
    let read = Command::new(python).args(["-c", script]).arg(file).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

#[test]
fn each_image_has_a_vector_of_length_one_that_points_where_its_model_does() {
    let Some(python) = python_env("pyarrow") else { return };
    let place = Workplace::new();
    run(&place, "embeddings");
    let names = (0..10).map(|at| format!("logits.{at}")).collect::<Vec<_>>().join(",");
    let parse = |cells: Vec<String>| cells.iter().map(|cell| cell.parse().unwrap()).collect::<Vec<f64>>();
    let raw: BTreeMap<_, _> =
        table(&place, "raw.csv", &names).into_iter().map(|(item, cells)| (item, parse(cells))).collect();
    let vectors = vectors_in_parquet(&python, &place.out().join("table-00000.parquet"));
    assert!(raw.len() == 400 && raw.keys().eq(vectors.keys()));
    for (raw, vector) in raw.values().zip(vectors.values()) {
        let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
        let is_near = |(raw, x): (&f64, &f64)| (raw / length - x).abs() < 1e-6;
        assert!(vector.len() == 10 && raw.iter().zip(vector).all(is_near), "{vector:?} of {raw:?}");
    }
    let index = fs::read_to_string(place.out().join("vectors/index.jsonl")).unwrap();
    assert_eq!(index.lines().count(), 400);
    for line in index.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let file = numbers(&place.out().join("vectors").join(line["file"].as_str().unwrap()));
        let expected = &vectors[line["item"].as_str().unwrap()];
        assert!(file.iter().zip(expected).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-6) && file.len() == 10);
    }
}
