//! Folders that are watched: what appears is taken once, when it is whole, over any number of starts, until the run is stopped or nothing
//! comes any more.

use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::common::{Blocks, Run, Workplace};
use orchestra_testkit::images::{Kind, write_picture};
use rustix::process::Signal;

/// Nothing new is whole before the test says so.
const LONG: &str = "paths = [\"images\"]\nwatch = true\nwatch_settle = \"1h\"";
/// What is new is whole at once.
const SHORT: &str = "paths = [\"images\"]\nwatch = true\nwatch_settle = \"10ms\"\nwatch_idle = \"1s\"";

fn place(listing: &str) -> Workplace {
    let place = Workplace::new();
    place.write_blocks(&Blocks::default(), listing);
    fs::create_dir(place.path("made")).unwrap();
    place
}

/// Moves pictures into the folder, one after the other, in the order of their numbers.
fn bring(place: &Workplace, pictures: Range<u64>, are_old: bool) {
    for index in pictures {
        let made = write_picture(&place.path("made"), index, 32, 32, Kind::Png).unwrap();
        if are_old {
            make_old(&made);
        }
        fs::rename(&made, place.images().join(made.file_name().unwrap())).unwrap();
    }
}

/// As if it lay there for long.
fn make_old(path: &PathBuf) {
    let before = SystemTime::now() - Duration::from_secs(7_200);
    File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
}

#[track_caller]
fn until_results(place: &Workplace, run: &mut Run, n: usize) {
    run.must_reach("the results", || place.n_results() >= n);
}

#[test]
fn what_appears_is_taken_once_over_stops_and_kills() {
    let place = place(LONG);
    // Nothing is there yet.
    let mut run = place.start(&[]);
    run.must_reach("it watches", || place.out().join(".orchestra/items-scans").exists());
    bring(&place, 0..10, true);
    until_results(&place, &mut run, 10);
    bring(&place, 10..30, true);
    until_results(&place, &mut run, 30);
    run.signal(Signal::TERM);
    run.wait().must_exit(130);
    let report = place.report();
    assert_eq!(report["items"]["done"], 30);
    assert!(report["items"]["total"].is_null() && report["sources"]["scans"].is_null(), "{report}");
    assert_eq!(report["items"]["extent"], "endless", "{report}");
    place.holds_exactly(30);

    // What came while no run watched, and what was done and is gone.
    bring(&place, 30..40, true);
    (0..5).for_each(|n| fs::remove_file(place.images().join(format!("{n:08}.png"))).unwrap());
    let mut run = place.start(&[]);
    until_results(&place, &mut run, 40);
    run.kill_in(&place);
    bring(&place, 40..50, true);
    // The same path again is the same item.
    bring(&place, 0..3, true);
    let mut run = place.start(&[]);
    until_results(&place, &mut run, 50);
    run.signal(Signal::INT);
    run.wait().must_exit(130);
    place.holds_exactly(50);
    // Nothing is left to watch for, where the workflow says so.
    place.edit(
        "watch = true\nwatch_settle = \"1h\"",
        "watch = true\nwatch_settle = \"10ms\"\nwatch_idle = \"100ms\"",
    );
    place.run(&[]).must_exit(0);
    place.holds_exactly(50);
    let verified = place.on_out("verify", &[]);
    verified.must_exit(0).must_print(&["50 items: 50 done, 0 failed"]);
    place.nothing_is_left();
}

#[test]
fn a_file_that_is_still_being_written_is_not_taken() {
    let place = place(LONG);
    bring(&place, 0..1, true);
    let mut run = place.start(&[]);
    until_results(&place, &mut run, 1);
    // Half of it, and others that came later.
    let made = write_picture(&place.path("made"), 3, 32, 32, Kind::Png).unwrap();
    let (bytes, slow) = (fs::read(&made).unwrap(), place.images().join("00000003.png"));
    fs::write(&slow, &bytes[..bytes.len() / 2]).unwrap();
    bring(&place, 1..3, true);
    until_results(&place, &mut run, 3);
    place.holds_exactly(3);
    fs::write(&slow, &bytes).unwrap();
    make_old(&slow);
    until_results(&place, &mut run, 4);
    run.signal(Signal::TERM);
    run.wait().must_exit(130);
    place.holds_exactly(4);
    place.nothing_is_left();
}

