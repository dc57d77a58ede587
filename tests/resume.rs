//! What a second start makes of what the first one left: goes on exactly, says what changed, refuses what it must. Says nothing about
//! kills (`kills.rs`) and signals (`interrupt.rs`).

use std::fs;
use std::path::PathBuf;

use crate::common::Workplace;
use orchestra_onnx::library::{self, Env, Flavor, LibraryRequest};
use orchestra_testkit::images::{Kind, write_bad_pictures, write_picture};
use orchestra_testkit::records::items;
use orchestra_testkit::{models, trap_library};
use rustix::process::Signal;

/// A run of 200 pictures that has ended well.
fn finished() -> Workplace {
    let place = Workplace::with_pictures(200);
    place.run(&[]).must_exit(0);
    place.holds_exactly(200);
    place
}

fn results(place: &Workplace) -> Vec<u8> {
    fs::read(place.out().join("results.jsonl")).unwrap()
}

#[test]
fn a_finished_run_that_is_started_again_says_so_and_changes_nothing() {
    let place = finished();
    let (before, report) = (results(&place), place.report());
    place
        .run(&[])
        .must_exit(0)
        .must_say(&["was finished before, nothing is left to do", "200 done, 0 failed"]);
    assert_eq!((results(&place), place.report()), (before, report));
    place.nothing_is_left();
}

#[test]
fn a_finished_run_with_failures_ends_again_with_their_code() {
    let place = Workplace::with_pictures(20);
    write_bad_pictures(&place.images()).unwrap();
    place.run(&[]).must_exit(65);
    let failures = place.failures();
    place.run(&[]).must_exit(65).must_say(&["was finished before", "20 done, 5 failed", "failures.jsonl"]);
    assert_eq!(place.failures(), failures);
}

#[test]
fn what_changed_is_named_and_nothing_is_touched() {
    let place = finished();
    let before = results(&place);
    let refused = |arguments: &[&str], says: &[&str]| {
        place.run(arguments).must_exit(78).must_say(says).must_say(&["--fresh"]);
        assert_eq!(results(&place), before, "{says:?}");
    };
    refused(&["--set", "models.blocks.tf32=false"], &["`tf32` of model `blocks` changed from true to false"]);
    refused(&["--set", "stages.pixels.scale=2.0"], &["stage `pixels` changed", "200 finished items"]);
    let (model, kept) = (place.path("models/blocks.onnx"), place.path("models/kept.onnx"));
    fs::rename(&model, &kept).unwrap();
    fs::rename(models::slow_blocks(&place.path("models"), [1, 32, 32], 1).unwrap(), &model).unwrap();
    refused(&[], &["model `blocks` changed"]);
    fs::rename(kept, model).unwrap();
    fs::remove_file(place.images().join("00000017.png")).unwrap();
    refused(&[], &["source `scans`", "00000017.png"]);
    // Another folder is another run.
    place.run(&["--output", place.path("other").to_str().unwrap()]).must_exit(0);
}

/// An appended byte is no other code, and another file.
#[test]
fn operators_or_external_weights_that_changed_since_a_run_was_interrupted_are_named_and_nothing_is_touched() {
    const ITEMS: u64 = 2_000;
    let place = Workplace::with_gate(ITEMS);
    let folder = place.path("models");
    let model = models::weighted_blocks_behind_trap(&folder, [1, 32, 32]).unwrap();
    place.edit(&format!("{:?}", folder.join("blocks_behind_trap.onnx")), &format!("{model:?}"));
    let (built, library) = (trap_library().unwrap(), folder.join("ops.so"));
    fs::copy(&built, &library).unwrap();
    place.edit(&format!("{built:?}"), "\"models/ops.so\"");
    let mut run = place.start_until(100);
    run.signal(Signal::INT);
    run.must_say("stopping: finishing what is in flight");
    place.open_gate();
    run.wait().must_exit(130);
    let before = results(&place);
    for (file, change) in [
        (&library, "`custom_ops` of model `blocks` changed"),
        (&folder.join("weights.bin"), "external weights of model `blocks` changed"),
    ] {
        let bytes = fs::read(file).unwrap();
        fs::write(file, [&bytes[..], &[0]].concat()).unwrap();
        for arguments in [&[][..], &["--retry-failed"]] {
            place.run(arguments).must_exit(78).must_say(&[change, "--fresh", "finished items"]);
        }
        assert_eq!(results(&place), before, "{change}");
        fs::write(file, bytes).unwrap();
    }
    place.run(&[]).must_exit(0).must_say(&["going on: "]);
    place.holds_exactly(ITEMS);
    let longer = [fs::read(&library).unwrap(), vec![0]].concat();
    fs::write(&library, longer).unwrap();
    place.run(&["--fresh"]).must_exit(0).must_say(&["2,000 finished items are discarded"]);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}

#[test]
fn another_onnxruntime_is_named_and_nothing_is_touched() {
    let place = finished();
    let before = results(&place);
    let (version, other) = other_library(&place);
    let with_other = [("ORT_DYLIB_PATH", other.to_str().unwrap())];
    place.run_with(&with_other).must_exit(0).must_say(&["was finished before"]);
    write_picture(&place.images(), 200, 32, 32, Kind::Png).unwrap();
    let change = format!("ONNX Runtime changed from {version} to 1.31.99");
    place.run_with(&with_other).must_exit(78).must_say(&[&change, "--fresh", "200 finished items"]);
    assert_eq!(results(&place), before);
    place.run(&[]).must_exit(0);
    place.holds_exactly(201);
    place.start_on_file("run", &["--fresh"], &with_other).wait().must_exit(0);
    place.holds_exactly(201);
}

