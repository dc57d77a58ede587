//! What the planner accepts, the runtime starts: generated workflows run over honest fake workers to their end, and each item has one.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use fastrand::Rng;
use orchestra_plan::{Plan, RecordsPerItem};
use orchestra_testkit::workflow_file::WorkflowFile;
use tempfile::TempDir;

use super::fake_plan::plan_of_text;
use super::fake_process::{FakeEngine, options_with};
use super::log::Log;
use super::script::*;
use crate::account::outcome::RunOutcome;
use crate::start::{Earlier, prepare};

/// The workflow of this seed, right or wrong, and how many items its sources have.
fn workflow(seed: u64) -> (WorkflowFile, u64) {
    let mut random = Rng::with_seed(seed);
    let limits = random.choice(["loaders = 1", "loaders = 3\nmemory = '64MiB'", "memory = '20MiB'"]).unwrap();
    let mut flow = WorkflowFile::new().table("limits", limits);
    flow = flow.model("fake", "fake.onnx").table("models.other", "path = 'other.onnx'\nworkers = 3");
    // Each with a column of one number.
    let mut nodes: Vec<(String, &str)> = Vec::new();
    let (mut items, mut read) = (0, BTreeSet::new());
    for n in 0..1 + random.usize(..2) {
        let of_source = random.u64(1..60);
        let keys = format!("items = {of_source}\nshape = [1, 1, 1]\nseed = {seed}");
        nodes.push((format!("source{n}"), "x"));
        flow = flow.source(&nodes[n].0, "random", keys);
        items += of_source;
    }
    for n in 0..random.usize(..6) {
        let (from, column) = random.choice(nodes.clone()).unwrap();
        let max = random.usize(1..9);
        let (kind, keys, gives) = random
            .choice([
                ("infer", format!("model = 'fake'\nbatch = {{ max = {max}, wait = '1ms' }}"), "y"),
                ("infer", "model = 'other'".to_owned(), "y"),
                ("filter", format!("keep = '{column} > 0.4'"), column),
                ("select", format!("columns = {{ z = '{column}' }}"), "z"),
                ("select", format!("columns = {{ z = '{column} * 2' }}"), "z"),
                ("threshold", "above = 0.3".to_owned(), "mask"),
                ("argmax", String::new(), "classes"),
                ("classify", "scores = 'none'".to_owned(), "classes"),
                ("embed", String::new(), "embedding"),
                ("reduce", "op = 'count'".to_owned(), "rows"),
                ("reduce", "op = 'concat'".to_owned(), column),
                ("reduce", "op = 'mean'\nover = 'elements'".to_owned(), "mean"),
            ])
            .unwrap();
        let name = format!("stage{n}");
        flow = flow.stage(&name, kind, &from, keys);
        read.insert(from);
        nodes.push((name, gives));
    }
    for (n, (leaf, _)) in nodes.iter().enumerate().filter(|(_, (name, _))| !read.contains(name)) {
        let kind = random.choice(["jsonl", "jsonl", "csv", "npy", "tar"]).unwrap();
        flow = flow.sink(&format!("sink{n}"), kind, leaf);
    }
    if random.bool() {
        let both: [String; 2] = std::array::from_fn(|_| random.choice(nodes.clone()).unwrap().0);
        flow = flow.sink("both", "jsonl", both);
    }
    (flow, items)
}

async fn run(plan: Plan) -> RunOutcome {
    let quick = || Script { load_takes: ms(1), run_takes: ms(1), ..Script::honest() };
    let options = options_with(&plan, FakeEngine::new(Log::start(), move |_| quick()));
    let prepared = prepare(Arc::new(plan), Earlier::GoOn, None, None).unwrap();
    let run = prepared.start(options).await.unwrap();
    tokio::time::timeout(secs(60), run.wait()).await.expect("the run ends by itself")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_planner_accepts_starts_and_ends_with_an_end_of_every_item() {
    let (mut accepted, mut behind_reduces, mut kinds) = (0, 0, BTreeSet::new());
    for seed in 0..150 {
        let folder = TempDir::new().unwrap();
        let (flow, items) = workflow(seed);
        let Ok(plan) = plan_of_text(&flow, 0, folder.path()) else { continue };
        accepted += 1;
        kinds.extend(plan.stages.iter().map(|stage| stage.kind.clone()));
        let made: Vec<String> =
            plan.sources.iter().filter(|s| s.reduced.is_some()).map(|s| s.name.clone()).collect();
        behind_reduces += made.len();
        let RunOutcome { report, exit_code, problems, .. } = run(plan).await;
        let items = items + made.iter().map(|source| report.sources[source].unwrap()).sum::<u64>();
        let ended = (report.items.done, report.items.failed, report.items.total);
        assert_eq!(
            (exit_code, ended),
            (0, (items, 0, Some(items))),
            "{problems:?}, seed {seed}:\n{}",
            &*flow
        );
        assert!(report.complete, "seed {seed}");
        for sink in report.outputs.iter().filter(|sink| sink.kind == "jsonl") {
            let lines = fs::read_to_string(folder.path().join(&sink.path)).unwrap().lines().count() as u64;
            let of_sources: u64 = sink.sources.iter().filter_map(|source| report.sources[source]).sum();
            let is_one = sink.records == RecordsPerItem::One;
            assert!(!is_one || lines == of_sources, "seed {seed}: {lines} records of `{}`", sink.sink);
        }
    }
    assert!(
        accepted >= 30 && kinds.len() >= 9 && behind_reduces >= 5,
        "{accepted} workflows of {kinds:?}, stages behind {behind_reduces} reduces"
    );
}
