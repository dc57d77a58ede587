//! A process that lists a file is killed in the middle of it: another one lists the file again, and no item is lost or there twice.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use crate::common::Workplace;
use orchestra_testkit::striker::{Fault, loaders_of, strike};
use rustix::process::Signal;
use serde_json::Value;

/// Their list is longer than what a socket holds.
const ROWS: usize = 30_000;

#[test]
fn a_list_whose_process_is_killed_is_finished_by_another_one_exactly() {
    let place = Workplace::new();
    let mut rows = String::from("n\n");
    (0..ROWS).for_each(|n| writeln!(rows, "{n}").unwrap());
    fs::write(place.path("rows.csv"), rows).unwrap();
    let text = "version = 1\n[sources.rows]\nkind = \"csv\"\npaths = [\"rows.csv\"]\ncolumns = { n = \"i64\" }\n[stages.all]\nkind = \"select\"\nfrom = \"rows\"\ncolumns = { n = \"n\" }\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = \"all\"\npath = \"results.jsonl\"\n";
    place.write(text);
    let mut run = place.start(&[]);
    let pid = run.pid();
    // The list is there with its first items, and a parent that stands still reads no more of them.
    let list = place.out().join(".orchestra");
    run.until("it lists", || list.exists() && !loaders_of(pid).is_empty());
    run.signal(Signal::STOP);
    for loader in loaders_of(pid) {
        let _ = strike(pid, loader.pid, Fault::Kill); // It may have ended by itself.
    }
    run.signal(Signal::CONT);
    run.wait().must_exit(0);
    let text = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
    let numbers = text.lines().map(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        (record["item"].as_str().unwrap().to_owned(), record["result"]["n"].to_string())
    });
    let numbers: Vec<(String, String)> = numbers.collect();
    let expected: BTreeSet<(String, String)> =
        (0..ROWS).map(|n| (format!("rows.csv:{}", n + 2), n.to_string())).collect();
    assert_eq!(numbers.len(), ROWS);
    assert!(numbers.into_iter().collect::<BTreeSet<_>>() == expected);
}
