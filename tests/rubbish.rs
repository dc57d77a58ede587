//! Files and folders that are something else than they should be: each is an error that names it and says what to do, and nothing
//! hangs, takes memory without bound or is killed by it. Bad pictures have a test of their own.

use std::fs;
use std::path::Path;

use crate::common::Workplace;
use rustix::fs::{CWD, FileType, Mode, mknodat};

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn a_pipe_or_a_device_instead_of_a_file_is_refused_and_never_waited_for() {
    let place = Workplace::with_pictures(1);
    let original = fs::read_to_string(place.workflow()).unwrap();
    let model_line = original.lines().find(|l| l.starts_with("path = \"/")).unwrap().to_owned();
    pipe(&place.path("pipe"));
    place.edit(&model_line, "path = \"pipe\"");
    place.run(&[]).must_exit(69).must_say(&["model `blocks`", "it is a pipe", "looked for"]);
    for labels in ["pipe", "/dev/zero"] {
        fs::write(
            place.workflow(),
            original.replace(&model_line, &format!("{model_line}\nlabels = {labels:?}")),
        )
        .unwrap();
        place.run(&[]).must_exit(78).must_say(&[&format!("labels `{labels}`"), "a file is expected"]);
    }
    place.command(&["check", "/dev/zero"]).must_exit(78).must_say(&["larger than 16 MiB"]);
    let model = place.path("models");
    let model = fs::read_dir(model).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_file()).unwrap();
    place
        .command(&["check", model.to_str().unwrap()])
        .must_exit(78)
        .must_say(&["not text in UTF-8", "a TOML file is expected"]);
}

#[test]
fn a_link_in_the_place_of_a_file_of_the_run_is_a_wrong_folder_and_is_not_followed() {
    let place = Workplace::with_pictures(20);
    place.run(&[]).must_exit(0);
    let (mine, kept) = (place.path("mine"), place.path("kept"));
    fs::write(&mine, "a text of mine").unwrap();
    for name in [".orchestra/journal", "results.jsonl"] {
        let path = place.out().join(name);
        fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&mine, &path).unwrap();
        place.run(&[]).must_exit(78).must_say(&[name, "no run has made it; remove it"]);
        place.on_out("retry", &[]).must_exit(78).must_say(&[name, "remove it"]);
        fs::rename(&kept, &path).unwrap();
    }
    assert_eq!(fs::read(&mine).unwrap(), b"a text of mine");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    place.holds_exactly(20);
}

#[test]
fn what_a_message_quotes_is_not_said_twice() {
    let place = Workplace::with_pictures(1);
    fs::write(place.path("file"), "").unwrap();
    let output = place.path("file/out");
    let ended = place.run(&["--output", output.to_str().unwrap()]);
    ended.must_exit(75).must_say(&["file/out", "--output"]);
    assert_eq!(ended.stderr.matches("os error").count(), 1, "{}", ended.stderr);
}

#[test]
fn results_are_no_items_where_the_output_folder_lies_in_the_source() {
    let place = Workplace::with_pictures(20);
    let inside = place.images().join("out");
    let inside = inside.to_str().unwrap();
    place.run(&["--output", inside]).must_exit(0).must_say(&["20 done, 0 failed"]);
    place.run(&["--output", inside]).must_exit(0).must_say(&["nothing is left to do"]);
    place.run(&["--output", inside, "--fresh"]).must_exit(0).must_say(&["20 done, 0 failed"]);
    let same = place.run(&["--output", place.images().to_str().unwrap()]);
    same.must_exit(78).must_say(&["`images` is also the output folder", "--output"]);
    assert!(!place.images().join(".orchestra").exists());
}

#[test]
fn a_stack_that_is_too_small_is_an_error_by_name() {
    let place = Workplace::with_pictures(3);
    let says = ["a stack may have 512 KiB here, and 1024 are needed: raise `ulimit -s`"];
    place.run_under("ulimit -s 512", &[]).must_exit(75).must_say(&says);
    place.run_under("export RUST_MIN_STACK=20000", &[]).must_exit(75).must_say(&["raise `RUST_MIN_STACK`"]);
    place.run(&[]).must_exit(0);
}

#[test]
fn a_check_for_scripts_is_json_also_where_the_file_cannot_be_read() {
    let place = Workplace::new();
    for (file, says) in [(place.path("missing.toml"), "No such file"), (place.images(), "Is a directory")] {
        let ended = place.command(&["check", "--json", file.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_str(&ended.must_exit(78).stdout).unwrap();
        assert!(json["errors"][0]["message"].as_str().unwrap().contains(says), "{json}");
        assert_eq!((&json["file"], ended.stderr.as_str()), (&file.to_str().unwrap().into(), ""));
    }
}

#[test]
fn a_fresh_start_that_cannot_begin_discards_nothing() {
    let place = Workplace::with_pictures(20);
    place.run(&[]).must_exit(0);
    let wrong = place.workflow();
    let ended = place.run(&["--fresh", "--ort-library", wrong.to_str().unwrap()]);
    ended.must_exit(69).must_say(&["workflow.toml", "not a shared library"]);
    place.holds_exactly(20);
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
}
