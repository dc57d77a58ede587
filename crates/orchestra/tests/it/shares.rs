//! Two pipelines on one device, at priority 3 to 1: while both have work, the one does three items for each of the other. Workers sleep over each
//! item, so that what else the machine does takes from both alike.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::common::{ONE_PIXEL_PER_BLOCK, ROW, Workplace, hurried};
use orchestra::{Machine, Plan, PlanOptions, StageId, WorkerEvent, WorkerId};
use orchestra_core::DType;
use orchestra_testkit::faulty::{FAULT, FAULT_ONCE, FAULT_PACE};
use orchestra_testkit::images::{Kind, write_pictures};
use orchestra_testkit::models;

/// Of each pipeline: the one with less of the device has work until long after the other has ended.
const ITEMS: u64 = 420;
/// Workers of both on a machine of two cores.
const WORKERS: [usize; 2] = [3, 1];
/// A worker's first item takes until the next worker has its first one: from then on, all are at work.
const ALL_AT_ONCE: &str = "until-next-serves:1,until-next-serves:1,until-next-serves:1,none";

/// One item at a time goes to a worker, so that each costs a pause of its own.
fn workplace() -> Workplace {
    let mut place = Workplace::new();
    write_pictures(&place.path("images"), ITEMS, Kind::Png).unwrap();
    let model = models::identity(&place.models(), DType::F32, &ROW).unwrap();
    for (name, priority) in [("first", 30), ("second", 10)] {
        place
            .source(name, "images")
            .image(&format!("pixels-{name}"), name, ONE_PIXEL_PER_BLOCK)
            .add(&format!("[models.{name}]\npath = {model:?}\npriority = {priority}"))
            .infer(&format!("read-{name}"), &format!("pixels-{name}"), name, 1)
            .sink(&format!("of-{name}"), &format!("read-{name}"), "");
    }
    place.add("[limits]\nbatch_timeout = \"1h\"").devices(1);
    place
}

/// Its plan for two cores, with the stages of the two pipelines.
fn plan_of(place: &Workplace) -> (Plan, [StageId; 2]) {
    place.write_workflow();
    let machine = Machine { cores: 2, ..orchestra::machine() };
    let file = place.path("workflow.toml");
    let (plan, _) = orchestra::plan_file(&file, &PlanOptions::default(), &machine).unwrap();
    let plan = plan.unwrap();
    let stages = ["read-first", "read-second"].map(|name| {
        let (stage, _) = plan.batch_stages().find(|(s, _)| plan.stages[s.index()].name == name).unwrap();
        stage
    });
    for (stage, workers) in stages.iter().zip(WORKERS) {
        let (_, batch) = plan.batch_stages().find(|(s, _)| s == stage).unwrap();
        assert_eq!(batch.workers.iter().map(|w| w.most()).sum::<usize>(), workers);
        assert_eq!(batch.max_batch, 1);
    }
    (plan, stages)
}

/// The worker and the stage of each item that was done, in their order.
fn done_in_order(events: &[WorkerEvent]) -> Vec<(WorkerId, StageId)> {
    let mut stage_of = HashMap::new();
    let mut done = Vec::new();
    for event in events {
        match event {
            WorkerEvent::Started { worker, stage, .. } => drop(stage_of.insert(*worker, *stage)),
            WorkerEvent::BatchDone { worker, rows } => {
                done.extend(std::iter::repeat_n((*worker, stage_of[worker]), *rows));
            }
            _ => {}
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_at_priority_three_to_one_do_three_items_to_one_while_both_have_work() {
    let place = workplace();
    let (plan, [first, second]) = plan_of(&place);
    let once = place.path("once");
    let workers = place.faulty_workers(&[
        (FAULT, ALL_AT_ONCE),
        (FAULT_ONCE, once.to_str().unwrap()),
        (FAULT_PACE, "60"),
    ]);
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut options = hurried(workers);
    let heard = Arc::clone(&events);
    options.events = Some(Arc::new(move |event| heard.lock().unwrap().push(event.clone())));
    let outcome = place.run_plan_with(plan, options).await;
    Workplace::must_end_with(&outcome, 0);
    assert_eq!(outcome.report.items.done, 2 * ITEMS);

    let done = done_in_order(&events.lock().unwrap());
    let last_of_first = done.iter().rposition(|(_, stage)| *stage == first).unwrap();
    let begin_of = |worker: WorkerId| done.iter().position(|(w, _)| *w == worker).unwrap();
    let begin = done.iter().map(|(worker, _)| begin_of(*worker)).max().unwrap();
    let both_work = &done[begin..=last_of_first];
    let of = |stage| both_work.iter().filter(|(_, s)| *s == stage).count();
    let (of_first, of_second) = (of(first), of(second));
    let share = of_first as f64 / of_second as f64;
    println!("{of_first} items to {of_second}: {share:.2} to 1");
    assert!(of_first as u64 > ITEMS * 9 / 10, "{of_first} of {ITEMS}: workers have not begun together");
    assert!((2.7..=3.3).contains(&share), "{of_first} items to {of_second}: {share:.2} to 1");
}
