//! A small file that claims a huge picture: it fails by name, the memory of all processes stays below what the file allows, and everything
//! beside it is done.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use common::{Blocks, Workplace, write_pictures};
use orchestra_machine::processes::children;
use orchestra_testkit::images::write_blank_picture;
use orchestra_testkit::records::{ItemKey, items};

const ITEMS: u64 = 60;
const LIMIT: u64 = 512 << 20;

/// What a process takes for itself and of shared memory, in bytes.
fn resident(pid: u32) -> u64 {
    orchestra_machine::process_memory(pid).map_or(0, |memory| memory.resident)
}

#[test]
fn a_picture_of_three_quarters_of_a_gigabyte_takes_no_more_than_the_limit_and_its_neighbours_are_done() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), ITEMS);
    // Within `max_pixels`, behind all others by its name.
    let file = write_blank_picture(&place.images(), ITEMS, 16_384).unwrap();
    assert!(file.metadata().unwrap().len() < 4 << 20, "the file is small");
    let mut run = place.start(&["--set", "limits.memory=512MiB"]);
    let pid = run.pid();
    let mut peak = 0;
    run.until("it has ended", || {
        let tree = children(pid).iter().map(|child| resident(child.pid)).sum::<u64>() + resident(pid);
        peak = peak.max(tree);
        false
    });
    run.wait().must_exit(65);
    let records = place.must_hold(&items("scans", 0..ITEMS), &items("scans", [ITEMS]));
    let key = ItemKey { source: "scans".into(), index: ITEMS };
    assert_eq!(records.failure_kind(&key), Some("out_of_memory"), "{:?}", records.failed[&key]);
    let error = records.failed[&key]["error"].as_str().unwrap();
    assert!(error.contains("limits.memory") && error.contains("256 MiB"), "{error}");
    println!("at most {} MiB in all processes", peak >> 20);
    assert!(peak > 0 && peak < LIMIT + (88 << 20), "{peak} bytes");
    place.nothing_is_left();
}
