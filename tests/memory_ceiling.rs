//! A run in a control group (cgroup v2) that the kernel lets have no more memory than what `limits.memory` allows and the libraries of its processes: one
//! that decodes files which are made to take all of it ends none of its processes for want of memory. The kernel runs as a program (User-mode Linux).
//! No model runs there: what is measured is loaders and the parent.
#![cfg(target_arch = "x86_64")]

use std::fs;

use crate::common::{Workplace, write_pictures};
use crate::hostile_files::ends::{must_end, of_hostile};
use crate::hostile_files::pictures::pictures;
use crate::uml::boot;
use orchestra_testkit::hostile_images::write_hostile_pictures;
use orchestra_testkit::images::write_blank_picture;
use orchestra_testkit::records::{ItemKey, Records, items};
use orchestra_testkit::workflow_file::WorkflowFile;

const NEIGHBOURS: u64 = 20;

/// Pictures of `whole` are decoded whole, since the nearest pixel may be any.
fn workflow() -> WorkflowFile {
    WorkflowFile::of_pictures("scans")
        .gray("pixels", "scans", [32, 32], "scale = 1.0")
        .results("pixels")
        .source("whole", "images", "paths = ['whole']")
        .stage("nearest", "image", "whole", "size = [8, 8]\nfilter = 'nearest'")
        .sink("nearest", "jsonl", "nearest")
        .table("limits", "memory = '512MiB'\nloaders = 2\nitem_timeout = '5m'")
}

#[test]
fn no_process_of_a_run_over_files_that_unpack_to_gigabytes_is_ended_by_a_control_group_of_600_mb() {
    let place = Workplace::of(workflow());
    write_pictures(&place.images(), NEIGHBOURS);
    fs::create_dir(place.path("whole")).unwrap();
    for (index, side) in [64, 8_000, 16_384].into_iter().enumerate() {
        write_blank_picture(&place.path("whole"), index as u64, side).unwrap();
    }
    // Behind the others by their names.
    let mut files = of_hostile(&write_hostile_pictures(&place.images()).unwrap());
    for (name, bytes, ends) in pictures() {
        let name = format!("hostile-z-{name}");
        fs::write(place.images().join(&name), bytes).unwrap();
        files.push((name, ends));
    }
    let script = format!(
        "mkdir /run/out
echo 600000000 > $group/memory.max
in_group $orchestra run '{}' -q --output /run/out > said 2>&1
echo $? > code
cp $group/memory.events $group/memory.peak .
cp -r /run/out .",
        place.workflow().display()
    );
    let Some(booted) = boot(&place, "1500M", 1200, &[], &script) else { return };
    assert_eq!(booted.kept("code").trim(), "65", "{}", booted.kept("said"));
    let out = booted.folder().join("out");
    let records = Records::read(&out, &["results.jsonl", "nearest.jsonl"]).unwrap();
    let (mut done, mut failed) = must_end(&records, "scans", NEIGHBOURS, files);
    done.extend(items("scans", 0..NEIGHBOURS));
    done.extend(items("whole", 0..2));
    let large = ItemKey { source: "whole".into(), index: 2 };
    assert_eq!(records.failure_kind(&large), Some("out_of_memory"), "{:?}", records.failed.get(&large));
    failed.insert(large);
    records.must_be(1, &done, &failed).unwrap();

    let events = booted.kept("memory.events");
    let event = |name: &str| {
        let of_name = events.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        of_name.unwrap_or_else(|| panic!("no `{name}`: {events}")).parse::<u64>().unwrap()
    };
    // The group has been at its limit or not, since what is read of files stays in memory that is to be had; it was never without any.
    assert_eq!((event("oom"), event("oom_kill")), (0, 0), "{events}");
    println!(
        "at most {} MB, with what was read of files: {events}",
        booted.kept("memory.peak").trim().parse::<u64>().unwrap() / 1_000_000
    );
}
