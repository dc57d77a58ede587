//! Records that take far longer to write than the model takes to make them: the parent's memory stays bounded by what may be in flight,
//! whatever the number of items. Says nothing about speed; a disk that stands still is in the library's tests.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::fs;

use common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::models;
use orchestra_testkit::records::items;

/// Items of the small run.
const FEW: u64 = 120;
/// The large one has so many times more.
const TIMES: u64 = 6;

/// A picture of 128 by 128 pixels in colour, as a record: 49,152 numbers, some 250 kB of text.
fn workplace(n: u64) -> Workplace {
    let place = Workplace::with_blocks(&Blocks { batch: 4, devices: 1, ..Blocks::default() });
    let model = models::affine(&place.path("models"), &[3, 128, 128]).unwrap();
    place.edit(&format!("{:?}", place.path("models/blocks.onnx")), &format!("{model:?}"));
    place.edit("size = [32, 32]\ncolor = \"gray\"", "size = [128, 128]");
    write_pictures(&place.images(), n);
    place
}

/// Runs it to the end; gives the most memory that the parent ever held, and how much text it wrote, in bytes.
fn measured(n: u64) -> (u64, u64) {
    let place = workplace(n);
    let mut run = place.start(&[]);
    let pid = run.pid();
    let mut peak = 0;
    run.until("it has ended", || {
        peak = peak.max(high_water(pid));
        false
    });
    run.wait().must_exit(0);
    place.must_hold(&items("scans", 0..n), &items("scans", []));
    place.nothing_is_left();
    (peak, fs::metadata(place.out().join("results.jsonl")).unwrap().len())
}

/// The largest resident memory of a process so far, in bytes; 0 when it is gone.
fn high_water(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

#[test]
fn memory_does_not_grow_with_the_text_that_is_written() {
    let (small, little) = measured(FEW);
    let (large, much) = measured(FEW * TIMES);
    println!("{little} bytes of text with {small} bytes of memory, {much} with {large}");
    assert!(much > little * (TIMES - 1) && little > FEW * 100_000, "the records are not huge");
    assert!(small > 0 && large > 0);
    // What is held does not depend on what is written; the rest is what the allocator keeps.
    assert!(large < small + (much - little) / 4, "{small} bytes of memory became {large}");
}
