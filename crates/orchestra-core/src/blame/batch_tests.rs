//! What each kind of death proves, and what it takes until an item is confirmed.

use super::*;

const HERE: DeviceId = DeviceId(0);
const THERE: DeviceId = DeviceId(1);

fn strong(rows: usize) -> BatchDeath {
    BatchDeath {
        rows,
        evidence: Evidence::Strong,
        device: HERE,
        alone: false,
        first_of_worker: true,
        shared: false,
        weak_elsewhere: 0,
    }
}

fn weak(rows: usize, alone: bool, weak_elsewhere: u64) -> BatchDeath {
    BatchDeath { evidence: Evidence::Weak, alone, weak_elsewhere, ..strong(rows) }
}

fn devices(n: u16) -> DeviceHistory {
    let mut history = DeviceHistory::default();
    (0..n).for_each(|d| history.expect(DeviceId(d)));
    history
}

const ANY_WORKER: IsolatedRun = IsolatedRun::Needed { fresh_worker: false, another_device: false };
const FRESH_WORKER: IsolatedRun = IsolatedRun::Needed { fresh_worker: true, another_device: false };

#[test]
fn a_single_item_is_never_confirmed_by_its_first_death() {
    let mut s = Suspicion::default();
    assert_eq!(s.died(strong(1)), DeathOutcome::Retry);
    assert_eq!(s.isolated_run(&devices(1)), ANY_WORKER);
    let mut history = devices(1);
    history.succeeded(HERE);
    assert!(!s.is_confirmed_by_success_on(HERE, &history));
}

#[test]
fn an_item_is_not_confirmed_by_workers_that_may_have_been_broken_before() {
    let mut s = Suspicion::default();
    let later = BatchDeath { first_of_worker: false, ..strong(1) };
    let mut history = devices(1);
    history.succeeded(HERE);
    for _ in 0..10 {
        assert_eq!(s.died(later), DeathOutcome::Retry);
        assert_eq!(s.isolated_run(&history), FRESH_WORKER);
        assert!(!s.is_confirmed_by_success_on(HERE, &history));
    }
    s.died(strong(1));
    assert_eq!(s.isolated_run(&history), IsolatedRun::Done);
}

#[test]
fn another_device_is_asked_as_long_as_one_is_left_and_two_that_work_are_enough() {
    let mut history = devices(3);
    history.succeeded(HERE);
    let mut s = Suspicion::default();
    s.died(strong(2));
    s = s.inherited();
    assert_eq!(s.isolated_run(&history), IsolatedRun::NotNeeded);
    s.died(strong(1));
    let elsewhere = IsolatedRun::Needed { fresh_worker: false, another_device: true };
    assert_eq!(s.isolated_run(&history), elsewhere);
    s.died(BatchDeath { device: THERE, first_of_worker: false, ..strong(1) });
    assert_eq!(s.isolated_run(&history), elsewhere, "the second device never got anything right");
    history.succeeded(THERE);
    assert_eq!(s.isolated_run(&history), IsolatedRun::Done);
}

#[test]
fn when_the_other_devices_are_gone_the_word_of_the_last_one_is_enough() {
    let mut history = devices(2);
    let mut s = Suspicion::default();
    s.died(strong(1));
    s.died(strong(1));
    assert_ne!(s.isolated_run(&history), IsolatedRun::Done);
    history.gone(THERE);
    assert_eq!(s.isolated_run(&history), IsolatedRun::Done);
}

#[test]
fn the_best_devices_for_an_isolated_run_are_those_that_have_got_something_right_and_have_room() {
    let mut history = devices(4);
    let mut s = Suspicion::default();
    s.died(strong(1));
    let best = |s: &Suspicion, history: &DeviceHistory| -> Vec<u16> {
        (0..4).filter(|d| s.is_best_for_isolated_run(DeviceId(*d), history)).collect()
    };
    assert_eq!(best(&s, &history), [1, 2, 3]);
    history.succeeded(DeviceId(2));
    history.succeeded(DeviceId(3));
    history.died(DeviceId(3));
    assert_eq!(best(&s, &history), [2, 3]);
    history.gone(DeviceId(3));
    s.found_no_room(DeviceId(2));
    assert_eq!(best(&s, &history), [1, 3], "one that comes back counts, too");
}

#[test]
fn where_there_is_no_room_on_any_device_that_is_left_each_may_be_tried_again() {
    let mut history = devices(2);
    let mut s = Suspicion::default();
    s.found_no_room(HERE);
    assert!(!s.may_fit(HERE, &history) && s.may_fit(THERE, &history) && !s.fits_nowhere(&history));
    history.gone(THERE);
    assert!(s.may_fit(HERE, &history) && s.fits_nowhere(&history));
}

#[test]
fn a_success_on_the_device_of_a_fresh_worker_confirms_the_item() {
    let history = devices(2);
    let mut s = Suspicion::default();
    s.died(strong(2));
    s = s.inherited();
    s.died(strong(1));
    assert!(s.is_confirmed_by_success_on(HERE, &history));
    assert!(!s.is_confirmed_by_success_on(THERE, &history));
}

#[test]
fn items_that_are_killed_in_turn_are_told_apart_by_running_alone() {
    let mut s = Suspicion::default();
    for other in 0..u64::from(WEAK_BEFORE_CAUTION) - 1 {
        assert_eq!(s.died(weak(1, false, other)), DeathOutcome::Retry);
    }
    assert_eq!(s.died(weak(1, false, 9)), DeathOutcome::RunAlone);
    for _ in 1..WEAK_TO_CONFIRM {
        assert_eq!(s.died(weak(1, true, 9)), DeathOutcome::RunAlone);
    }
    assert_eq!(s.died(weak(1, true, 9)), DeathOutcome::Confirmed);
}

#[test]
fn a_batch_that_keeps_being_killed_is_halved_whatever_dies_elsewhere() {
    let mut s = Suspicion::default();
    let outcomes: Vec<_> = (0..WEAK_BEFORE_CAUTION).map(|i| s.died(weak(64, false, u64::from(i)))).collect();
    assert_eq!(outcomes.last(), Some(&DeathOutcome::Split));
    assert!(!s.inherited().is_suspect(), "halves of a batch that was only killed are no suspects");
}

#[test]
fn a_death_that_proves_nothing_changes_nothing() {
    let mut s = Suspicion::default();
    assert_eq!(s.died(BatchDeath { evidence: Evidence::None, ..strong(4) }), DeathOutcome::Retry);
    assert_eq!(s, Suspicion::default());
}

#[test]
fn a_single_item_that_died_beside_others_is_suspected_and_not_confirmed() {
    let mut s = Suspicion::default();
    let mut history = devices(1);
    assert_eq!(s.died(BatchDeath { shared: true, ..strong(1) }), DeathOutcome::Retry);
    history.succeeded(HERE);
    assert!(s.is_suspect());
    assert_eq!(s.isolated_run(&history), IsolatedRun::NotNeeded);
    assert!(!s.is_confirmed_by_success_on(HERE, &history));
    s.died(BatchDeath { first_of_worker: false, ..strong(1) });
    assert_eq!(s.isolated_run(&history), FRESH_WORKER, "it died of itself, or of what ran before");
    s.died(strong(1));
    assert_eq!(s.isolated_run(&history), IsolatedRun::Done);
}
