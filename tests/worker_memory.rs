//! What a worker on the CPU takes of memory is bounded where its model has a `memory_limit`, whatever asks for it: the item that it was for fails
//! by name, and all others are right. How much of it the arena of ONNX Runtime may take is in the tests of the engine.

use crate::common::{Blocks, Workplace, shows_its_own, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::{ItemKey, items};
use orchestra_testkit::striker::workers_of;

const ITEMS: u64 = 40;
const HOSTILE: u64 = 13;
/// Of the model, 64 MiB.
const LIMIT: u64 = 64 << 20;
/// That, what a worker may take besides for a small model with one thread (`engine/memory_ceiling.rs`), and the libraries that it maps.
const MOST: u64 = LIMIT + (512 << 20);

/// Runs an operator that takes gigabytes for one item, under the limit. The error of that item, and the most that a worker held.
fn run_with(trap: Trap) -> (String, u64) {
    let place = Workplace::with_blocks(&Blocks { trap: true, ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    write_trap_picture(&place.images(), HOSTILE, trap).unwrap();
    place.edit("threads = 1", "threads = 1\nmemory_limit = \"64MiB\"");
    let mut run = place.start(&[]);
    let (pid, mut most) = (run.pid(), 0);
    run.until("it has ended", || {
        let held =
            |pid| orchestra_machine::processes::process_memory(pid).map_or(0, |memory| memory.resident);
        most = workers_of(pid).into_iter().map(|worker| held(worker.pid)).max().unwrap_or(0).max(most);
        false
    });
    run.wait().must_exit(65);
    let records =
        place.must_hold(&items("scans", (0..ITEMS).filter(|i| *i != HOSTILE)), &items("scans", [HOSTILE]));
    shows_its_own(&records);
    let key = ItemKey { source: "scans".into(), index: HOSTILE };
    assert_eq!(records.failure_kind(&key), Some("out_of_memory"), "{:?}", records.failed[&key]);
    let error = records.failed[&key]["error"].as_str().unwrap().to_owned();
    assert!(place.report()["batches_by_reason"]["split"].as_u64() > Some(0), "{}", place.report());
    place.nothing_is_left();
    (error, most)
}

#[test]
fn an_operator_that_throws_for_lack_of_memory_costs_its_item_and_no_worker() {
    let (error, most) = run_with(Trap::BloatInCpp);
    assert!(error.contains("bad_alloc"), "{error}");
    assert!((LIMIT..MOST).contains(&most), "{most} bytes");
}

#[test]
fn an_operator_whose_process_dies_for_lack_of_memory_costs_its_item_alone() {
    let (error, most) = run_with(Trap::Bloat);
    assert!(error.contains("memory allocation of"), "{error}");
    assert!((LIMIT..MOST).contains(&most), "{most} bytes");
}
