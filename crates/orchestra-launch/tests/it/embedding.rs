//! A run inside a host program: it is stopped, dropped and started again as a host would, and leaves nothing behind.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{AS_IT_IS, ONE_PIXEL_PER_BLOCK, ROW, Workplace, all_are_read, bounded, until};
use orchestra_launch::{Earlier, RunHandle, StartOptions};
use orchestra_store::{OpenError, OutputFolder};
use orchestra_testkit::models;
use orchestra_testkit::records::items;

const ITEMS: u64 = 500;
/// Results that show that a run is under way.
const SOME: usize = 24;

/// About a second of work.
fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    place
        .gated("slow", 2)
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "slow", 4)
        .sink("all", "read", "")
        .devices(1);
    place
}

async fn some_results(place: &Workplace) {
    until("there are results", || place.n_lines("all.jsonl") >= SOME).await;
}

/// A run that has some results and then waits for the gate: whatever is done to it comes before its end.
async fn under_way(place: &Workplace) -> RunHandle {
    place.gate().close_after(SOME).unwrap();
    let run = place.start().await;
    some_results(place).await;
    run
}

/// Runs to the end what earlier runs have left.
async fn completes(place: &Workplace) {
    let outcome = Workplace::ended_with(place.run(), 0).await;
    assert!(outcome.report.items.resumed > 0, "the earlier run's results count");
    all_are_read(place, ITEMS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_be_stopped_at_any_moment_of_its_start() {
    let place = workplace();
    for n in 0..40 {
        let run = place.start_with(StartOptions { earlier: Earlier::Discard, ..place.options() }).await;
        // From the very first message on, over the start of the workers, to the first batches.
        for _ in 0..n * n {
            tokio::task::yield_now().await;
        }
        if n % 2 == 0 {
            run.stop_handle().abort()
        } else {
            run.stop_handle().interrupt()
        }
        Workplace::ended_with(bounded("the run ends", run.wait()), 130).await;
        assert_eq!((place.workers(), place.loaders()), (vec![], vec![]));
    }
    Workplace::ended_with(place.run(), 0).await;
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}

#[test]
fn a_host_that_drops_its_whole_runtime_hangs_nowhere_and_leaves_no_worker() {
    // Three models in a row with one slot each, a page of inputs and one of outputs: a thread that waits for a row in the middle must be woken.
    const BATCH: usize = 32;
    let mut place = Workplace::with_pictures(ITEMS);
    let affine = models::affine(&place.models(), &ROW).unwrap();
    let blocks = models::slow_blocks(&place.models(), ROW, 200).unwrap();
    place
        .model("affine", affine, "workers = 1")
        .model("blocks", blocks, "workers = 1")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .infer("once", "pixels", "affine", BATCH)
        .infer("twice", "once", "affine", BATCH)
        .infer("read", "twice", "blocks", BATCH)
        .sink("all", "read", "")
        .add("[limits]\nmemory = \"24KiB\"")
        .devices(1);
    let host = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let run = host.block_on(async {
        let run = place.start().await;
        some_results(&place).await;
        run
    });
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(host);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(std::time::Duration::from_secs(120)).expect("the runtime ends");
    drop(run);
    let second = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    second.block_on(async {
        until("the workers are gone", || place.workers().is_empty()).await;
        until("the output folder is free", || place.prepare(Arc::new(place.plan())).is_ok()).await;
        completes(&place).await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_of_one_host_do_not_disturb_each_other() {
    let (one, two) = (workplace(), workplace());
    let (first, second) = tokio::join!(under_way(&one), two.start());
    first.stop_handle().abort();
    Workplace::ended_with(bounded("the second run ends", second.wait()), 0).await;
    Workplace::must_end_with(&bounded("the first run ends", first.wait()).await, 130);
    let records = two.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
    one.gate().open().unwrap();
    completes(&one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_end_with_the_account_of_the_run() {
    let place = workplace();
    let run = place.start().await;
    let mut snapshots = run.snapshots();
    let first = snapshots.borrow().clone();
    assert_eq!((first.items.total, first.items.done), (Some(ITEMS), 0));
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        while snapshots.changed().await.is_ok() {
            seen.push(snapshots.borrow_and_update().clone());
        }
        seen
    });
    let outcome = bounded("the run ends", run.wait()).await;
    let seen = bounded("the snapshots end", seen).await.unwrap();
    assert!(seen.windows(2).all(|w| w[0].items.done <= w[1].items.done), "never fewer than before");
    assert!(
        seen.iter().all(|s| s.items.read + s.items.in_flight <= s.items.listed),
        "never more than there are"
    );
    assert_eq!(
        seen.last().map(|s| s.items.done),
        Some(outcome.report.items.done),
        "the last one is the account"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_stays_locked_until_the_account_of_its_run_is_written() {
    let place = workplace();
    let run = place.start().await;
    let mut snapshots = run.snapshots();
    bounded("its actors end", async { while snapshots.changed().await.is_ok() {} }).await;
    // Every item has its record, but the host has not waited for the run. A start now would write records beside the report of this run.
    let second = OutputFolder::open(&place.out());
    assert!(matches!(second, Err(OpenError::Busy { .. })), "{second:?}");
    Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 0);
    OutputFolder::open(&place.out()).unwrap();
}
