//! A hundred thousand pictures while a loader is killed and another one stopped every 100 ms: each picture has one record, that of its own pixels,
//! and none failed. Says nothing about what that costs in time.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::Workplace;
use orchestra_testkit::striker::{Fault, Striker};
use serde_json::Value;

const ITEMS: u64 = 100_000;
const EVERY: Duration = Duration::from_millis(100);
/// So many strikes of each sort must have hit for the test to mean anything.
const LEAST_STRIKES: usize = 20;

/// Pictures of one pixel, whose colour is their number.
const PICTURES: &str = "
import struct, sys, zipfile
with zipfile.ZipFile(sys.argv[2], 'w') as z:
    for n in range(int(sys.argv[1])):
        head = struct.pack('<2sIIIIiiHHIIiiII', b'BM', 58, 0, 54, 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0)
        z.writestr(f'{n:06}.bmp', head + bytes([n >> 16, n >> 8 & 255, n & 255, 0]))
";

const WORKFLOW: &str = "version = 1
[sources.scans]
kind = \"zip\"
paths = [\"pictures.zip\"]
[stages.pixels]
kind = \"image\"
from = \"scans\"
size = [1, 1]
scale = 1.0
[sinks.results]
kind = \"jsonl\"
from = \"pixels\"
path = \"results.jsonl\"
[limits]
loaders = 16
";

/// The number that the pixel of a record shows.
fn shown(record: &Value) -> u64 {
    let column = record["result"].as_object().unwrap().values().next().unwrap();
    fn flat(value: &Value, to: &mut Vec<u64>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| flat(value, to)),
            number => to.push(number.as_f64().unwrap() as u64),
        }
    }
    let mut colours = Vec::new();
    flat(&column["data"], &mut colours);
    colours.iter().rev().fold(0, |n, colour| n << 8 | colour)
}

#[test]
fn a_hundred_thousand_items_survive_a_storm_of_killed_and_stopped_loaders_exactly() {
    let place = Workplace::new();
    let archive = place.path("pictures.zip");
    let written = Command::new("python3").args(["-c", PICTURES, &ITEMS.to_string()]).arg(archive).status();
    assert!(written.unwrap().success());
    fs::write(place.workflow(), WORKFLOW).unwrap();
    let run = place.start(&[]);
    let kills = Striker::of_loaders(run.pid(), EVERY, Fault::Kill);
    let stops = Striker::of_loaders(run.pid(), EVERY, Fault::Stop);
    let ended = run.wait();
    let (killed, stopped) = (kills.stop(), stops.stop());
    ended.must_exit(0).must_say(&["100,000 done, 0 failed"]);
    let text = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let index = record["index"].as_u64().unwrap();
        assert_eq!(shown(&record), index, "the record of another picture: {line}");
        assert!(found.insert(index), "an item is there twice: {line}");
    }
    assert!(found.iter().copied().eq(0..ITEMS), "{} items", found.len());
    assert!(place.failures().is_empty());
    let (all, restarts) = (
        killed.iter().chain(&stopped).collect::<BTreeSet<_>>().len(),
        &place.report()["loaders"]["restarts"],
    );
    println!(
        "{} loaders were killed and {} stopped, {all} of them different; {restarts} restarts",
        killed.len(),
        stopped.len()
    );
    assert!(killed.len() >= LEAST_STRIKES && stopped.len() >= LEAST_STRIKES, "the run is too short");
    assert!(restarts.as_u64().unwrap() >= LEAST_STRIKES as u64, "{restarts}");
    place.nothing_is_left();
}