#[test]
fn a_run_is_complete_once_nothing_came_for_so_long() {
    let place = place(SHORT);
    bring(&place, 0..3, false);
    place.run(&[]).must_exit(0).must_say(&["3 items read, 3 done"]);
    place.holds_exactly(3);
    assert_eq!(place.report()["items"]["total"], 3);
    bring(&place, 3..5, false);
    place.run(&[]).must_exit(0);
    place.holds_exactly(5);
    assert_eq!(place.report()["items"]["resumed"], 3);
    // Without the watch the same run goes on as any other.
    place.edit("watch = true\nwatch_settle = \"10ms\"\nwatch_idle = \"1s\"", "");
    bring(&place, 5..6, false);
    place.run(&[]).must_exit(0);
    place.holds_exactly(6);
}

#[test]
fn rows_of_files_that_appear_are_items_and_rubbish_fails_alone() {
    let place = place(SHORT);
    let row = |n: usize| format!("{{\"x\": [{n}.0]}}\n");
    let rows = |range: Range<usize>| range.map(row).collect::<String>();
    fs::write(
        place.workflow(),
        "version = 1\n[sources.rows]\nkind = \"jsonl\"\npaths = [\"images/*.jsonl\"]\nwatch = true\nwatch_settle = \"10ms\"\nwatch_idle = \"100ms\"\n\
         [sources.rows.columns]\nx = \"f32[1]\"\n[stages.kept]\nkind = \"filter\"\nfrom = \"rows\"\nkeep = \"x[0] >= 0\"\n\
         [sinks.results]\nkind = \"csv\"\nfrom = \"kept\"\n",
    )
    .unwrap();
    fs::write(place.images().join("a.jsonl"), rows(0..7)).unwrap();
    place.run(&[]).must_exit(0);
    fs::write(place.images().join("b.jsonl"), rows(7..9)).unwrap();
    place.run(&[]).must_exit(0);
    let text = fs::read_to_string(place.out().join("results.csv")).unwrap();
    let mut found: Vec<String> =
        text.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().to_owned()).collect();
    found.sort_by_key(|x| x.parse::<f32>().unwrap() as u32);
    assert_eq!(found, (0..9).map(|n| n.to_string()).collect::<Vec<_>>(), "{text}");
    fs::write(place.images().join("c.jsonl"), "no json\n").unwrap();
    fs::write(place.images().join("d.jsonl"), rows(9..10)).unwrap();
    place.run(&[]).must_exit(65).must_say(&["c.jsonl:1", "11 items read, 10 done, 1 failed"]);
}

#[test]
fn what_cannot_be_watched_is_told_with_what_to_do() {
    let place = place("manifest = \"list.txt\"\nwatch = true");
    fs::write(place.path("list.txt"), "a.png\n").unwrap();
    place.run(&[]).must_exit(78).must_say(&[
        "`watch`",
        "a manifest cannot be watched",
        "paths = [\"inbox\"]",
    ]);
    for (listing, words) in [
        ("paths = [\"images\"]\nwatch_idle = \"3s\"", ["`watch_idle`", "add watch = true"]),
        (
            "paths = [\"images\"]\nwatch = true\nwatch_idle = \"3s\"",
            ["less than twice `watch_settle`", "\"4s\""],
        ),
        (
            "paths = [\"inbox/*.png\"]\nwatch = true",
            ["`inbox/*.png` cannot be watched: there is no folder", "make it first"],
        ),
    ] {
        place.write_blocks(&Blocks::default(), listing);
        place.run(&[]).must_exit(78).must_say(&words);
    }
}
