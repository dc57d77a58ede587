//! The order in which a file has its tables changes the numbers of stages and nothing else: the same reports, and a plan of which the same is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::{DIGITS, FakeHost, crops};
use orchestra_plan::{PlanOptions, describe};

/// `text` from its first table on, cut before each line that opens one, and what stands before.
fn tables(text: &str) -> (&str, Vec<&str>) {
    let starts: Vec<usize> = text.match_indices("\n[").map(|(at, _)| at + 1).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let head = starts.first().map_or(text, |first| &text[..*first]);
    (head, starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect())
}

/// What is said of a file: reports without their places, what a run that goes on must have in common, and the words of the plan.
#[derive(Debug, PartialEq)]
struct Said {
    reports: BTreeMap<String, usize>,
    fingerprint: BTreeMap<String, String>,
    plan: BTreeMap<String, usize>,
}

fn count(texts: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    texts.for_each(|text| *counts.entry(text).or_default() += 1);
    counts
}

/// Which words a report has: a circle of stages, or a list of names, begins with what stands first.
fn words(text: &str) -> String {
    let words: BTreeSet<&str> = text.split([' ', ',', ':']).collect();
    words.into_iter().collect::<Vec<_>>().join(" ")
}

fn said(host: &FakeHost, text: &str) -> Said {
    let (plan, diags) = host.plan(text, &PlanOptions::default());
    let told = plan.as_ref().map(describe).unwrap_or_default();
    Said {
        reports: count(
            diags
                .all()
                .iter()
                .map(|d| format!("{:?} {}", d.severity, words(&format!("{} {}", d.message, d.label)))),
        ),
        fingerprint: plan.map(|plan| plan.fingerprint.into_iter().collect()).unwrap_or_default(),
        plan: count(told.lines().map(words)),
    }
}

#[test]
fn another_order_of_tables_gives_the_same_reports_and_the_same_plan() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let mut texts: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    texts.extend([DIGITS.to_owned(), crops().to_string()]);
    assert!(texts.len() >= 20);
    for host in [FakeHost::with_cores(4), FakeHost::with_gpus(2)] {
        for text in &texts {
            let text = &format!("{text}\n");
            let (head, tables) = tables(text);
            let as_written = said(&host, text);
            let backwards: Vec<&str> = tables.iter().rev().copied().collect();
            let halves: Vec<&str> =
                (0..2).flat_map(|odd| tables.iter().skip(odd).step_by(2).copied()).collect();
            for order in [backwards, halves] {
                let changed = format!("{head}{}", order.concat());
                assert_eq!(said(&host, &changed), as_written, "{changed}");
            }
        }
    }
}
