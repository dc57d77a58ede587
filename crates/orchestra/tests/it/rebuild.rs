//! A bug of ours takes an actor of a pipeline, or what runs beside the actors: the pipeline is built anew from the journal, and the account stays
//! exact. The tracer is the host's code in the middle of the batcher and of the committer; here it panics, and so does a stage of the host's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::number_stages::{TestStage, is_tensor};
use crate::common::{Workplace, all_are_read, bounded};
use futures::future::join_all;
use orchestra::StartOptions;
use orchestra::kind::{ColumnType, Schema, Value};
use orchestra::trace::{BatchNumber, EndedItems, RunBegan, RunTracer, Tracer};
use orchestra_testkit::images::index_of_blocks;
use orchestra_testkit::models;
use orchestra_testkit::records::items;

const ITEMS: u64 = 200;

fn workplace() -> Workplace {
    Workplace::reading(ITEMS, ("blocks", "workers = 2"), 4, |folder| models::blocks(folder, [1, 32, 32]))
}

/// Panics when `at` says so, given the number of the batch that is being sent.
fn panicking(
    place: &Workplace,
    at: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> (StartOptions, Arc<AtomicU32>) {
    let panics = Arc::new(AtomicU32::new(0));
    let (sent, counted) = (AtomicU32::new(0), Arc::clone(&panics));
    let bug = move || {
        if at(sent.fetch_add(1, Ordering::Relaxed)) {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("a bug, as asked");
        }
    };
    let tracer = Panics { at_batches: Arc::new(bug), at_ends: Arc::new(|| {}) };
    let trace = Some(Arc::new(tracer) as Arc<dyn Tracer>);
    (StartOptions { trace, ..place.options() }, panics)
}

/// A tracer that runs some code for each batch that is sent, and some whenever items have ended. It notes nothing.
#[derive(Clone)]
struct Panics {
    at_batches: Arc<dyn Fn() + Send + Sync>,
    at_ends: Arc<dyn Fn() + Send + Sync>,
}

/// `kind = "falls"`: passes rows on, on the blocking pool, but cannot be started the first time.
fn falls(starts: Arc<AtomicU32>) -> TestStage {
    let gives = |ty: &ColumnType| Schema::of("blocks", ty.clone());
    let stage = TestStage::new("falls", is_tensor, gives, |inputs, emit| {
        inputs[0].with_tensor(|tensor| emit.row(&[Value::Tensor(*tensor)]))
    });
    let begins = move || assert!(starts.fetch_add(1, Ordering::Relaxed) > 0, "a bug, as asked");
    TestStage { cost: usize::MAX, begins: Arc::new(begins), ..stage }
}

impl Tracer for Panics {
    fn begin(&self, _: RunBegan) -> Arc<dyn RunTracer> {
        Arc::new(self.clone())
    }
}

impl RunTracer for Panics {
    fn number_batch(&self) -> BatchNumber {
        (self.at_batches)();
        BatchNumber { number: 0, context: None }
    }

    fn items_ended(&self, _: &[EndedItems]) {
        (self.at_ends)();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_falls_over_bugs_is_built_anew_and_finishes_without_losing_or_doubling_an_item() {
    let place = workplace();
    let (options, panics) = panicking(&place, |n| [3, 20, 31].contains(&n));
    let outcome = Workplace::ended_with(place.run_with(options), 0).await;
    assert_eq!(panics.load(Ordering::Relaxed), 3);
    all_are_read(&place, ITEMS);
    assert_eq!(outcome.report.items.done, ITEMS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_always_falls_over_ends_with_70_and_can_be_resumed() {
    let place = workplace();
    let (options, panics) = panicking(&place, |n| n >= 5);
    let outcome = Workplace::ended_with(place.run_with(options), 70).await;
    assert_eq!(panics.load(Ordering::Relaxed), 4, "once, and after each of three rebuilds");
    assert!(outcome.problems.join("\n").contains("a bug, as asked"), "{:?}", outcome.problems);
    assert_eq!(place.records(&["all.jsonl"]).done.len() as u64, outcome.report.items.done);
    Workplace::must_end_with(&place.run().await, 0);
    place.records(&["all.jsonl"]).must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tracer_that_panics_when_items_have_ended_is_no_matter_of_the_run() {
    let place = workplace();
    let panics = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&panics);
    let bug = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        panic!("a bug, as asked");
    };
    let tracer = Panics { at_batches: Arc::new(|| {}), at_ends: Arc::new(bug) };
    let trace = Some(Arc::new(tracer) as Arc<dyn Tracer>);
    Workplace::ended_with(place.run_with(StartOptions { trace, ..place.options() }), 0).await;
    assert!(panics.load(Ordering::Relaxed) > 0);
    place.records(&["all.jsonl"]).must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_on_the_blocking_pool_ends_in_a_pipeline_that_is_built_anew() {
    let mut place = workplace();
    place
        .set("from = \"read\"", "from = \"after\"")
        .add("[stages.after]\nkind = \"falls\"\nfrom = \"read.blocks\"");
    let starts = Arc::new(AtomicU32::new(0));
    let kinds = orchestra::kinds().with_stage(falls(Arc::clone(&starts)));
    Workplace::ended_with(place.run_plan(place.plan_with(kinds)), 0).await;
    assert!(starts.load(Ordering::Relaxed) > 1);
    all_are_read(&place, ITEMS);
}

/// The workplace, whose pictures are asked for.
async fn ask_all(options: StartOptions) -> Vec<Result<Vec<orchestra::Record>, orchestra::ProcessError>> {
    let mut place = workplace();
    place
        .set("kind = \"images\"\npaths = [\"images\"]", "kind = \"request\"")
        .set("kind = \"jsonl\"", "kind = \"reply\"");
    let flow = bounded("the flow starts", orchestra::flow_of(place.plan(), options, 1000)).await.unwrap();
    place.watch_flow(&flow);
    let picture = |index: u64| std::fs::read(place.path(&format!("images/{index:08}.png"))).unwrap();
    let asked = (0..ITEMS).map(|index| flow.process(orchestra::Item::bytes(picture(index)), None));
    let answers = bounded("all are answered", join_all(asked)).await;
    assert_eq!(flow.waiting(), 0);
    bounded("the flow ends", flow.close()).await;
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_pipeline_that_falls_over_bugs_are_asked_again_and_answered_once() {
    let place = workplace();
    let (options, panics) = panicking(&place, |n| [3, 20, 31].contains(&n));
    for (index, records) in (0..).zip(ask_all(options).await) {
        let records = records.unwrap();
        let shown: Vec<f32> =
            serde_json::from_value(records[0].json().unwrap()["blocks"]["data"].clone()).unwrap();
        assert_eq!((records.len(), index_of_blocks(&shown)), (1, Some(index)));
    }
    assert_eq!(panics.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_pipeline_that_always_falls_over_are_told_so() {
    let place = workplace();
    let (options, panics) = panicking(&place, |n| n >= 5);
    let answers = ask_all(options).await;
    assert_eq!(panics.load(Ordering::Relaxed), 4, "once, and after each of three rebuilds");
    let over: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert!(!over.is_empty() && (over.len() as u64) < ITEMS);
    for error in over {
        assert!(error.to_string().contains("a bug, as asked"), "{error}");
    }
}
