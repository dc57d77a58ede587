//! The parent's memory is bounded by what may be in flight, whatever the number of items: where records take far longer to write than the
//! model takes to make them, and where items are tiny and many. Says nothing about speed; a disk that stands still is in the library's tests.

use std::fs;

use crate::common::{Blocks, Workplace, npy, write_pictures};
use orchestra_core::DType;
use orchestra_testkit::models;
use orchestra_testkit::records::items;
use orchestra_testkit::size::scaled;
use orchestra_testkit::workflow_file::WorkflowFile;

/// Items of the small run: so many that as much text is in flight as ever will be. With 120 it held 6 to 13 MB less than any longer run did.
const FEW: u64 = 240;
/// What the large run may hold more than the small one: the allocator's and the scheduler's doing, in bytes. Of 720 more records of 210 kB
/// that is 17 kB each at full size, and 52 kB of 240 more at the quick one.
const NOISE: u64 = 12 << 20;

/// Rows of the small file of tiny items. The large one has 50 times as many at full size, and 15 times at the quick one.
const TINY: u64 = 2_000;
/// What the large run may hold more: 43 bytes for each of its further items at full size, 150 at the quick one.
const TINY_NOISE: u64 = 4 << 20;

/// A picture of 128 by 128 pixels in colour, as a record: 49,152 numbers, some 250 kB of text.
fn workplace(n: u64) -> Workplace {
    let place = Workplace::with_blocks(&Blocks { batch: 4, devices: 1, ..Blocks::default() });
    let model = models::affine(&place.path("models"), &[3, 128, 128]).unwrap();
    place.edit(&format!("{:?}", place.path("models/blocks.onnx")), &format!("{model:?}"));
    place.edit("size = [32, 32]\ncolor = \"gray\"", "size = [128, 128]");
    write_pictures(&place.images(), n);
    place
}

/// Runs it to the end; gives the most memory of its own that the parent was seen with, and how much text it wrote, in bytes.
fn measured(place: &Workplace, n: u64) -> (u64, u64) {
    // With one arena the allocator keeps no more for having run in other threads.
    let mut run = place.start_with(&[("MALLOC_ARENA_MAX", "1")]);
    let pid = run.pid();
    let mut peak = 0;
    run.until("it has ended", || {
        peak = peak.max(own_memory(pid));
        false
    });
    run.wait().must_exit(0);
    place.must_hold(&items("scans", 0..n), &items("scans", []));
    place.nothing_is_left();
    (peak, fs::metadata(place.out().join("results.jsonl")).unwrap().len())
}

/// The memory that a process has for itself, in bytes; 0 when it is gone. Neither programs and libraries nor the slots are counted: how much of
/// them is mapped is up to the kernel.
fn own_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

#[test]
fn memory_does_not_grow_with_the_text_that_is_written() {
    let times = scaled(4, 2);
    let (small, little) = measured(&workplace(FEW), FEW);
    let (large, much) = measured(&workplace(FEW * times), FEW * times);
    println!("{little} bytes of text with {small} bytes of memory, {much} with {large}");
    assert!(
        much > little * (times - 1) && much > little && little > FEW * 100_000,
        "the records are not huge"
    );
    assert!(small > 0);
    assert!(large < small + NOISE, "{small} bytes of memory became {large}");
}

/// Rows through a model that makes `n` numbers of each, in an output of open shape, with 256 MiB for all.
fn stretched(rows: u64, n: usize) -> Workplace {
    let place = Workplace::with_blocks(&Blocks::default());
    let model = models::stretched(&place.path("models"), n).unwrap();
    fs::write(place.path("rows.npy"), npy(&format!("({rows}, 1)"), (0..rows).map(|row| row as f32 + 1.0)))
        .unwrap();
    let flow = WorkflowFile::new()
        .source("scans", "tensors", "paths = ['rows.npy']")
        .table("models.stretched", format_args!("path = {model:?}\nthreads = 1\nworkers = 2"))
        .stage("read", "infer", "scans", "model = 'stretched'\nbatch = { max = 32 }")
        .stage("best", "classify", "read", "")
        .results("best")
        .on_cpu()
        .table("limits", "memory = '256MiB'");
    place.write(flow);
    place
}

#[test]
fn outputs_of_open_shape_stay_within_a_quarter_of_the_memory_of_a_run() {
    // A batch of 32 makes 64 MiB of them.
    let (peak, _) = measured(&stretched(96, 1 << 19), 96);
    println!("{} MiB", peak >> 20);
    assert!(peak < 128 << 20, "{peak} bytes of memory");
    let place = stretched(2, 1 << 22);
    place.run(&[]).must_exit(65);
    let records = place.must_hold(&items("scans", []), &items("scans", 0..2));
    for (key, failed) in &records.failed {
        let error = failed["error"].as_str().unwrap();
        assert_eq!(records.failure_kind(key), Some("too_large"), "{failed}");
        assert!(
            error.contains("take 17 MiB, and 8 MiB are there for a batch; raise `limits.memory`"),
            "{error}"
        );
    }
}

/// A file of `n` rows of four numbers, and a model that gives them back.
fn tiny_items(n: u64) -> Workplace {
    let place = Workplace::with_blocks(&Blocks { batch: 64, devices: 1, ..Blocks::default() });
    let model = models::identity(&place.path("models"), DType::F32, &[4]).unwrap();
    let rows = (0..n).flat_map(|row| [row as f32; 4]);
    fs::write(place.path("rows.npy"), npy(&format!("({n}, 4)"), rows)).unwrap();
    let flow = WorkflowFile::new()
        .source("scans", "tensors", "paths = ['rows.npy']")
        .table("models.same", format_args!("path = {model:?}\nthreads = 1"))
        .stage("read", "infer", "scans", "model = 'same'\nbatch = { max = 64 }")
        .results("read")
        .on_cpu();
    place.write(flow);
    place
}

#[test]
fn memory_does_not_grow_with_the_number_of_items() {
    // The small run is over within some looks at its memory: the most of three.
    let times = scaled(50, 15);
    let of_small = [(); 3].map(|()| measured(&tiny_items(TINY), TINY));
    let (small, little) = of_small.into_iter().max().unwrap();
    let (large, much) = measured(&tiny_items(TINY * times), TINY * times);
    println!("{small} bytes of memory for {TINY} items, {large} for {times} times as many");
    assert!(small > 0 && much > little * (times - 1));
    assert!(large < small + TINY_NOISE, "{small} bytes of memory became {large}");
}
