//! Pictures that are made to take all memory: each has one end, the memory of all processes stays below what the file allows, and everything
//! beside them is done.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;
mod peak;

use std::collections::BTreeSet;

use common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::hostile_images::write_hostile_pictures;
use orchestra_testkit::images::write_blank_picture;
use orchestra_testkit::records::{ItemKey, items};
use peak::{MOST, peak_of};

const ITEMS: u64 = 60;

#[test]
fn a_picture_of_three_quarters_of_a_gigabyte_takes_no_more_than_the_limit_and_its_neighbours_are_done() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), ITEMS);
    // Within `max_pixels`, behind all others by its name.
    let file = write_blank_picture(&place.images(), ITEMS, 16_384).unwrap();
    assert!(file.metadata().unwrap().len() < 4 << 20, "the file is small");
    // The nearest pixel may be any, so all of them are decoded.
    let peak = peak_of(&place, &["--set", "stages.pixels.filter=nearest"], 65);
    let records = place.must_hold(&items("scans", 0..ITEMS), &items("scans", [ITEMS]));
    let key = ItemKey { source: "scans".into(), index: ITEMS };
    assert_eq!(records.failure_kind(&key), Some("out_of_memory"), "{:?}", records.failed[&key]);
    let error = records.failed[&key]["error"].as_str().unwrap();
    assert!(error.contains("limits.memory") && error.contains("256 MiB"), "{error}");
    assert!(peak < MOST, "{peak} bytes");
}

#[test]
fn a_picture_that_is_read_line_by_line_takes_what_its_row_needs() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), ITEMS);
    write_blank_picture(&place.images(), ITEMS, 16_384).unwrap();
    let peak = peak_of(&place, &[], 0);
    place.must_hold(&items("scans", 0..=ITEMS), &BTreeSet::new());
    // The picture takes 805 MB, and the processes without it 270 MB, with what they share counted for each.
    assert!(peak < 400_000_000, "{peak} bytes");
}

#[test]
fn hostile_files_of_every_format_end_one_by_one_and_take_no_more_than_the_limit() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), ITEMS);
    // Behind the others by their names.
    let hostile = write_hostile_pictures(&place.images()).unwrap().len() as u64;
    let peak = peak_of(&place, &[], 65);
    let records = place.records();
    let failed: BTreeSet<_> = records.failed.keys().cloned().collect();
    let hostile = items("scans", ITEMS..ITEMS + hostile);
    assert!(failed.is_subset(&hostile), "others failed, too: {failed:?}");
    // Some are whole enough for their decoder.
    let whole: BTreeSet<_> = hostile.difference(&failed).cloned().collect();
    let done = items("scans", 0..ITEMS).union(&whole).cloned().collect();
    place.must_hold(&done, &failed);
    for key in &failed {
        let kind = records.failure_kind(key);
        assert!(
            ["decode", "out_of_memory", "too_large"].map(Some).contains(&kind),
            "{:?}",
            records.failed[key]
        );
    }
    println!("{} failed, {} were whole enough", failed.len(), whole.len());
    assert!(peak < MOST, "{peak} bytes");
}
