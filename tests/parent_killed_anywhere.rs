//! The run itself is killed (SIGKILL) at moments that no test chose, from the first instruction of a start to the middle of a commit: the
//! next start goes on exactly, and no worker outlives its parent. `kills.rs` chooses the moments by progress.

use std::collections::BTreeSet;

use crate::common::random::{let_pass, random};
use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::records::Records;
use orchestra_testkit::size::{scaled, storm};
use rustix::process::Signal;
use serde_json::Value;

const ITEMS: u64 = 3_000;
/// Starts after which it is no use to go on.
const MOST_STARTS: usize = 200;
/// The longest life of a start that is killed, at first: it grows where too few kills are in the middle, and shrinks
/// where a start came to its end.
const LONGEST_MS: u64 = 900;

#[test]
fn kills_of_the_parent_at_any_moment_lose_nothing_and_double_nothing() {
    let place = Workplace::with_blocks(&Blocks { steps: 150, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    let _turn = storm();
    let mut random = random();
    // Of so many kills, so many must hit a start which has written results and has more to write.
    let (kills, least_in_the_middle) = scaled((25, 5), (8, 2));
    let (mut starts, mut killed, mut in_the_middle, mut longest) = (0, 0, 0, LONGEST_MS);
    let mut arguments: &[&str] = &[];
    let mut wrote_since_fresh = 0;
    while killed < kills || in_the_middle < least_in_the_middle {
        starts += 1;
        assert!(starts <= MOST_STARTS, "{killed} starts were killed, {in_the_middle} of them in the middle");
        let before = if arguments.is_empty() { place.n_results() } else { 0 };
        let run = place.start(arguments);
        let_pass(random.u64(0..longest));
        run.signal(Signal::KILL);
        let ended = run.wait();
        place.no_process_is_left();
        if ended.status.code().is_some() {
            // It came to its end before that. The next one begins anew.
            ended.must_exit(0);
            place.holds_exactly(ITEMS);
            (arguments, wrote_since_fresh) = (&["--fresh"], 0);
            longest = longest * 2 / 3;
            continue;
        }
        killed += 1;
        arguments = &[];
        let results = place.n_results();
        wrote_since_fresh += usize::from(before < results);
        match before < results && (results as u64) < ITEMS {
            true => in_the_middle += 1,
            // Most lives end before the first result: they must be longer for the middle to be hit.
            false if in_the_middle * 4 < killed => longest = longest * 5 / 4,
            false => {}
        }
        if whole_records(&place) {
            assert!(Records::read(&place.out(), &["results.jsonl"]).unwrap().failed.is_empty());
        }
    }
    println!("{in_the_middle} of {killed} kills were in the middle of the work");
    place.run(&[]).must_exit(0);
    place.holds_exactly(ITEMS);
    assert!(place.failures().is_empty());
    place.nothing_is_left();
    the_history_is_whole(&place, wrote_since_fresh + 1);
}

/// It has each start that did something, and of the last one the end of each worker and its own.
fn the_history_is_whole(place: &Workplace, least_starts: usize) {
    let text = std::fs::read_to_string(place.out().join(".orchestra/history.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |what: &'static str| lines.iter().enumerate().filter(move |(_, line)| line["what"] == what);
    assert!(of("start").count() >= least_starts, "{} of {least_starts} starts", of("start").count());
    let last = of("start").next_back().unwrap().0;
    let workers =
        |what| of(what).filter(|(at, _)| *at > last).map(|(_, line)| line["worker"].to_string()).collect();
    let [started, ended]: [BTreeSet<String>; 2] = ["worker_started", "worker_ended"].map(workers);
    assert!(!started.is_empty() && started == ended, "{started:?} {ended:?}");
    let status = of("status").next_back().unwrap().1;
    assert_eq!((&status["items"]["done"], &status["version"]), (&ITEMS.into(), &1.into()));
    assert_eq!(lines.last().unwrap()["exit_code"], 0);
}

/// The last record may be torn, where the kill hit the write: the next start cuts it off. And there may be none yet.
fn whole_records(place: &Workplace) -> bool {
    std::fs::read(place.out().join("results.jsonl"))
        .is_ok_and(|bytes| bytes.last().is_none_or(|b| *b == b'\n'))
}
