//! A model whose operators are hostile can do nothing to the machine: what it tries fails, its item fails by name, and all others are right.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;

use common::{Blocks, Workplace, drawn, write_pictures};
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::{ItemKey, items};
use orchestra_testkit::{GOT_THROUGH, INHERITED_FD, INTRUDE, MODEL_FOLDER, SECRET, Trap};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

const ITEMS: u64 = 60;
const HOSTILE: u64 = 33;

/// A folder that no worker has any business in.
fn private_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(SECRET), "nobody reads this").unwrap();
    fs::write(folder.path().join("removable"), "nobody removes this").unwrap();
    folder
}

/// Leaves a descriptor open that every program inherits which this one starts.
fn leave_open() {
    static OPEN: LazyLock<OwnedFd> = LazyLock::new(|| {
        let descriptor = fcntl_dupfd_cloexec(File::open("/etc/passwd").unwrap(), INHERITED_FD).unwrap();
        assert_eq!(descriptor.as_raw_fd(), INHERITED_FD, "the number is taken");
        fcntl_setfd(&descriptor, FdFlags::empty()).unwrap();
        descriptor
    });
    LazyLock::force(&OPEN);
}

/// Runs the hostile operator on one item of many. What it could do.
fn intrude(sandbox: &str) -> String {
    let private = private_folder();
    leave_open();
    let place = Workplace::with_blocks(&Blocks { trap: true, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    write_trap_picture(&place.images(), HOSTILE, Trap::Intrude).unwrap();
    place.edit("threads = 1", &format!("threads = 1\nsandbox = \"{sandbox}\""));
    let folder = private.path().to_str().unwrap();
    let (models, workflow) = (place.path("models"), place.workflow());
    let variables = [
        (INTRUDE, folder),
        (MODEL_FOLDER, models.to_str().unwrap()),
        ("AWS_SECRET_ACCESS_KEY", "a key to everything"),
    ];
    let run = place.start_command_with(&["run", workflow.to_str().unwrap()], &variables);
    let inherited = fs::read_link(format!("/proc/{}/fd/{INHERITED_FD}", run.pid())).unwrap();
    assert!(inherited.ends_with("passwd"), "the run has it: {}", inherited.display());
    run.wait().must_exit(65);
    assert_eq!(fs::read_dir(&models).unwrap().count(), 1, "only the model");
    let records =
        place.must_hold(&items("scans", (0..ITEMS).filter(|i| *i != HOSTILE)), &items("scans", [HOSTILE]));
    for key in records.done.keys() {
        assert_eq!(drawn(&records, key), key.index);
    }
    let key = ItemKey { source: "scans".into(), index: HOSTILE };
    assert_eq!(records.failure_kind(&key), Some("model"));
    let error = records.failed[&key]["error"].as_str().unwrap().to_owned();
    let through =
        error.split_once(GOT_THROUGH).unwrap_or_else(|| panic!("no report of the intruder: {error}")).1;
    let is_untouched = fs::read_to_string(private.path().join(SECRET)).unwrap() == "nobody reads this"
        && private.path().join("removable").exists()
        && !private.path().join("written").exists();
    assert_eq!(is_untouched, sandbox != "off", "{through}");
    // Where the item is tried again, there is nothing left to remove.
    assert_eq!(private.path().join("removable").exists(), sandbox != "off", "{through}");
    place.nothing_is_left();
    through.split_once('.').unwrap().0.trim().to_owned()
}

#[test]
fn a_hostile_operator_gets_at_nothing() {
    for sandbox in ["auto", "require"] {
        assert_eq!(intrude(sandbox), "", "sandbox = \"{sandbox}\"");
    }
}

/// That the attempts can succeed at all.
#[test]
fn without_a_sandbox_it_may_what_its_user_may() {
    let through = intrude("off");
    for attempt in [
        "reading /etc/passwd",
        "reading a secret",
        "listing a folder",
        "writing a file",
        "writing for all",
        "overwriting a secret",
        "listing /",
        "a datagram",
        "writing beside its library",
        "writing beside its model",
        "the parent's environment",
        "an address of TCP",
        "an address of UDP",
        "a local socket",
        "a secret variable",
        "another process",
        "a signal to the parent",
        "opening a secret to all",
        "the parent's priority",
        "messages of other programs",
        "another program",
    ] {
        assert!(through.contains(attempt), "not `{attempt}`: {through}");
    }
    let has_home = std::env::home_dir().is_some_and(|home| fs::read_dir(home).is_ok());
    assert_eq!(through.contains("listing the home folder"), has_home, "{through}");
    assert!(!through.contains("descriptor"), "it is closed, whatever the sandbox: {through}");
    assert!(!through.contains("inputs"), "they are sealed, whatever the sandbox: {through}");
}

/// The kernel asks where a file lies, not how it was called.
#[test]
fn a_model_that_is_a_link_into_another_folder_runs_confined() {
    let elsewhere = tempfile::tempdir().unwrap();
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), ITEMS);
    let models = place.path("models");
    for file in fs::read_dir(&models).unwrap() {
        let file = file.unwrap();
        let moved = elsewhere.path().join(file.file_name());
        fs::copy(file.path(), &moved).unwrap();
        fs::remove_file(file.path()).unwrap();
        std::os::unix::fs::symlink(&moved, file.path()).unwrap();
    }
    place.run(&["--set", "limits.sandbox=require"]).must_exit(0);
    place.holds_exactly(ITEMS);
}
