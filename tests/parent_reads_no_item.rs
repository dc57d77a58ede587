//! The parent opens, reads and maps no item: `strace` sees every call of every thread of a run, and only loaders come near a picture.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Blocks, ORCHESTRA, Workplace, write_pictures};
use orchestra_testkit::skip::has_programs;

const ITEMS: u64 = 40;
/// What opens or reads a file, and what tells threads from processes.
const CALLS: &str = "open,openat,openat2,read,pread64,readv,preadv,preadv2,mmap,sendfile,copy_file_range,splice,clone,clone3,fork,vfork";

/// The calls of each thread, by its number.
fn calls(folder: &Path) -> BTreeMap<u32, String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let calls = files.map(|file| {
        let thread = file.extension().unwrap().to_str().unwrap().parse().unwrap();
        (thread, String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned())
    });
    calls.collect()
}

/// The threads of the process of which `first` is one: those that it has made, and those that these have made.
fn threads_of(first: u32, calls: &BTreeMap<u32, String>) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![first]);
    while let Some(thread) = next.pop() {
        found.insert(thread);
        let made = calls[&thread].lines().filter(|line| line.contains("CLONE_THREAD"));
        next.extend(made.filter_map(|line| line.rsplit_once("= ")?.1.parse::<u32>().ok()));
    }
    found
}

/// The pictures behind the descriptors of these calls: `3</path/of/images/00000000.png>`. Their names alone may be read, from the list of items.
fn pictures<'a>(calls: impl Iterator<Item = &'a String>, images: &Path) -> BTreeSet<String> {
    let folder = format!("<{}/", images.display());
    let lines = calls.flat_map(|calls| calls.lines());
    let named =
        lines.flat_map(|line| line.split(&folder).skip(1).filter_map(|rest| rest.split_once(".png>")));
    named.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_picture_is_opened_by_loaders_and_none_by_the_parent() {
    if !has_programs(&["strace"], "install it") {
        return;
    }
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), ITEMS);
    let traces = place.path("traces");
    fs::create_dir(&traces).unwrap();
    let run = Command::new("strace")
        .args(["-ff", "-y", "-s", "256", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(traces.join("thread"))
        .arg(ORCHESTRA)
        .arg("run")
        .arg(place.workflow())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    place.holds_exactly(ITEMS);

    let calls = calls(&traces);
    // The run was the first process, so that the others have larger numbers, unless these began anew: then a thread is missing below.
    let parent = *calls.keys().find(|thread| calls[thread].contains("workflow.toml")).unwrap();
    let threads = threads_of(parent, &calls);
    assert!(threads.len() > 3 && threads.len() < calls.len(), "{threads:?} of {:?}", calls.keys());
    let (of_parent, of_others): (Vec<_>, Vec<_>) =
        calls.iter().partition(|(thread, _)| threads.contains(thread));
    let seen = pictures(of_others.iter().map(|(_, calls)| *calls), &place.images());
    assert_eq!(seen.len() as u64, ITEMS, "the traces show what loaders open: {seen:?}");
    let seen = pictures(of_parent.iter().map(|(_, calls)| *calls), &place.images());
    assert!(seen.is_empty(), "the parent has opened pictures: {seen:?}");
}