#[test]
fn failures_that_another_onnxruntime_would_retry_stay_as_they_are() {
    let place = Workplace::with_pictures(20);
    write_bad_pictures(&place.images()).unwrap();
    place.run(&[]).must_exit(65);
    let before = (results(&place), place.failures());
    assert_eq!(before.1.len(), 5);
    let ((_, other), workflow) = (other_library(&place), place.workflow());
    let retry = ["run", workflow.to_str().unwrap(), "--retry-failed"];
    let ended = place.start_command_with(&retry, &[("ORT_DYLIB_PATH", other.to_str().unwrap())]).wait();
    ended.must_exit(78).must_say(&["ONNX Runtime changed", "to 1.31.99", "--fresh"]);
    assert_eq!((results(&place), place.failures()), before, "they have not failed with this one");
    place.run(&["--retry-failed"]).must_exit(65).must_say(&["5 failed ones are tried again"]);
    place.no_process_is_left();
}

/// The version of the library that is used, and the same library under a name that says another version.
fn other_library(place: &Workplace) -> (String, PathBuf) {
    let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: true };
    let library = library::find(&request, &Env::from_process()).0.unwrap();
    let other = place.path("libonnxruntime.so.1.31.99");
    fs::copy(library.path, &other).unwrap();
    (library.version.unwrap(), other)
}

#[test]
fn another_version_of_a_decoder_is_named_and_nothing_is_touched() {
    let place = finished();
    let before = results(&place);
    let journal = place.out().join(".orchestra/journal");
    let written = crate::forged::frames(&journal);
    // As a program wrote it that was built with another one.
    let png = orchestra_media::DECODERS.split(", ").find(|decoder| decoder.starts_with("png ")).unwrap();
    let other = png.replace(|digit: char| digit.is_ascii_digit(), "9");
    let mut frames = written.clone();
    assert!(crate::forged::replace(&mut frames, png, &other) > 0);
    crate::forged::write_frames(&journal, &frames);
    let was = orchestra_media::DECODERS.replace(png, &other);
    let change = format!("what decodes source `scans` changed from {was} to {}", orchestra_media::DECODERS);
    for arguments in [&[][..], &["--retry-failed"]] {
        place.run(arguments).must_exit(78).must_say(&[&change, "--fresh", "200 finished items"]);
    }
    assert_eq!((results(&place), crate::forged::frames(&journal)), (before, frames));
    crate::forged::write_frames(&journal, &written);
    place.run(&[]).must_exit(0).must_say(&["was finished before"]);
}

#[test]
fn new_pictures_are_done_and_only_they() {
    let place = finished();
    let before = results(&place);
    // One sorts behind all others, one before them: numbers that were given stay.
    write_picture(&place.images(), 200, 32, 32, Kind::Png).unwrap();
    let first = write_picture(&place.path("tmp"), 201, 32, 32, Kind::Png).unwrap();
    fs::rename(first, place.images().join("0-first.png")).unwrap();
    place.run(&[]).must_exit(0).must_say(&["going on: 200 items are finished, 2 left, 2 of them new"]);
    place.must_hold(&items("scans", 0..202), &items("scans", []));
    assert!(results(&place).starts_with(&before), "the records of old items were changed");
    let report = place.report();
    assert_eq!((&report["items"]["done"], &report["items"]["resumed"]), (&202.into(), &200.into()));
    place.run(&[]).must_exit(0).must_say(&["was finished before"]);
}

#[test]
fn a_second_run_in_the_same_folder_is_refused_and_harms_nothing() {
    let place = Workplace::with_gate(500);
    let first = place.start_until(1);
    let owner = format!("process {}", first.pid());
    place.run(&[]).must_exit(75).must_say(&["in use by", &owner, "--output"]);
    place.run(&["--fresh"]).must_exit(75).must_say(&[&owner]);
    place.open_gate();
    first.wait().must_exit(0);
    place.holds_exactly(500);
    place.nothing_is_left();
}

#[test]
fn a_journal_of_which_nothing_is_left_is_refused_and_the_results_stay() {
    let place = finished();
    let before = results(&place);
    for damage in [&b""[..], b"these bytes are no journal"] {
        fs::write(place.out().join(".orchestra/journal"), damage).unwrap();
        place.run(&[]).must_exit(78).must_say(&["the journal in", "--fresh"]);
        assert_eq!(results(&place), before);
    }
    place.run(&["--fresh"]).must_exit(0);
    place.holds_exactly(200);
}

#[test]
fn a_list_that_lost_numbers_of_finished_items_is_refused_and_the_results_stay() {
    let place = finished();
    let before = results(&place);
    let list = place.out().join(".orchestra/items-scans");
    let bytes = fs::read(&list).unwrap();
    fs::write(&list, &bytes[..bytes.len() / 2]).unwrap();
    place.run(&[]).must_exit(78).must_say(&["items-scans` is damaged", "--fresh"]);
    assert_eq!(results(&place), before);
    // This one names all of them.
    fs::write(&list, &bytes[..bytes.len() - 1]).unwrap();
    place.run(&[]).must_exit(0);
    place.holds_exactly(200);
    place.nothing_is_left();
}
