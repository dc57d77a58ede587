//! Pictures that are made to take all memory: each has one end, the memory of all processes stays below what the file allows, and everything
//! beside them is done.

use std::collections::BTreeSet;
use std::fs;

use crate::common::Workplace;
use crate::hostile_files::ends::{must_end, of_hostile};
use crate::hostile_files::pictures::png;
use crate::peak::{MOST, peak_of, peak_with};
use orchestra_testkit::hostile_images::write_hostile_pictures;
use orchestra_testkit::images::write_blank_picture;
use orchestra_testkit::records::{ItemKey, Records, items};
use orchestra_testkit::workflow_file::WorkflowFile;

const ITEMS: u64 = 60;

#[test]
fn where_each_process_may_have_900_mb_a_larger_picture_fails_by_name_and_the_run_goes_on() {
    // All that it maps, and what it can write to alone: also of the parent.
    for limits in ["ulimit -v 900000", "ulimit -d 900000"] {
        let place = Workplace::with_pictures(ITEMS);
        let file = png(false);
        assert!(file.len() < 1 << 20, "the file is small");
        // Behind all others by its name.
        fs::write(place.images().join("large.png"), file).unwrap();
        let settings = ["--set", "stages.pixels.filter=nearest", "--set", "limits.loaders=2"];
        let is_as_it_must_be = || {
            let records = place.must_hold(&items("scans", 0..ITEMS), &items("scans", [ITEMS]));
            let key = ItemKey { source: "scans".into(), index: ITEMS };
            assert_eq!(records.failure_kind(&key), Some("out_of_memory"), "{:?}", records.failed[&key]);
            records.failed[&key]["error"].as_str().unwrap().to_owned()
        };
        place.run_under(limits, &settings).must_exit(65).must_say(&["60 done, 1 failed"]);
        let error = is_as_it_must_be();
        println!("{limits}: {error}");
        place.nothing_is_left();
        place
            .run_under(limits, &settings)
            .must_exit(65)
            .must_say(&["was finished before", "60 done, 1 failed"]);
        place.run_under(limits, &[&settings[..], &["--retry-failed"]].concat()).must_exit(65);
        assert_eq!(is_as_it_must_be(), error);
        // Where the file says that there is more.
        let more = [&settings[..], &["--set", "limits.memory=8GiB", "--fresh"]].concat();
        let less = limits.replace("900000", "600000");
        place.run_under(&less, &more).must_exit(65).must_say(&["60 done, 1 failed"]);
        is_as_it_must_be();
        place.nothing_is_left();
    }
}

#[test]
fn a_picture_that_is_read_line_by_line_takes_what_its_row_needs() {
    let place = Workplace::with_pictures(ITEMS);
    write_blank_picture(&place.images(), ITEMS, 16_384).unwrap();
    let peak = peak_of(&place, &[], 0);
    place.must_hold(&items("scans", 0..=ITEMS), &BTreeSet::new());
    // The picture takes 805 MB, and the processes without it 270 MB, with what they share counted for each.
    assert!(peak < 400_000_000, "{peak} bytes");
}

#[test]
fn one_picture_at_a_time_has_the_memory_of_all_loaders_whichever_source_it_is_of() {
    const SIDE: u32 = 8_000;
    let place = Workplace::new();
    for folder in ["images", "more"] {
        fs::create_dir_all(place.path(folder)).unwrap();
        for index in 0..2 {
            write_blank_picture(&place.path(folder), index, SIDE).unwrap();
        }
    }
    let keys = "size = [8, 8]\nfilter = 'nearest'";
    let flow = WorkflowFile::of_pictures("scans")
        .source("others", "images", "paths = ['more']")
        .stage("pixels", "image", "scans", keys)
        .stage("pixels_of_others", "image", "others", keys)
        .results("pixels")
        .sink("others", "jsonl", "pixels_of_others");
    place.write(flow);
    let results = ["results.jsonl", "others.jsonl"];
    let (peak, _) = peak_with(&place, &["--set", "limits.loaders=2"], 0, &results);
    let all = items("scans", 0..2).into_iter().chain(items("others", 0..2)).collect();
    Records::read(&place.out(), &results).unwrap().must_be(1, &all, &BTreeSet::new()).unwrap();
    // More than the share of a loader, 128 MiB. Two of them at once would take as much as this alone.
    let picture = u64::from(SIDE) * u64::from(SIDE) * 3;
    assert!(picture > 128 << 20 && peak > picture && peak < 2 * picture, "{peak} bytes");
}

#[test]
fn hostile_files_of_every_format_end_one_by_one_and_take_no_more_than_the_limit() {
    let place = Workplace::with_pictures(ITEMS);
    let hostile = write_hostile_pictures(&place.images()).unwrap();
    let peak = peak_of(&place, &[], 65);
    let records = place.records();
    // Behind the others by their names.
    let (mut done, failed) = must_end(&records, "scans", ITEMS, of_hostile(&hostile));
    done.extend(items("scans", 0..ITEMS));
    place.must_hold(&done, &failed);
    assert!(peak < MOST, "{peak} bytes");
}
