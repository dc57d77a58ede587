//! Healthy workers that are replaced by plan: the successor is loaded first, the device is never without a worker, and nothing is run twice,
//! whatever happens on the way.

use std::time::Duration;

use orchestra_core::ErrorClass;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

fn stage(items: u64, recycle_after: u64, label: &str) -> Stage {
    Stage { recycle_after: Some(recycle_after), ..Stage::of(items).named(label) }
}

/// At every moment from the first load to the end of the last batch, a worker is loaded.
fn a_worker_always_serves(run: &Outcome) {
    let ends = run.lives.iter().map(|l| l.end()).filter(|end| *end < run.over);
    let mut unserved: Vec<Duration> =
        ends.filter(|end| !run.lives.iter().any(|l| l.serves_at(*end))).collect();
    unserved.sort();
    run.check(unserved.is_empty(), &format!("no worker served at {unserved:?}"));
}

#[tokio::test(start_paused = true)]
async fn recycling_never_leaves_the_device_without_a_worker_and_runs_nothing_twice() {
    for (after, load_takes) in [(1, ms(100)), (3, ms(100)), (7, ms(5)), (7, secs(2))] {
        let script = Script { load_takes, ..Script::honest() };
        let run = stage(800, after, &format!("after {after}")).run(move |_| script.clone()).await;
        run.all_done();
        a_worker_always_serves(&run);
        run.check((run.restarts, run.retries) == (0, 0), "no death, no retry");
        run.check(run.starts >= 3 || load_takes > secs(1), "workers are recycled");
        run.check(run.exits.is_empty(), "they end as asked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_cannot_load_costs_nothing_and_is_tried_again() {
    let faults = [
        Script::loading(Load::Fails(ErrorClass::Permanent)),
        Script::loading(Load::Fails(ErrorClass::Transient)),
        Script::loading(Load::Dies(SEGFAULT)),
        Script::starting(Start::CannotBeStarted),
        Script::starting(Start::Dies(KILLED)),
    ];
    for fault in faults {
        let label = format!("{:?}, {:?}", fault.start, fault.load);
        let run = stage(800, 20, &label)
            .run(move |l| if (2..=4).contains(&l.nth) { fault.clone() } else { Script::honest() })
            .await;
        run.all_done();
        a_worker_always_serves(&run);
        run.check((run.restarts, run.retries) == (0, 0), "no restart, no retry");
        run.check(run.lives[0].runs.len() >= 80, "the old one goes on");
        run.check(run.starts >= 5, "a fourth successor takes over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_while_it_is_being_recycled_costs_no_item_also_where_its_successor_dies() {
    // Batches of 50 ms from 0.1 s on; after the third, at 0.25 s, the successor is started, and it is loaded at 0.35 s.
    for later in (160..420).step_by(10) {
        for (exit, load) in [(KILLED, Load::Works), (SEGFAULT, Load::Works), (SEGFAULT, Load::Dies(SEGFAULT))]
        {
            let label = format!("{exit} at {later} ms, its successor {load:?}");
            let dies = Script { run_takes: ms(50), ..Script::later(ms(later), TimedFault::Dies(exit)) };
            let successor = Script::loading(load.clone());
            let run = stage(80, 3, &label).run(move |l| match l.nth {
                1 => dies.clone(),
                2 => successor.clone(),
                _ => Script::honest(),
            });
            let run = run.await;
            run.all_done();
            run.check(run.most_begun() <= 2, "what it held is begun once more");
            run.check(run.restarts == 0 || load != Load::Works, "its successor takes its place");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_leave_when_it_is_recycled_is_killed_and_delays_no_batch() {
    let stays = Script { ending: Ending::Never, ..Script::honest() };
    let run = stage(400, 5, "stays").run(move |_| stays.clone()).await;
    run.all_done();
    run.check((run.restarts, run.retries) == (0, 0), "no restart, no retry");
    let told = run.lives[0].told.expect("it was told to end");
    run.check_time(run.lives[0].end() - told, secs(5), secs(5) + ms(250), "it is killed");
    run.check(run.over <= secs(2), "no batch waits for it");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_hangs_while_it_drains_gives_its_batch_back_at_the_deadline() {
    let hangs = Script::at_run(6, RunFault::Hang);
    let run = stage(80, 3, "hangs")
        .run(move |l| {
            let script = if l.nth == 1 { hangs.clone() } else { Script::honest() };
            Script { run_takes: ms(50), ..script }
        })
        .await;
    run.all_done();
    run.check(run.most_begun() <= 2, "what it held is begun once more");
    let hung = run.lives[0].runs.last().expect("it ran something").at;
    run.check_time(run.lives[0].end() - hung, secs(10), secs(10) + ms(250), "it is killed");
}
