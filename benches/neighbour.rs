//! What a pipeline in a crash loop costs its neighbour on the same device: one file with two pipelines, run with a model that works and with one
//! that kills its worker in every run. The other pipeline is the same in both, and has far more to do. The two take turns, round by round.
//!
//! Printed are seconds of the whole run of each, and their ratio: medians of the rounds. The crash loop ends when its stage has no device left,
//! and has the cores that are its share until then, which in the run that works are idle.
//! Run with `cargo bench -p orchestra-cli --bench neighbour [-- ITEMS ROUNDS]`. With the tests it runs too, one round of a few.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop where it stands")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;

use common::Workplace;
use orchestra_testkit::{DEADLY, IN_RUN, models};

const ITEMS: usize = 20_000;
const ROUNDS: usize = 5;
/// Pictures of the pipeline that crashes.
const OTHERS: u64 = 100;

fn main() {
    // `cargo bench` adds it.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    if !is_bench && std::env::args().len() > 1 {
        return; // `cargo test` looks for a certain test, or lists them.
    }
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let mut next = |most, test| if is_bench { numbers.next().unwrap_or(most) } else { test };
    let (items, rounds) = (next(ITEMS, 50), next(ROUNDS, 1));
    let (mut beside_work, mut beside_crashes, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut seconds = [0.0, 0.0];
        for turn in [round % 2, 1 - round % 2] {
            seconds[turn] = run(items, turn == 1);
        }
        beside_work.push(seconds[0]);
        beside_crashes.push(seconds[1]);
        ratios.push(seconds[1] / seconds[0]);
    }
    let (work, crashes, ratio) = (median(beside_work), median(beside_crashes), median(ratios));
    println!(
        "{items} items, seconds: beside a model that works {work:.2}, beside one in a crash loop {crashes:.2} ({ratio:.3} times)"
    );
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Seconds of a run, as it says itself, in which all items of the neighbour are done.
fn run(items: usize, crashes: bool) -> f64 {
    let place = Workplace::with_gate(OTHERS);
    let model = models::slow_blocks(&place.path("models"), [1, 32, 32], 40).unwrap();
    let mut list = String::new();
    (0..items).for_each(|n| writeln!(list, "{:08}.png", n as u64 % OTHERS).unwrap());
    fs::write(place.path("copies.txt"), list).unwrap();
    let other = format!(
        r#"
[sources.copies]
kind = "images"
manifest = "copies.txt"
root = "images"
[models.good]
path = {model:?}
[stages.small]
kind = "image"
from = "copies"
size = [32, 32]
color = "gray"
scale = 1.0
[stages.well]
kind = "infer"
from = "small"
model = "good"
[sinks.copies]
kind = "jsonl"
from = "well"
"#
    );
    fs::write(place.workflow(), fs::read_to_string(place.workflow()).unwrap() + &other).unwrap();
    let ended = if crashes { place.run_with(&[(DEADLY, IN_RUN)]) } else { place.run(&[]) };
    // Its items fail, or it has no device left before they do.
    let expected: &[i32] = if crashes { &[65, 69] } else { &[0] };
    assert!(expected.iter().any(|code| ended.status.code() == Some(*code)), "{}", ended.stderr);
    let report = place.report();
    assert_eq!(report["pipelines"]["copies"]["end"], "complete");
    report["seconds"].as_f64().unwrap()
}
