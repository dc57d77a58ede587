//! A model whose operators are hostile can do nothing to the machine: what it tries fails, its item fails by name, and all others are right.

use std::collections::BTreeSet;
use std::fs;

use crate::common::{Blocks, Workplace, shows_its_own, write_pictures};
use orchestra_testkit::bait::LaidBait;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::{ItemKey, items};
use orchestra_testkit::{INHERITED_FD, SCRIBBLES, Trap, bait};

const ITEMS: u64 = 60;
const HOSTILE: u64 = 33;

/// Runs the hostile operator on one item of many: the error that it fails with, which names what it got through with.
fn intrude(sandbox: &str) -> String {
    let private = tempfile::tempdir().unwrap();
    bait::leave_open();
    bait::a_plain_child_has_them().unwrap();
    let place = Workplace::with_blocks(&Blocks { trap: true, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    write_trap_picture(&place.images(), HOSTILE, Trap::Intrude).unwrap();
    place.edit("threads = 1", &format!("threads = 1\nsandbox = \"{sandbox}\""));
    let models = place.path("models");
    let bait = LaidBait::new(private.path(), &models).unwrap();
    let (name, text) = bait.variable();
    let run = place.start_with(&[(name, &text)]);
    let inherited = fs::read_link(format!("/proc/{}/fd/{INHERITED_FD}", run.pid())).unwrap();
    assert!(inherited.ends_with("passwd"), "the run has it: {}", inherited.display());
    run.wait().must_exit(65);
    assert_eq!(fs::read_dir(&models).unwrap().count(), 1, "only the model");
    let records =
        place.must_hold(&items("scans", (0..ITEMS).filter(|i| *i != HOSTILE)), &items("scans", [HOSTILE]));
    shows_its_own(&records);
    let key = ItemKey { source: "scans".into(), index: HOSTILE };
    assert_eq!(records.failure_kind(&key), Some("model"));
    let error = records.failed[&key]["error"].as_str().unwrap().to_owned();
    assert_eq!(bait.is_untouched(), sandbox != "off", "{error}");
    place.nothing_is_left();
    error
}

#[test]
fn a_hostile_operator_gets_at_nothing() {
    if !bait::has_secret("sandbox::a_hostile_operator_gets_at_nothing") {
        return;
    }
    for sandbox in ["auto", "require"] {
        assert_eq!(bait::got_through(&intrude(sandbox)), BTreeSet::new(), "sandbox = \"{sandbox}\"");
    }
}

/// That the attempts can succeed at all. Inputs are sealed, whatever the sandbox: that these attempts succeed where they are not, a test of the operator's
/// library shows.
#[test]
fn without_a_sandbox_it_may_what_its_user_may() {
    if !bait::has_secret("sandbox::without_a_sandbox_it_may_what_its_user_may") {
        return;
    }
    assert_eq!(bait::got_through(&intrude("off")), bait::unconfined(&[bait::ALWAYS_CLOSED]));
}

/// It may write over whatever its own worker has put out. What the run has taken by then is right, and the worker is ended by its deadline.
#[test]
fn an_operator_that_writes_over_all_outputs_of_its_worker_spoils_no_other_item() {
    // Full batches, and one more item, which comes last and alone, in one worker: beside another one it would be at the gate before all others have
    // passed it, and go through.
    const OTHERS: u64 = 56;
    let place = Workplace::with_gate(OTHERS);
    place.one_worker();
    write_trap_picture(&place.images(), OTHERS, Trap::Scribble).unwrap();
    place.edit("wait = \"5ms\"", "wait = \"1h\"");
    place.edit("[devices]", "[limits]\nloaders = 1\nbatch_timeout = \"5s\"\n[devices]");
    place.close_gate_after(56);
    let mut run = place.start(&[]);
    let others_are_done = || place.waiting_at_gate() > 0 && place.n_results() == 56;
    run.must_reach("all others are done", others_are_done);
    place.open_gate();
    run.wait().must_exit(65);
    let records = place.must_hold(&items("scans", 0..OTHERS), &items("scans", [OTHERS]));
    shows_its_own(&records);
    let key = ItemKey { source: "scans".into(), index: OTHERS };
    assert_eq!(records.failure_kind(&key), Some("timeout"), "{:?}", records.failed[&key]);
    let error = records.failed[&key]["error"].as_str().unwrap();
    assert!(error.contains(SCRIBBLES), "it did not come to that: {error}");
    place.nothing_is_left();
}

/// The kernel asks where a file lies, not how it was called.
#[test]
fn a_model_that_is_a_link_into_another_folder_runs_confined() {
    let elsewhere = tempfile::tempdir().unwrap();
    let place = Workplace::with_pictures(ITEMS);
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
