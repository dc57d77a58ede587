//! What a pipeline in a crash loop costs its neighbour on the same device: items per second of the neighbour while the other one idles (its
//! worker waits in a run), while it works, and while every batch of it kills its worker. The three take turns, round by round, and each run is
//! killed when the neighbour has done its items: by then the other pipeline has not come to its end.
//!
//! Printed are medians of the rounds: the rates, the ratios of that beside a crash loop to that beside one that idles and to that beside one that
//! works, and how many workers have died meanwhile.
//! Both pipelines have models of the same size, and one worker of one thread for each core that is theirs.
//! Run with `cargo bench -p orchestra-cli --bench neighbour [-- ITEMS ROUNDS]`. With the tests it runs too, one round of a few.
#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

use common::page::{page, page_address, sum, sum_of};
use common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::{Trap, models};
use rustix::process::Signal;

const ITEMS: usize = 10_000;
const ROUNDS: usize = 5;
/// Different pictures; behind them is the one that kills.
const PICTURES: u64 = 100;
/// Of so many rows of the pipeline that crashes, one kills: fewer than are in a batch.
const ONE_OF: usize = 4;
/// Matrix products of a model: how slow it is.
const STEPS: usize = 40;

/// What the other pipeline does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Idles,
    Works,
    Crashes,
}

/// What is seen of a run.
struct Seen {
    /// Items of the neighbour.
    per_second: f64,
    /// Workers that died meanwhile.
    deaths: f64,
}

fn main() {
    // `cargo bench` adds it.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    if !is_bench && std::env::args().len() > 1 {
        return; // `cargo test` looks for a certain test, or lists them.
    }
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let mut next = |most, test| if is_bench { numbers.next().unwrap_or(most) } else { test };
    let (items, rounds) = (next(ITEMS, 50), next(ROUNDS, 1));
    let (mut idle, mut work, mut crashes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut to_idle, mut to_work, mut deaths) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        idle.push(run(items, Other::Idles).per_second);
        work.push(run(items, Other::Works).per_second);
        let seen = run(items, Other::Crashes);
        crashes.push(seen.per_second);
        deaths.push(seen.deaths);
        to_idle.push(seen.per_second / idle[idle.len() - 1]);
        to_work.push(seen.per_second / work[work.len() - 1]);
    }
    println!(
        "{items} items, per second: beside a pipeline that idles {:.0}, that works {:.0}, in a crash loop {:.0} with {:.0} deaths",
        median(idle),
        median(work),
        median(crashes),
        median(deaths),
    );
    println!(
        "beside a crash loop: {:.3} of that beside one that idles, {:.3} of that beside one that works",
        median(to_idle),
        median(to_work)
    );
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The neighbour's rate over `items` of its items, from when both pipelines are at it.
fn run(items: usize, other: Other) -> Seen {
    let place = workplace(items, other);
    let arguments = ["--metrics", "127.0.0.1:0", "--set", "limits.batch_timeout=1h"];
    let mut run = place.start(&arguments);
    let address = page_address(&mut run);
    let exits = "orchestra_worker_exits_total";
    let out =
        |of: &str| sum_of(&page(address), "orchestra_stage_items_out_total", &format!("stage=\"{of}\""));
    let is_at_it = || match other {
        Other::Idles => place.waiting_at_gate() > 0,
        Other::Works => out("read") > 0.0,
        Other::Crashes => sum(&page(address), exits) > 0.0,
    };
    assert!(run.until("both are at it", || is_at_it() && out("well") > 0.0), "{}", run.said());
    let (begin, from, exits_before) = (Instant::now(), out("well"), sum(&page(address), exits));
    let mut done = 0.0;
    let is_done = run.until("the neighbour has done its items", || {
        done = out("well") - from;
        done >= items as f64
    });
    let seconds = begin.elapsed().as_secs_f64();
    assert!(is_done, "{}", run.said());
    let deaths = sum(&page(address), exits) - exits_before;
    assert!(!run.said().contains("no device is left"), "the crash loop has ended: {}", run.said());
    run.signal(Signal::KILL);
    run.wait();
    place.no_process_is_left();
    Seen { per_second: done / seconds, deaths }
}

/// Two pipelines on one device, each with more items than it can do until the neighbour has done `items`.
fn workplace(items: usize, other: Other) -> Workplace {
    let place = Workplace::new();
    let blocks = Blocks { steps: STEPS, trap: true, devices: 1, ..Blocks::default() };
    place.write_blocks(&blocks, "manifest = \"scans.txt\"\nroot = \"images\"");
    place.one_by_one();
    write_pictures(&place.images(), PICTURES);
    write_trap_picture(&place.images(), PICTURES, Trap::Abort).unwrap();
    if other == Other::Idles {
        place.close_gate_after(0);
    }
    let list = |one_of: Option<usize>| {
        let mut list = String::new();
        for n in 0..4 * items + 1_000 {
            let kills = one_of.is_some_and(|every| n % every == 0);
            let picture = if kills { PICTURES } else { n as u64 % PICTURES };
            writeln!(list, "{picture:08}.png").unwrap();
        }
        list
    };
    let kills = (other == Other::Crashes).then_some(ONE_OF);
    fs::write(place.path("scans.txt"), list(kills)).unwrap();
    fs::write(place.path("copies.txt"), list(None)).unwrap();
    let model = models::slow_blocks(&place.path("models"), [1, 32, 32], STEPS).unwrap();
    let neighbour = format!(
        r#"
[sources.copies]
kind = "images"
manifest = "copies.txt"
root = "images"
[models.good]
path = {model:?}
threads = 1
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
batch = {{ max = 8, wait = "5ms", together = 1 }}
[sinks.copies]
kind = "jsonl"
from = "well"
"#
    );
    fs::write(place.workflow(), fs::read_to_string(place.workflow()).unwrap() + &neighbour).unwrap();
    place
}
