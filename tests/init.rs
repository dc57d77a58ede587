//! `orchestra init` as a newcomer uses it: what it writes runs at once, and it overwrites nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, Workplace};
use serde_json::Value;

fn init(place: &Workplace, folder: &Path, more: &[&str]) -> Ended {
    place.on("init", folder, more)
}

fn run(place: &Workplace, folder: &Path) -> Ended {
    place.command(&["run", folder.join("workflow.toml").to_str().unwrap()])
}

/// Every file below a folder with its content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    found
}

#[test]
fn what_it_writes_passes_the_check_and_runs_to_its_end() {
    let place = Workplace::new();
    let folder = place.path("new/my first one");
    let said = init(&place, &folder, &[]);
    assert_eq!(said.must_exit(0).stderr, "");
    let file = folder.join("workflow.toml");
    said.must_print(&[&format!("orchestra run '{}'", file.display())]);
    let checked = place.command(&["check", file.to_str().unwrap()]);
    assert_eq!(checked.must_exit(0).stderr, "");
    run(&place, &folder).must_exit(0).must_say(&["digits finished: 10 items read, 10 done, 0 failed"]);
    let results = fs::read_to_string(folder.join("out/results.jsonl")).unwrap();
    let answers: Vec<(String, String)> = results
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|r| (r["item"].as_str().unwrap().into(), r["result"][0]["label"].as_str().unwrap().into()))
        .collect();
    let names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    assert_eq!(answers.len(), names.len());
    for (digit, name) in names.iter().enumerate() {
        assert!(answers.contains(&(format!("{name}.png"), digit.to_string())), "{name}: {answers:?}");
    }
    place.nothing_is_left();
}

#[test]
fn a_broken_picture_can_be_added_as_its_readme_says() {
    let place = Workplace::new();
    let folder = place.path("new");
    init(&place, &folder, &[]).must_exit(0);
    run(&place, &folder).must_exit(0);
    fs::write(folder.join("images/broken.png"), "no picture\n").unwrap();
    run(&place, &folder).must_exit(65).must_say(&["10 done, 1 failed"]);
    let failures = fs::read_to_string(folder.join("out/failures.jsonl")).unwrap();
    assert!(failures.contains("broken.png"), "{failures}");
    place.nothing_is_left();
}

#[test]
fn it_overwrites_nothing_and_names_what_is_in_the_way() {
    let place = Workplace::new();
    let folder = place.path("mine");
    fs::create_dir_all(folder.join("images")).unwrap();
    fs::write(folder.join("workflow.toml"), "mine").unwrap();
    fs::write(folder.join("images/seven.png"), "mine, too").unwrap();
    fs::write(folder.join("notes.txt"), "not in the way").unwrap();
    let before = contents(&folder);
    init(&place, &folder, &[]).must_exit(2).must_say(&[
        "nothing was written",
        "`workflow.toml`",
        "`images/seven.png`",
    ]);
    assert_eq!(contents(&folder), before);
    fs::remove_file(folder.join("workflow.toml")).unwrap();
    fs::remove_file(folder.join("images/seven.png")).unwrap();
    init(&place, &folder, &[]).must_exit(0);
    assert_eq!(fs::read_to_string(folder.join("notes.txt")).unwrap(), "not in the way");
    let written = contents(&folder);
    init(&place, &folder, &[]).must_exit(2);
    assert_eq!(contents(&folder), written);
}

#[test]
fn a_link_that_leads_nowhere_is_in_the_way_too() {
    let place = Workplace::new();
    let folder = place.path("linked");
    fs::create_dir(&folder).unwrap();
    let target = place.path("elsewhere.md");
    std::os::unix::fs::symlink(&target, folder.join("README.md")).unwrap();
    init(&place, &folder, &[]).must_exit(2).must_say(&["`README.md`"]);
    assert!(!target.exists());
}

#[test]
fn half_a_workflow_is_taken_back() {
    let place = Workplace::new();
    let folder = place.path("half");
    fs::create_dir(&folder).unwrap();
    // A file where a folder must be: no file of the workflow is in the way, and yet it cannot be written.
    fs::write(folder.join("models"), "a file").unwrap();
    init(&place, &folder, &[]).must_exit(75).must_say(&["cannot make the folder", "models"]);
    assert_eq!(contents(&folder).len(), 1);
    init(&place, &folder.join("models"), &[]).must_exit(2).must_say(&["is no folder"]);
}

#[test]
fn json_says_what_was_written_and_quiet_says_nothing() {
    let place = Workplace::new();
    let folder = place.path("new");
    let said: Value = serde_json::from_str(&init(&place, &folder, &["--json"]).must_exit(0).stdout).unwrap();
    let files = said["files"].as_array().unwrap();
    assert_eq!(files.len(), contents(&folder).len());
    assert!(files.iter().all(|f| folder.join(f.as_str().unwrap()).is_file()), "{said}");
    assert!(said["next"].as_str().unwrap().starts_with("orchestra run "), "{said}");
    let quiet = init(&place, &place.path("quiet"), &["-q"]);
    assert_eq!((quiet.must_exit(0).stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}
