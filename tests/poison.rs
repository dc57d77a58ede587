//! A model that crashes, hangs or fails on one input costs exactly that item, whatever it shared a batch with. Says nothing about how
//! many workers it takes.

use crate::common::{Blocks, Workplace, drawn, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::{ItemKey, items};
use serde_json::Value;

const ITEMS: u64 = 300;

/// Runs with these pictures among others, and checks that exactly they fail, each as it should. Gives `run.json`.
fn only_these_fail(traps: &[(u64, Trap, &str)], more: &'static str) -> Value {
    let place = Workplace::with_blocks(&Blocks { trap: true, more, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    for (index, trap, _) in traps {
        write_trap_picture(&place.images(), *index, *trap).unwrap();
    }
    let ended = place.run(&[]);
    ended.must_exit(65);
    let poison = |index: &u64| traps.iter().any(|(i, _, _)| i == index);
    let records = place.must_hold(
        &items("scans", (0..ITEMS).filter(|i| !poison(i))),
        &items("scans", (0..ITEMS).filter(poison)),
    );
    for key in records.done.keys() {
        assert_eq!(drawn(&records, key), key.index);
    }
    for (index, trap, kind) in traps {
        let key = ItemKey { source: "scans".into(), index: *index };
        let failure = &records.failed[&key];
        assert_eq!(records.failure_kind(&key), Some(*kind), "{trap:?}: {failure}");
        assert_eq!(failure["stage"], "read", "{failure}");
        assert_eq!(failure["item"], format!("{index:08}.png"), "{failure}");
        println!("{trap:?}: {} attempts, {}", failure["attempts"], failure["error"]);
    }
    let report = place.report();
    println!("{} restarts, {}", place.restarts(), report["batches_by_reason"]);
    place.nothing_is_left();
    report
}

#[test]
fn an_input_that_aborts_the_model_fails_alone() {
    only_these_fail(&[(100, Trap::Abort, "crash")], "");
}

#[test]
fn an_input_that_segfaults_the_model_fails_alone() {
    only_these_fail(&[(101, Trap::Segfault, "crash")], "");
}

#[test]
fn an_input_on_which_the_model_exits_fails_alone() {
    only_these_fail(&[(102, Trap::Exit, "crash")], "");
}

#[test]
fn an_input_on_which_the_model_hangs_fails_alone() {
    only_these_fail(&[(103, Trap::Hang, "timeout")], "[limits]\nbatch_timeout = \"5s\"\n");
}

#[test]
fn an_input_that_the_model_refuses_fails_alone_and_kills_no_worker() {
    let report = only_these_fail(&[(104, Trap::Fail, "model")], "");
    for device in report["devices"].as_array().unwrap() {
        assert_eq!(device["restarts"], 0, "{report}");
    }
}

#[test]
fn two_poison_items_of_one_batch_are_both_found() {
    // Batches hold 8 items in the order of the source, so both come into one or into neighbours.
    only_these_fail(&[(129, Trap::Abort, "crash"), (130, Trap::Segfault, "crash")], "");
}

#[test]
fn poison_at_both_ends_of_the_source_is_found() {
    only_these_fail(
        &[(0, Trap::Segfault, "crash"), (150, Trap::Fail, "model"), (ITEMS - 1, Trap::Abort, "crash")],
        "",
    );
}

#[test]
fn a_batch_for_which_memory_runs_out_is_halved_and_nothing_is_lost() {
    let place = Workplace::with_blocks(&Blocks { trap: true, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    for index in [3, 50, 51, 200] {
        write_trap_picture(&place.images(), index, Trap::OutOfMemory).unwrap();
    }
    place.run(&[]).must_exit(0);
    place.holds_exactly(ITEMS);
    let report = place.report();
    assert!(report["batches_by_reason"]["split"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(place.restarts(), 0, "{report}");
    println!("{}", report["batches_by_reason"]);
    place.nothing_is_left();
}
