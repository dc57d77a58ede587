//! A model that crashes, hangs or fails on one input costs exactly that item, whatever it shared a batch with. Says nothing about how
//! many workers it takes.

use crate::common::{Blocks, Workplace, shows_its_own, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::{ItemKey, items};

const ITEMS: u64 = 300;

/// Runs with these pictures among others, and checks that exactly they fail, each as it should.
fn only_these_fail(traps: &[(u64, Trap, &str)], more: &'static str) {
    let place = Workplace::with_blocks(&Blocks { trap: true, more, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    for (index, trap, _) in traps {
        write_trap_picture(&place.images(), *index, *trap).unwrap();
    }
    place.run(&[]).must_exit(65);
    let poison = |index: &u64| traps.iter().any(|(i, _, _)| i == index);
    let records = place.must_hold(
        &items("scans", (0..ITEMS).filter(|i| !poison(i))),
        &items("scans", (0..ITEMS).filter(poison)),
    );
    shows_its_own(&records);
    for (index, trap, kind) in traps {
        let key = ItemKey { source: "scans".into(), index: *index };
        let failure = &records.failed[&key];
        assert_eq!(records.failure_kind(&key), Some(*kind), "{trap:?}: {failure}");
        assert_eq!(failure["stage"], "read", "{failure}");
        assert_eq!(failure["item"], format!("{index:08}.png"), "{failure}");
        println!("{trap:?}: {} attempts, {}", failure["attempts"], failure["error"]);
    }
    println!("{} restarts, {}", place.restarts(), place.report()["batches_by_reason"]);
    place.nothing_is_left();
}

#[test]
fn inputs_on_which_the_model_aborts_segfaults_exits_or_starts_threads_without_end_fail_alone_wherever_they_lie()
 {
    // At both ends of the source, and next to each other: batches hold 8 items in its order, so these two come into one or into neighbours.
    for traps in [
        [(0, Trap::Segfault, "crash"), (150, Trap::Fail, "model"), (ITEMS - 1, Trap::Abort, "crash")],
        [(102, Trap::Exit, "crash"), (129, Trap::Abort, "crash"), (130, Trap::Threads, "crash")],
    ] {
        only_these_fail(&traps, "");
    }
}

#[test]
fn an_input_on_which_the_model_hangs_fails_alone() {
    only_these_fail(&[(103, Trap::Hang, "timeout")], "[limits]\nbatch_timeout = \"5s\"\n");
}
