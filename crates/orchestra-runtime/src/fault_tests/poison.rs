//! Items that end their worker: each is found by halving and fails alone by name, and its neighbours are done.

use orchestra_core::{FailureKind, WorkerExit};

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

async fn poisoned(mut stage: Stage, poison: &[u64], does: RunFault) -> Outcome {
    let Stage { items, max_batch, streams, .. } = stage;
    stage.label = format!("{poison:?} of {items} in batches of {max_batch}, {streams} streams: {does:?}");
    let mut script = Script::poisoned(poison.iter().copied(), does);
    script.says = "assertion failed: pixel > 0".to_owned();
    stage.run(move |_| script.clone()).await
}

fn mid_run(exit: WorkerExit) -> RunFault {
    RunFault::Die(Point::MidRun, exit)
}

/// Crashes that finding one item may cost. One that is alone in its batch is only suspected when it dies beside others.
fn at_most(max_batch: usize, streams: usize) -> u64 {
    u64::from(max_batch.ilog2()) + 2 + u64::from(max_batch == 1 && streams > 1)
}

#[tokio::test(start_paused = true)]
async fn one_poison_item_is_found_within_log2_plus_two_crashes_and_fails_with_its_workers_last_words() {
    let alone = [1, 2, 4, 16, 64].map(|max_batch| (max_batch, 1));
    let beside = (2..=4).flat_map(|streams| [1, 2, 4, 16].map(|max_batch| (max_batch, streams)));
    for (max_batch, streams) in alone.into_iter().chain(beside) {
        for item in [0, 501, 999] {
            let stage = Stage { max_batch, streams, ..Stage::of(1_000) };
            let run = poisoned(stage, &[item], mid_run(SEGFAULT)).await;
            run.all_done_but([item]).failed_as(FailureKind::Crash);
            run.check(run.exits.len() as u64 <= at_most(max_batch, streams), "halving finds it");
            let failure = &run.account.failed[&item];
            run.check(failure.error.contains("SIGSEGV") && failure.error.contains("assertion failed"), "why");
            run.check(failure.attempts as usize == run.times_begun(item), "attempts are counted");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_poison_items_are_found_also_when_they_share_a_batch_or_run_at_the_same_time() {
    let abort = || WorkerExit::Signal(6);
    for streams in 1..=4 {
        // Eight that hang in one batch are more than a device bears.
        let near = if streams == 1 { 8..16 } else { 8..12 };
        let near: Vec<u64> = near.collect();
        let faults = match streams {
            1 => vec![mid_run(abort())],
            _ => vec![RunFault::Die(Point::AfterOutputs, abort()), RunFault::Hang],
        };
        let sets = [&[3, 400, 801][..], &[400, 401], &[400, 407], &[400, 408, 416, 424], &near];
        for (poison, does) in sets.iter().flat_map(|set| faults.iter().map(move |does| (*set, does.clone())))
        {
            let is_hang = does == RunFault::Hang;
            let stage = Stage { max_batch: 8, streams, workers: streams.min(2), ..Stage::of(1_000) };
            let run = poisoned(stage, poison, does).await;
            run.all_done_but(poison.iter().copied());
            run.check(is_hang || run.account.failed.values().all(|f| f.kind == FailureKind::Crash), "why");
            let crashes = run.exits.len() as u64;
            run.check(crashes <= at_most(8, streams) * poison.len() as u64, &format!("{crashes} crashes"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_gets_its_worker_killed_from_outside_fails_when_nothing_else_can_be_to_blame() {
    for does in [mid_run(KILLED), RunFault::Freeze] {
        let run = poisoned(Stage::of(100), &[50], does).await;
        run.all_done_but([50]).failed_as(FailureKind::Crash);
        run.check(run.times_begun(50) >= 8, "after many tries");
    }
}
