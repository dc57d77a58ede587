//! A bug of ours takes an actor of a pipeline: the pipeline is built anew from the journal, and the account stays exact. The hook for
//! trace contexts is the host's code in the middle of the batcher; here it panics.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{AS_IT_IS, Workplace, each_shows_its_own_picture};
use orchestra::StartOptions;
use orchestra_testkit::audit::items;
use orchestra_testkit::models;

const ITEMS: u64 = 200;

fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    let blocks = models::blocks(&place.models(), [1, 32, 32]).unwrap();
    place
        .model("blocks", blocks, "workers = 2")
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "blocks", 4)
        .sink("all", "read", "")
        .devices(1);
    place
}

/// Panics when `at` says so, given the number of the batch that is being sent.
fn panicking(
    place: &Workplace,
    at: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> (StartOptions, Arc<AtomicU32>) {
    let panics = Arc::new(AtomicU32::new(0));
    let (sent, counted) = (AtomicU32::new(0), Arc::clone(&panics));
    let hook = move |_: &tracing::Span| {
        if at(sent.fetch_add(1, Ordering::Relaxed)) {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("a bug, as asked");
        }
        None
    };
    (StartOptions { trace: Some(Arc::new(hook)), ..place.options() }, panics)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_falls_over_bugs_is_built_anew_and_finishes_without_losing_or_doubling_an_item() {
    let place = workplace();
    let (options, panics) = panicking(&place, |n| [3, 20, 31].contains(&n));
    let outcome = place.run_with(options).await;
    Workplace::must_end_with(&outcome, 0);
    assert_eq!(panics.load(Ordering::Relaxed), 3);
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
    assert_eq!(outcome.report.items.done, ITEMS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_always_falls_over_ends_with_70_and_can_be_resumed() {
    let place = workplace();
    let (options, panics) = panicking(&place, |n| n >= 5);
    let outcome = place.run_with(options).await;
    Workplace::must_end_with(&outcome, 70);
    assert_eq!(panics.load(Ordering::Relaxed), 4, "once, and after each of three rebuilds");
    assert!(outcome.problems.join("\n").contains("a bug, as asked"), "{:?}", outcome.problems);
    assert_eq!(place.records(&["all.jsonl"]).done.len() as u64, outcome.report.items.done);
    Workplace::must_end_with(&place.run().await, 0);
    place.records(&["all.jsonl"]).must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}
