//! Items that end their worker: each is found by halving and fails alone by name, and its neighbours are done.

use orchestra_core::{FailureKind, WorkerExit};

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

async fn poisoned(items: u64, max_batch: usize, poison: &[u64], does: RunFault) -> Outcome {
    let label = format!("{poison:?} of {items} in batches of {max_batch}: {does:?}");
    let mut script = Script::poisoned(poison.iter().copied(), does);
    script.says = "assertion failed: pixel > 0".to_owned();
    let stage = Stage { max_batch, ..Stage::of(items).named(label) };
    stage.run(move |_| script.clone()).await
}

fn mid_run(exit: WorkerExit) -> RunFault {
    RunFault::Die(Point::MidRun, exit)
}

/// Crashes that finding one item may cost.
fn at_most(max_batch: usize) -> u64 {
    u64::from(max_batch.ilog2()) + 2
}

#[tokio::test(start_paused = true)]
async fn one_poison_item_is_found_within_log2_plus_two_crashes_and_fails_with_its_workers_last_words() {
    for max in [1, 2, 4, 16, 64] {
        for item in [0, 501, 999] {
            let run = poisoned(1_000, max, &[item], mid_run(SEGFAULT)).await;
            run.all_done_but([item]).failed_as(FailureKind::Crash);
            run.check(run.exits.len() as u64 <= at_most(max), "halving finds it");
            let failure = &run.account.failed[&item];
            run.check(failure.error.contains("SIGSEGV") && failure.error.contains("assertion failed"), "why");
            run.check(failure.attempts as usize == run.times_begun(item), "attempts are counted");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_poison_items_are_found_also_when_they_share_a_batch() {
    for poison in [&[3, 400, 801][..], &[400, 401], &[400, 407], &[8, 9, 10, 11, 12, 13, 14, 15]] {
        let run = poisoned(1_000, 8, poison, mid_run(WorkerExit::Signal(6))).await;
        run.all_done_but(poison.iter().copied()).failed_as(FailureKind::Crash);
        let crashes = run.exits.len() as u64;
        run.check(crashes <= at_most(8) * poison.len() as u64, &format!("{crashes} crashes"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_gets_its_worker_killed_from_outside_fails_when_nothing_else_can_be_to_blame() {
    for does in [mid_run(KILLED), RunFault::Freeze] {
        let run = poisoned(100, 4, &[50], does).await;
        run.all_done_but([50]).failed_as(FailureKind::Crash);
        run.check(run.times_begun(50) >= 8, "after many tries");
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_crashes_on_everything_is_no_fault_of_the_items() {
    for max in [1, 4, 64] {
        let mut stage = Stage::of(1_000).named(format!("batches of {max}"));
        stage.max_batch = max;
        let run = stage.run(|_| Script::at_every_run(mid_run(SEGFAULT))).await;
        run.check(run.account.no_device.is_some(), "it is the device, or the model");
        run.check(run.account.failed.len() <= 2, "hardly an item is blamed");
        run.check(run.over <= secs(10), "it fails fast");
    }
}
