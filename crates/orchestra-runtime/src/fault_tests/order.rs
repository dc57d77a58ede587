//! However slow the last stage is, stages in front run ahead of it no further than their slots. That of several complete items the oldest goes on is
//! proved beside `OldestFirst`; here a thread may pause with an item in hand, and any number pass that one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use orchestra_plan::Plan;
use orchestra_testkit::workflow_file::WorkflowFile;
use tempfile::TempDir;

use super::fake_plan::plan_of_text;
use super::fake_process::{FakeEngine, Launch, options_with};
use super::log::{Life, Log};
use super::script::*;
use crate::start::{Earlier, prepare};

const ITEMS: u64 = 400;

/// Two quick models whose answers are joined, and a slow one behind them.
fn flow() -> WorkflowFile {
    WorkflowFile::new()
        .source("numbers", "range", format_args!("stop = {ITEMS}"))
        .stage("row", "select", "numbers", "columns = { x = '[[[f32(n)]]]' }")
        .table("models.quick", "path = 'quick.onnx'\nworkers = 1\ndevices = 'cuda:0'\nmemory = '1MiB'")
        .table("models.slow", "path = 'the-slow.onnx'\nworkers = 1\ndevices = 'cuda:1'\nmemory = '1MiB'")
        .stage("one", "infer", "row", "model = 'quick'\nbatch = { max = 4 }")
        .stage("two", "infer", "row", "model = 'quick'\nbatch = { max = 4 }")
        .stage("both", "select", ["numbers", "one", "two"], BOTH)
        .stage("last", "infer", "both", "model = 'slow'\nbatch = { max = 4 }")
        .sink("all", "jsonl", "last")
}

const BOTH: &str = "columns = { x = '[[[f32(numbers.n + 0 * one.y + 0 * two.y)]]]' }";

/// When each item was begun by the workers of a device, the first time.
fn begun(lives: &[Life], device: usize) -> HashMap<u64, Duration> {
    let mut begun = HashMap::new();
    for run in lives.iter().filter(|life| life.device == device).flat_map(|life| &life.runs) {
        for item in &run.items {
            let first = begun.entry(*item).or_insert(run.at);
            *first = run.at.min(*first);
        }
    }
    begun
}

/// Rows that all stages have room for.
fn room(plan: &Plan) -> usize {
    plan.batch_stages().map(|(_, batch)| batch.layout.slots * batch.layout.slot_rows).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_items_are_on_their_way_to_the_last_stage_than_the_slots_have_room_for() {
    let folder = TempDir::new().unwrap();
    let plan = plan_of_text(&flow(), 2, folder.path()).unwrap();
    // Items that a thread has in hand are in no slot: a loader thread's between the two models, and two behind the join.
    let bound = room(&plan) + plan.loader_threads + 2;
    assert!(bound * 4 < ITEMS as usize, "slots are scarce: room for {bound}");
    let log = Log::start();
    let takes = |device| if device == 1 { ms(4) } else { Duration::ZERO };
    let script = move |l: Launch| Script { run_takes: takes(l.device), ..Script::honest() };
    let options = options_with(&plan, FakeEngine::new(log.clone(), script));
    let run = prepare(Arc::new(plan), Earlier::GoOn, None, None).unwrap().start(options).await.unwrap();
    let outcome = tokio::time::timeout(secs(60), run.wait()).await.expect("the run ends by itself");
    assert_eq!((outcome.exit_code, outcome.report.items.done), (0, ITEMS), "{:?}", outcome.problems);

    let (first, last) = (begun(&log.lives(), 0), begun(&log.lives(), 1));
    for (item, at) in &last {
        let on_the_way = first.iter().filter(|(other, begun)| **begun < *at && last[other] > *at).count();
        assert!(on_the_way <= bound, "{on_the_way} of {bound} when item {item} came to the last stage");
    }
}
