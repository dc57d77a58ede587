//! Runs whose items are listed while they work: a manifest that is a pipe, fed by the test row by row. The list itself is tested in
//! `orchestra-store`.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::process::Stdio;

use crate::common::{Blocks, Run, Workplace, drawn, write_pictures};
use orchestra_testkit::records::items;
use rustix::process::Signal;

const ITEMS: u64 = 200;

/// A workplace whose manifest is a pipe, with pictures `0..ITEMS`.
struct Fed {
    place: Workplace,
    pipe: File,
}

impl Fed {
    fn new() -> Self {
        let place = Workplace::new();
        place.write_blocks(&Blocks::default(), "manifest = \"rows\"\nroot = \"images\"");
        write_pictures(&place.images(), ITEMS);
        let pipe = Self::new_pipe(&place);
        Self { place, pipe }
    }

    fn new_pipe(place: &Workplace) -> File {
        let (path, mode) = (place.path("rows"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
        drop(fs::remove_file(&path));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        // Both ways, or the opening would wait for a reader.
        OpenOptions::new().read(true).write(true).open(&path).unwrap()
    }

    fn feed(&mut self, rows: Range<u64>) {
        rows.for_each(|n| writeln!(self.pipe, "{n:08}.png").unwrap());
    }

    /// A start that has so many results, all of them of rows that were fed.
    #[track_caller]
    fn start_until(&self, n: usize) -> Run {
        let mut run = self.place.start(&[]);
        run.must_reach("the results of what is fed", || self.place.n_results() >= n);
        run
    }

    /// Starts it again with all rows, in front of them those in `more`, until it is done. A start that goes on lists all items first.
    fn complete(mut self, more: &str) -> Workplace {
        self.pipe = Self::new_pipe(&self.place);
        self.pipe.write_all(more.as_bytes()).unwrap();
        self.feed(0..ITEMS);
        let mut run = self.place.start(&[]);
        let reader = format!("/proc/{}/fd", run.pid());
        let opened = || {
            let open = fs::read_dir(&reader).into_iter().flatten().flatten();
            open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file == self.place.path("rows"))
        };
        run.must_reach("the pipe is opened", opened);
        drop(self.pipe);
        run.wait().must_exit(0).must_say(&["going on: "]);
        self.place.nothing_is_left();
        self.place
    }
}

#[test]
fn the_first_result_counts_while_the_writer_of_the_manifest_holds_more_back() {
    let mut fed = Fed::new();
    fed.feed(0..1);
    let mut run = fed.start_until(1);
    fed.place.holds_exactly(1);
    fed.feed(1..3);
    run.must_reach("the others", || fed.place.n_results() >= 3);
    assert!(run.is_running());
    fed.feed(3..ITEMS);
    drop(fed.pipe);
    run.wait().must_exit(0);
    fed.place.holds_exactly(ITEMS);
    let items = &fed.place.report()["items"];
    assert_eq!((&items["total"], &items["listed"]), (&ITEMS.into(), &ITEMS.into()));
    fed.place.nothing_is_left();
}

#[test]
fn standard_input_is_a_manifest_like_any_other() {
    let place = Workplace::new();
    place.write_blocks(&Blocks::default(), "manifest = \"-\"\nroot = \"images\"");
    write_pictures(&place.images(), 2);
    let (stdin, mut rows) = std::io::pipe().unwrap();
    let workflow = place.workflow();
    let mut run = place.start_command_fed(&["run", workflow.to_str().unwrap()], Stdio::from(stdin));
    writeln!(rows, "00000000.png").unwrap();
    run.must_reach("its result", || place.n_results() >= 1);
    writeln!(rows, "00000001.png").unwrap();
    drop(rows);
    run.wait().must_exit(0);
    place.holds_exactly(2);
}

#[test]
fn a_parent_that_is_killed_while_items_are_listed_loses_and_doubles_nothing_and_keeps_their_order() {
    let mut fed = Fed::new();
    fed.place.edit("path = \"results.jsonl\"", "path = \"results.jsonl\"\nordered = true");
    // Where no result counts yet, the next start lists anew, and works meanwhile.
    for rows in [0, 1] {
        let folder = fed.place.out().join(".orchestra");
        fed.feed(0..rows);
        let mut run = fed.place.start(&[]);
        run.must_reach("the output folder is made", || folder.exists());
        run.kill_in(&fed.place);
        fed.pipe = Fed::new_pipe(&fed.place);
    }
    fed.feed(0..5);
    let mut run = fed.start_until(5);
    // When it is written, the groups before it are in the journal.
    fed.feed(5..6);
    run.must_reach("one more", || fed.place.n_results() >= 6);
    run.kill_in(&fed.place);
    write_pictures(&fed.place.images(), ITEMS + 1);
    // A row that is new, before all others: it must take no number that was given.
    let place = fed.complete(&format!("{ITEMS:08}.png\n"));
    let records = place.must_hold(&items("scans", 0..=ITEMS), &items("scans", []));
    for key in records.done.keys() {
        let record = &records.done[key]["results.jsonl"];
        let name = record["item"].as_str().unwrap();
        assert_eq!(name, format!("{:08}.png", drawn(&records, key)), "{record}");
        assert!(key.index >= 5 || drawn(&records, key) == key.index, "{record} has another number now");
    }
    let written = place.lines("results.jsonl");
    assert!(written.iter().map(|record| record["index"].as_u64().unwrap()).eq(0..=ITEMS), "{written:?}");
}

#[test]
fn a_signal_stops_a_run_whose_manifest_is_silent_and_it_is_completed_later() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut fed = Fed::new();
        fed.feed(0..7);
        let run = fed.start_until(7);
        run.signal(signal);
        // The pipe stays open: the run does not wait for its end.
        run.wait().must_exit(130);
        let report = fed.place.report();
        assert!(report["items"]["total"].is_null(), "{report}");
        assert_eq!((&report["items"]["listed"], &report["items"]["done"]), (&7.into(), &7.into()));
        fed.place.holds_exactly(7);
        fed.place.nothing_is_left();
        let place = fed.complete("");
        place.holds_exactly(ITEMS);
        assert_eq!(place.report()["items"]["resumed"], 7);
    }
}

