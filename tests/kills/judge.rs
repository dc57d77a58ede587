//! What must hold of an output folder however often something was killed on the way to it: judges files alone, and neither journal nor log.

use std::collections::BTreeSet;

use super::shapes::Shape;
use crate::common::Workplace;
use orchestra_testkit::records::items;

/// Exactly these items have ended, each once and with its own values in each sink, nothing else is there, and no process is left.
#[track_caller]
pub fn assert_exact(place: &Workplace, shape: &Shape, n: u64) {
    let records = place.must_hold(&items(shape.source, 0..n), &BTreeSet::new());
    for (key, of_item) in &records.done {
        let record = &of_item["results.jsonl"];
        assert!(
            (shape.shows)(record, key.index),
            "{}: the record of `{key}` shows another item: {record}",
            shape.name
        );
    }
    (shape.judge)(place, n);
    let n = n + (shape.made)(n);
    is_verified(place, n);
    let report = &place.report()["items"];
    let counted = [&report["total"], &report["done"], &report["failed"]].map(|count| count.as_u64().unwrap());
    assert_eq!(counted, [n, n, 0], "{}: {report}", shape.name);
    assert!(place.failures().is_empty());
    let results: BTreeSet<&str> = shape.results.iter().copied().collect();
    place.nothing_is_left_but(&results.into_iter().collect::<Vec<_>>());
}

/// `orchestra verify` counts these items from the files.
#[track_caller]
pub fn is_verified(place: &Workplace, n: u64) {
    let verified = place.on_out("verify", &[]);
    let said = verified.must_exit(0).stdout.replace(',', "");
    assert!(
        said.contains("0 lost 0 doubled") && said.contains(&format!("{n} items: {n} done 0 failed")),
        "{said}"
    );
}
