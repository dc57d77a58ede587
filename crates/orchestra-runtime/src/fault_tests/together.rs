//! Batches that go to a worker together: they do so while all workers are busy and as long as they are quick, and whatever happens to one of
//! them sets them apart, so that blame still lands on the right item.

use orchestra_core::{FailureKind, WorkerExit};
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

fn stage(items: u64, max_batch: usize, together: usize) -> Stage {
    let label = format!("{together} batches of {max_batch}");
    Stage { max_batch, together, ..Stage::of(items).named(label) }
}

/// Rows of the frames that were begun, by worker and in their order.
fn rows(run: &Outcome) -> Vec<usize> {
    run.lives.iter().flat_map(|life| life.runs.iter().map(|begun| begun.items.len())).collect()
}

/// Crashes that finding one item may cost: one sets the batches apart.
fn at_most(max_batch: usize) -> u64 {
    u64::from(max_batch.ilog2()) + 3
}

fn taking(takes: std::time::Duration) -> Script {
    Script { run_takes: takes, ..Script::honest() }
}

#[tokio::test(start_paused = true)]
async fn quick_batches_go_together_once_their_worker_is_busy_and_slow_ones_never() {
    let run = stage(4_000, 4, 8).run(|_| taking(ms(2))).await;
    run.all_done();
    let quick = rows(&run);
    run.check(quick[0] <= 4, "no row waits for the first batch to have company");
    run.check(quick.iter().filter(|n| **n == 32).count() > 100, "most of them go with seven others");
    run.check(quick.iter().all(|n| *n <= 32), "and none with more");

    let run = stage(4_000, 4, 8).run(|_| taking(ms(20))).await;
    run.all_done();
    run.check(rows(&run).iter().all(|n| *n <= 8), "two of 20 ms are within 50 ms");

    let run = stage(400, 4, 8).run(|_| taking(ms(60))).await;
    run.all_done();
    run.check(rows(&run).iter().all(|n| *n <= 4), "slow ones go one by one");
}

#[tokio::test(start_paused = true)]
async fn where_a_worker_waits_for_items_every_batch_goes_at_once() {
    let mut stage = stage(400, 4, 8);
    stage.pause = ms(3);
    let run = stage.run(|_| taking(ms(1))).await;
    run.all_done();
    run.check(rows(&run).iter().all(|n| *n <= 4), "nothing waits for more while its worker waits");
}

#[tokio::test(start_paused = true)]
async fn together_they_are_far_from_what_one_may_take() {
    let mut stage = stage(2_000, 4, 8);
    stage.batch_timeout = ms(80);
    let run = stage.run(|_| taking(ms(2))).await;
    run.all_done();
    run.check(
        run.exits.is_empty() && rows(&run).iter().all(|n| *n <= 8),
        "a twentieth of 80 ms is two batches",
    );
}

#[tokio::test(start_paused = true)]
async fn a_poison_item_costs_one_worker_more_and_fails_alone() {
    for max in [1, 2, 4, 16] {
        for together in [2, 3, 8] {
            for item in [0, 501, 999] {
                let poison = Script::poisoned([item], RunFault::Die(Point::MidRun, SEGFAULT));
                let run = stage(1_000, max, together).run(move |_| poison.clone()).await;
                run.all_done_but([item]).failed_as(FailureKind::Crash);
                let crashes = run.exits.len() as u64;
                run.check(crashes <= at_most(max), &format!("{crashes} crashes"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_the_model_refuses_fails_alone_and_costs_no_worker() {
    for max in [1, 4] {
        let refused = Script::poisoned([77, 78, 300], RunFault::Fails(RunErrorKind::Model));
        let run = stage(400, max, 8).run(move |_| refused.clone()).await;
        run.all_done_but([77, 78, 300]).failed_as(FailureKind::Model);
        run.check(run.exits.is_empty(), "no worker died");
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_hangs_fails_as_a_timeout_and_all_that_went_with_it_is_done() {
    let hangs = Script::poisoned([201], RunFault::Hang);
    let run = stage(400, 4, 8).run(move |_| hangs.clone()).await;
    run.all_done_but([201]).failed_as(FailureKind::Timeout);
    run.check(run.exits.len() as u64 <= at_most(4), "it is found as others are");
}

#[tokio::test(start_paused = true)]
async fn memory_that_holds_less_than_a_batch_is_learned_at_once_and_nothing_goes_together_meanwhile() {
    let mut script = taking(ms(1));
    script.memory = vec![(secs(0), 100), (ms(150), 3)];
    let run = stage(2_000, 8, 8).run(move |_| script.clone()).await;
    run.all_done();
    run.check(run.exits.is_empty(), "running out of memory kills no worker");
    let faults =
        run.lives[0].runs.iter().filter(|begun| begun.items.len() > 3 && begun.at >= ms(400)).count();
    // What was on its way goes apart first; after that the ceiling is tried once in a while.
    run.check(faults <= 40, &format!("{faults} frames with more than fits"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_killed_at_any_point_costs_no_item_whatever_went_together() {
    for point in Point::ALL {
        for exit in [KILLED, SEGFAULT, WorkerExit::Code(3)] {
            for nth in [1, 2, 12] {
                let mut dies = Script::at_run(nth, RunFault::Die(point, exit.clone()));
                dies.run_takes = ms(2);
                let stage = stage(1_200, 4, 8).named(format!("{point:?}, {exit}, {nth}"));
                let run = stage.run(move |l| if l.nth == 1 { dies.clone() } else { taking(ms(2)) }).await;
                run.all_done();
                run.check(run.restarts == 1 && run.most_begun() <= 2, "nothing is begun a third time");
                let last = run.lives[0].runs.last().map_or(0, |begun| begun.items.len());
                run.check(nth < 12 || last > 4, "late ones go together");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wear_is_counted_in_batches() {
    let mut stage = stage(4_000, 4, 8);
    stage.recycle_after = Some(40);
    let run = stage.run(|_| Script { load_takes: ms(1), ..taking(ms(1)) }).await;
    run.all_done();
    let batches =
        |life: &super::log::Life| life.runs.iter().map(|r| r.items.len().div_ceil(4)).sum::<usize>();
    let most = run.lives.iter().map(batches).max().unwrap_or(0);
    run.check(most <= 40 + 4 * 8, &format!("{most} batches in one worker: 40, and what it held"));
}
