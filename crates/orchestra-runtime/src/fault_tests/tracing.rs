//! What the tracer is told, where something goes wrong. That it is complete is checked at the end of every run of these tests: see
//! `told`.

use std::sync::Arc;

use orchestra_core::batching::LeaveReason;
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;
use crate::trace::{BatchEnd, BatchTrace, FollowUp, Steps};

fn told(run: &Outcome, what: impl Fn(&BatchTrace) -> bool) -> Vec<Arc<BatchTrace>> {
    let batches = run.told.as_ref().unwrap().batches();
    batches.into_iter().filter(|b| what(b)).collect()
}

/// Items of these tests by the batches that they were in.
fn items_of(run: &Outcome, batch: &BatchTrace) -> Vec<u64> {
    let was_in = |steps: &Steps| steps.batches.iter().any(|b| b.number.number == batch.number.number);
    let of_it = run.account.tickets.iter().filter(|(_, steps)| was_in(steps));
    let mut items: Vec<u64> = of_it.map(|(ticket, _)| ticket.id().index).collect();
    items.sort_unstable();
    items
}

#[tokio::test(start_paused = true)]
async fn the_batch_of_a_killed_worker_ends_with_its_exit_and_its_retry_is_another_attempt_of_it() {
    let mut dies = Script::at_run(2, RunFault::Die(Point::MidRun, KILLED));
    dies.says = "goodbye".to_owned();
    let run = Stage::of(40).run_first(dies).await;
    run.all_done();
    let lost = told(&run, |b| matches!(b.end, BatchEnd::WorkerLost { .. }));
    run.check(lost.len() == 2, "the one that ran, and the one behind it");
    let begun: Vec<_> = lost.iter().filter(|b| b.ran.begun.is_some()).collect();
    run.check(begun.len() == 1, "one of them was begun");
    for batch in &lost {
        let BatchEnd::WorkerLost { exit, last_words, then: FollowUp::Requeued(next) } = &batch.end else {
            panic!("{batch:?}")
        };
        run.check(*exit == KILLED && last_words == "goodbye", "how, and its last words");
        let retry = run.told.as_ref().unwrap().batch(*next).expect("it is sent again");
        let attempt = batch.attempt + u32::from(batch.ran.begun.is_some());
        run.check(retry.end == BatchEnd::Done && retry.attempt == attempt, "the next attempt");
        run.check(retry.reason == LeaveReason::Retry, "which says what it is");
        run.check(retry.sent >= batch.ended, "after the one before");
        run.check(items_of(&run, batch) == items_of(&run, &retry), "of the same items");
    }
}

#[tokio::test(start_paused = true)]
async fn halves_of_a_batch_that_found_no_memory_are_told_with_the_ceiling_that_sank() {
    let run = Stage::of(8).run(|_| Script::with_memory(2)).await;
    run.all_done();
    let faults = told(&run, |b| matches!(b.end, BatchEnd::Fault { .. }));
    let first = &faults[0];
    let BatchEnd::Fault { kind, then, .. } = &first.end else { panic!("{first:?}") };
    run.check(*kind == RunErrorKind::OutOfMemory && *then == FollowUp::Split, "it is halved");
    run.check(first.ceiling.is_some_and(|(before, after)| after < before), "and the ceiling sinks");
    let halves = told(&run, |b| b.reason == LeaveReason::Split && b.end == BatchEnd::Done);
    run.check(halves.iter().any(|h| items_of(&run, first).starts_with(&items_of(&run, h))), "into parts");
}

#[tokio::test(start_paused = true)]
async fn a_failed_item_is_told_with_every_batch_that_it_was_in() {
    let run = Stage::of(16).run(|_| Script::poisoned([5], RunFault::Fails(RunErrorKind::Model))).await;
    run.all_done_but([5]);
    let (_, steps) = run.account.tickets.iter().find(|(t, _)| t.id().index == 5).unwrap();
    let ends: Vec<usize> = steps.batches.iter().map(|b| b.items).collect();
    run.check(ends == [4, 2, 1], &format!("halved down to the item: {ends:?}"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_noted_where_nothing_is_traced() {
    let mut stage = Stage::of(40);
    stage.traced = false;
    let run = stage.run(|_| Script::honest()).await;
    run.all_done();
    run.check(run.told.is_none(), "no tracer is told");
    run.check(
        run.account.tickets.iter().all(|(t, _)| t.timeline().unwrap().is_empty()),
        "and nothing is carried along",
    );
}
