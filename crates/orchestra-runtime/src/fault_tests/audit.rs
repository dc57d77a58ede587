//! What every run must keep, whatever its workers did: an exact account, no row with two workers at once, and nothing left behind. It knows
//! no scenario.

use std::sync::Arc;
use std::time::Duration;

use orchestra_core::worker_exit::ExitKind;
use tokio::runtime::Handle;

use super::account::Outcome;
use super::stage::Ended;

/// How long pauses and intervals of actors that are gone may last on.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Every actor and task of the run has ended, and nothing holds its context, its memory or a credit.
pub async fn nothing_is_left(ended: &mut Ended, tasks_before: usize) {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let until = tokio::time::Instant::now() + LONGEST_PAUSE;
    // Which of its last holders goes first is up to the runtime.
    let is_held = || Arc::strong_count(&ended.context) > 1;
    while (tasks() > tasks_before || is_held()) && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(tasks() <= tasks_before, "{} tasks are left", tasks() - tasks_before);
    assert_eq!(Arc::strong_count(&ended.context), 1, "the context of the run is still held");
    assert_eq!(Arc::strong_count(&ended.pool), 1, "the slots are still held");
    assert_eq!(ended.context.stats.slots_lost.get(), 0, "slots were lost");
    let ready: u64 = ended.context.stats.devices.iter().map(|d| d.ready.get()).sum();
    assert_eq!(ready, 0, "workers are still counted as ready");
    for device in &ended.context.stats.devices {
        let gone: u64 = ExitKind::ALL.iter().map(|kind| device.exits(*kind).get()).sum();
        assert_eq!(gone, device.starts.get(), "every worker that was started is counted as gone, once");
        assert_eq!(
            (device.starting(), device.ending.get()),
            (0, 0),
            "workers are still counted as starting or ending"
        );
    }
    assert_eq!(ended.context.stats.workers.all(), [], "workers are still looked at");
}

/// Every item has one end, or, in a run that was cut short, at most one; `credits` are the slots that were taken when the run was over.
pub fn account_is_exact(outcome: &Outcome, stopped: bool, credits: u64) {
    let account = &outcome.account;
    outcome.check(account.problems.is_empty(), "nothing that must never be");
    if account.no_device.is_none() && !stopped {
        let ended: Vec<u64> = (0..outcome.stage.items)
            .filter(|i| account.done.contains(i) != account.failed.contains_key(i))
            .collect();
        outcome.check(ended.len() as u64 == outcome.stage.items, "every item has one end");
        outcome.check(credits == 0, "all credits are home");
    }
    outcome.check(outcome.lives.iter().all(|l| l.ended.is_some()), "every worker has ended");
    outcome.check(outcome.starts == outcome.lives.len() as u64, "starts are counted");
    for (item, failure) in &account.failed {
        let begun = outcome.times_begun(*item);
        outcome.check(failure.attempts as usize >= begun.max(1), "attempts are counted");
        outcome.check(!failure.error.is_empty(), "a failure says why");
    }
    no_row_is_with_two_workers(outcome);
}

/// A batch only goes to another worker when the one before has answered or is gone: no other process touches its memory then.
fn no_row_is_with_two_workers(outcome: &Outcome) {
    for item in 0..outcome.stage.items {
        let mut spans: Vec<(Duration, Duration)> =
            outcome.begun(item).map(|(life, run)| (run.at, run.answered.unwrap_or(life.end()))).collect();
        spans.sort();
        let apart = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        outcome.check(apart, &format!("item {item} was with two workers at once: {spans:?}"));
    }
}
