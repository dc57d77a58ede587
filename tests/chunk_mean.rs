//! The example that reduces a whole run: each mean is the float nearest to the exact one of the chunks, and a second start writes nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Workplace;
use serde_json::Value;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/chunk-mean").canonicalize().unwrap()
}

/// The good readings of each station.
fn good_readings() -> BTreeMap<String, Vec<[f32; 4]>> {
    let mut good: BTreeMap<String, Vec<[f32; 4]>> = BTreeMap::new();
    for station in fs::read_dir(example().join("chunks")).unwrap().map(|entry| entry.unwrap()) {
        let rows = good.entry(station.file_name().into_string().unwrap()).or_default();
        for chunk in fs::read_dir(station.path()).unwrap() {
            let bytes = fs::read(chunk.unwrap().path()).unwrap();
            let data = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
            let numbers: Vec<f32> =
                bytes[data..].as_chunks().0.iter().map(|n| f32::from_le_bytes(*n)).collect();
            rows.extend(numbers.as_chunks().0.iter().filter(|row: &&[f32; 4]| row[0] >= 0.5));
        }
    }
    good
}

/// In units of 2^-80: exact for readings.
fn fixed(v: f32) -> i128 {
    const UNITS: f64 = (1_u128 << 80) as f64;
    (f64::from(v) * UNITS) as i128
}

#[test]
fn each_station_has_the_mean_that_is_nearest_to_the_exact_one() {
    let place = Workplace::new();
    let (file, out) = (example().join("workflow.toml"), place.out());
    let run = || {
        let run = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        place.start_command(&run).wait().must_exit(0);
        ["means.csv", "number.jsonl"].map(|file| fs::read_to_string(out.join(file)).unwrap())
    };
    let [means, number] = run();
    let good = good_readings();
    let mut lines = means.lines();
    assert_eq!(lines.next(), Some("item,index,source,mean.0,mean.1,mean.2,mean.3,rows,items"));
    for ((station, rows), line) in good.iter().zip(lines.by_ref()) {
        let cells: Vec<&str> = line.split(',').collect();
        let n = rows.len();
        assert_eq!((cells[0], cells[7], cells[8]), (station.as_str(), &*n.to_string(), &*n.to_string()));
        for (column, cell) in cells[3..7].iter().enumerate() {
            let (mean, sum): (f32, i128) =
                (cell.parse().unwrap(), rows.iter().map(|row| fixed(row[column])).sum());
            let distance = |v: f32| (fixed(v) * n as i128 - sum).abs();
            let neighbours = [mean.next_up(), mean.next_down()];
            assert!(neighbours.iter().all(|other| distance(mean) <= distance(*other)), "{station}: {line}");
        }
    }
    assert_eq!(lines.next(), None);
    let number_of_rows: Value = serde_json::from_str(&number).unwrap();
    assert_eq!(number_of_rows["result"]["rows"], good.values().map(Vec::len).sum::<usize>());
    assert_eq!(run(), [means, number], "a run that is finished does nothing");
}
