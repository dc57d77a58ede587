//! A trace read back: tracks have names, slices of one do not overlap, arrows lead from slice to slice.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use orchestra_report::{read, trace};
use serde_json::Value;

use crate::{HOSTILE, Written};

/// Slices by process and track.
type SliceCounts = BTreeMap<(u64, u64), usize>;

/// Checks the trace of a run, and gives its slices, its arrows by their names, and its size.
fn checked(run: &Written<'_>) -> (SliceCounts, BTreeMap<String, usize>, usize) {
    let folder = run.write();
    let bytes = trace(&read(folder.path()).unwrap()).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(trace["otherData"]["workflow"], run.name);
    let events = trace["traceEvents"].as_array().unwrap();
    let track = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let of = |ph: &'static str| events.iter().filter(move |event| event["ph"] == ph);
    let named: BTreeSet<_> = of("M").filter(|event| event["name"] == "thread_name").map(track).collect();
    let processes: BTreeSet<u64> =
        of("M").filter(|event| event["name"] == "process_name").map(|event| track(event).0).collect();
    let mut slices: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for slice in of("X") {
        let began = slice["ts"].as_u64().unwrap();
        slices.entry(track(slice)).or_default().push((began, began + slice["dur"].as_u64().unwrap()));
    }
    for (track, slices) in &mut slices {
        assert!(named.contains(track) && processes.contains(&track.0), "{track:?} has no name");
        slices.sort_unstable();
        assert!(slices.windows(2).all(|pair| pair[0].1 <= pair[1].0), "slices of {track:?} overlap");
    }
    let mut ends: BTreeMap<u64, Vec<(&str, u64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<String, usize> = BTreeMap::new();
    for event in of("s").chain(of("f")) {
        let ts = event["ts"].as_u64().unwrap();
        let is_of_slice = slices[&track(event)].binary_search_by_key(&ts, |(began, _)| *began).is_ok();
        assert!(is_of_slice, "no slice begins where {event} stands");
        ends.entry(event["id"].as_u64().unwrap()).or_default().push((event["ph"].as_str().unwrap(), ts));
        *arrows.entry(event["name"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    for (id, ends) in ends {
        let [("s", from), ("f", to)] = ends[..] else { panic!("arrow {id} has {ends:?}") };
        assert!(from <= to, "arrow {id} leads back");
    }
    assert!(of("C").all(|event| event["args"].as_object().unwrap().values().all(Value::is_number)));
    (slices.into_iter().map(|(track, slices)| (track, slices.len())).collect(), arrows, bytes.len())
}

#[test]
fn every_slice_has_a_track_and_every_arrow_leads_from_slice_to_slice() {
    for name in ["plain", HOSTILE] {
        let run = Written { name, starts: 5, statuses: 50, stages: 4, tasks: 30, failures: 2 };
        let (slices, arrows, _) = checked(&run);
        assert_eq!(slices[&(1, 1)], 5, "a slice for each start");
        assert!(slices.keys().filter(|track| track.0 == 2).count() == 4, "a track for each stage");
        assert_eq!(slices.iter().filter(|(track, _)| track.0 == 3).map(|(_, n)| n).sum::<usize>(), 30);
        assert_eq!((arrows["goes on"], arrows["rows"] > 0), (2 * 4, true));
    }
}

#[test]
fn a_trace_of_ten_thousand_tasks_has_each_attempt_and_stays_small() {
    let run = Written { name: "usual", starts: 4, statuses: 512, stages: 12, tasks: 10_000, failures: 0 };
    let (slices, _, bytes) = checked(&run);
    assert_eq!(slices.iter().filter(|(track, _)| track.0 == 3).map(|(_, n)| n).sum::<usize>(), 10_000);
    assert!(bytes <= 1_000_000, "{bytes} bytes");
}
