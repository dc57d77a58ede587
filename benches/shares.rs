//! Two pipelines on one device, at priority 3 to 1, whose models compute: how many items the one does for each of the other while both have work.
//! All is kept on one core, which the kernel shares out among their workers.
//!
//! `cargo bench -p orchestra-launch --bench shares`. Prints the ratios of five rounds; judges none.

#![allow(clippy::unwrap_used, reason = "a benchmark ends at the first surprise")]

#[path = "../crates/orchestra-launch/tests/it/common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use common::{AS_IT_IS, Workplace};
use orchestra_launch::{Machine, PlanOptions, WorkerEvent};
use orchestra_testkit::images::{Kind, write_pictures};
use orchestra_testkit::models;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Of each pipeline: the one with less of the device has work until long after the other has ended.
const ITEMS: u64 = 600;
/// Products of a vector with a matrix for each item: some milliseconds, which is long beside what passes between two items.
const STEPS: usize = 60;

/// Keeps this thread, and all threads and processes that it starts, on one core.
fn stay_on_one_core() {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

fn main() -> ExitCode {
    orchestra_launch::run_if_worker();
    // `cargo bench` adds it: nothing is left to measure in a test.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    stay_on_one_core();
    for _ in 0..5 {
        share();
    }
    ExitCode::SUCCESS
}

/// Prints how many items the first pipeline does for each of the second, while both have work.
fn share() {
    let mut place = Workplace::new();
    write_pictures(&place.path("images"), ITEMS, Kind::Png).unwrap();
    let model = models::slow_blocks(&place.models(), [1, 32, 32], STEPS).unwrap();
    for (name, priority) in [("first", 30), ("second", 10)] {
        place
            .source(name, "images")
            .image(&format!("pixels-{name}"), name, AS_IT_IS)
            .add(&format!("[models.{name}]\npath = {model:?}\npriority = {priority}"))
            .infer(&format!("read-{name}"), &format!("pixels-{name}"), name, 1)
            .sink(&format!("of-{name}"), &format!("read-{name}"), "");
    }
    place.devices(1);
    place.write_workflow();
    let machine = Machine { cores: 4, ..orchestra_launch::machine() };
    let file = place.path("workflow.toml");
    let (plan, _) = orchestra_launch::plan_file(&file, &PlanOptions::default(), &machine).unwrap();
    let plan = plan.unwrap();
    let first = plan.batch_stages().find(|(s, _)| plan.stages[s.index()].name == "read-first").unwrap().0;
    let workers: Vec<usize> =
        plan.batch_stages().map(|(_, batch)| batch.workers.iter().map(|w| w.most()).sum()).collect();
    assert_eq!(workers, [3, 1]);

    let events = Arc::new(Mutex::new(Vec::new()));
    let mut options = place.options();
    let heard = Arc::clone(&events);
    options.events = Some(Arc::new(move |event| heard.lock().unwrap().push(event.clone())));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(place.run_plan_with(plan, options));
    Workplace::must_end_with(&outcome, 0);
    assert_eq!(outcome.report.items.done, 2 * ITEMS);

    let (mut stage_of, mut done) = (HashMap::new(), Vec::new());
    for event in events.lock().unwrap().iter() {
        match event {
            WorkerEvent::Started { worker, stage, .. } => drop(stage_of.insert(*worker, *stage)),
            WorkerEvent::BatchDone { worker, rows } => done.extend(std::iter::repeat_n(*worker, *rows)),
            _ => {}
        }
    }
    // From when all workers have done something until the one pipeline has ended.
    let begin = stage_of.keys().map(|w| done.iter().position(|d| d == w).unwrap()).max().unwrap();
    let end = done.iter().rposition(|worker| stage_of[worker] == first).unwrap();
    let both_work = &done[begin..=end];
    let of_first = both_work.iter().filter(|worker| stage_of[worker] == first).count();
    let of_second = both_work.len() - of_first;
    println!("{of_first} items to {of_second}: {:.2} to 1", of_first as f64 / of_second as f64);
}