#[test]
fn a_row_that_makes_no_sense_ends_a_run_with_what_is_done_and_it_is_completed_later() {
    let mut fed = Fed::new();
    fed.feed(0..4);
    let run = fed.start_until(4);
    writeln!(fed.pipe, "./").unwrap();
    let ended = run.wait();
    let row = format!("manifest `{}`, line 5: its path names a folder", fed.place.path("rows").display());
    ended.must_exit(78).must_say(&[
        "the items of source `scans` cannot be listed: ",
        &row,
        "What is done is kept",
    ]);
    assert_eq!(fed.place.report()["exit_code"], 78);
    fed.place.holds_exactly(4);
    fed.place.nothing_is_left();
    fed.complete("").holds_exactly(ITEMS);
}

#[test]
fn a_source_that_cannot_be_listed_on_leaves_the_other_pipelines_of_its_file_running() {
    let mut fed = Fed::new();
    fed.place.edit(
        "[devices]",
        "[sources.others]\nkind = \"images\"\npaths = [\"images\"]\n[stages.gray]\nkind = \"image\"\nfrom = \"others\"\nsize = [1, 1]\n\
         color = \"gray\"\n[sinks.pixels]\nkind = \"jsonl\"\nfrom = \"gray\"\npath = \"pixels.jsonl\"\n[devices]",
    );
    fed.feed(0..1);
    let run = fed.start_until(1);
    writeln!(fed.pipe, "./").unwrap();
    run.wait().must_exit(78).must_say(&["the items of source `scans` cannot be listed: "]);
    let pixels = fs::read_to_string(fed.place.out().join("pixels.jsonl")).unwrap();
    assert_eq!(pixels.lines().count() as u64, ITEMS);
}

#[test]
fn a_share_of_failures_is_judged_once_it_is_known_of_how_many_items() {
    let mut fed = Fed::new();
    writeln!(fed.pipe, "gone.png").unwrap();
    let mut run = fed.place.start(&["--set", "limits.max_failed=20%"]);
    let failures = fed.place.out().join("failures.jsonl");
    let has_failed = || fs::metadata(&failures).is_ok_and(|m| m.len() > 0);
    run.must_reach("its failure", has_failed);
    // All items that are listed have failed, and the run goes on.
    fed.feed(0..ITEMS);
    drop(fed.pipe);
    run.wait().must_exit(65);
    let report = fed.place.report();
    assert_eq!((&report["items"]["done"], &report["items"]["failed"]), (&ITEMS.into(), &1.into()));
}
