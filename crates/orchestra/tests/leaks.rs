//! Runs leave nothing behind in the process that hosts them. One test alone in its program: nothing else may open and close files.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use common::{AS_IT_IS, Workplace, bounded, until};
use orchestra::StartOptions;
use orchestra_testkit::audit::items;
use orchestra_testkit::images;
use orchestra_testkit::leaks::Holdings;
use orchestra_testkit::models;

const ITEMS: u64 = 200;

/// Two models in a row, and a branch.
fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    let blocks = models::slow_blocks(&place.models(), [1, 32, 32], 40).unwrap();
    let same = models::affine(&place.models(), &[1, 32, 32]).unwrap();
    place
        .model("blocks", blocks, "workers = 2")
        .model("affine", same, "")
        .image("pixels", "scans", AS_IT_IS)
        .infer("twice", "pixels", "affine", 4)
        .infer("read", "twice", "blocks", 2)
        .infer("also", "pixels", "blocks", 8)
        .sink("read", "read", "")
        .sink("also", "also", "")
        .devices(1);
    place
}

async fn succeeds() {
    let place = workplace();
    Workplace::must_end_with(&place.run().await, 0);
    let records = place.records(&["read.jsonl", "also.jsonl"]);
    records.must_be(2, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}

async fn has_failing_items() {
    let place = workplace();
    images::write_bad_pictures(&place.path("images")).unwrap();
    Workplace::must_end_with(&place.run().await, 65);
}

async fn has_no_device() {
    let place = workplace();
    let mut options = place.options();
    options.launcher = Some(Arc::new(place.faulty_workers(&[("ORCHESTRA_FAULT", "die-on-load")])));
    options.restart.first_pause = std::time::Duration::from_millis(5);
    Workplace::must_end_with(&place.run_with(options).await, 69);
}

async fn loses_workers() {
    let place = workplace();
    let run = place.start().await;
    let mut ended = std::pin::pin!(run.wait());
    let mut look = tokio::time::interval(std::time::Duration::from_millis(20));
    let outcome = bounded("the run ends", async {
        loop {
            tokio::select! {
                outcome = &mut ended => break outcome,
                _ = look.tick() => drop(place.n_lines("read.jsonl") < 100 && place.kill_a_worker(true)),
            }
        }
    })
    .await;
    Workplace::must_end_with(&outcome, 0);
}

async fn is_stopped(abort: bool) {
    let place = workplace();
    let run = place.start().await;
    let stop = run.stop_handle();
    until("there are results", || place.n_lines("read.jsonl") > 10).await;
    if abort {
        stop.abort()
    } else {
        stop.interrupt()
    }
    Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 130);
}

async fn is_dropped() {
    let place = workplace();
    let run = place.start().await;
    until("there are results", || place.n_lines("read.jsonl") > 10).await;
    drop(run);
    until("the output folder is free", || orchestra::prepare(Arc::new(place.plan()), false).is_ok()).await;
}

async fn is_refused() {
    let mut place = workplace();
    place.run().await;
    place.source("other", "images").image("more", "other", AS_IT_IS).sink("more", "more", "");
    assert!(orchestra::start(place.plan(), place.options()).await.is_err());
    let options = StartOptions { fresh: true, ..place.options() };
    Workplace::must_end_with(&place.run_with(options).await, 0);
}

/// Names of this process's threads that only runs have, and of memory that only runs map.
fn of_runs() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(|t| {
        // A thread that ended meanwhile has no name any more.
        fs::read_to_string(t.path().join("comm")).ok()
    });
    let mut found: Vec<String> = names
        .filter(|n| ["loader", "committer"].contains(&n.trim()))
        .map(|n| format!("thread {n}"))
        .collect();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    found.extend(maps.lines().filter(|l| l.contains("/memfd:")).map(str::to_owned));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_file_memory_or_thread_outlives_a_run_however_it_ends() {
    // What is opened once for the whole process (signals, drivers) is there after the first run.
    succeeds().await;
    until("the first run is gone", || of_runs().is_empty()).await;
    let before = Holdings::now();
    assert_eq!(before.memory_files(), 0);
    for ending in 0..8 {
        match ending {
            0 => succeeds().await,
            1 => has_failing_items().await,
            2 => has_no_device().await,
            3 => loses_workers().await,
            4 => is_stopped(false).await,
            5 => is_stopped(true).await,
            6 => is_dropped().await,
            _ => is_refused().await,
        }
        let mut left = Vec::new();
        let what = format!("nothing is left of run {ending}");
        until(&what, || {
            left = before.leaked_since();
            left.extend(of_runs());
            left.is_empty()
        })
        .await;
    }
}
