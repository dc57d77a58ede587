//! Poison rows, sick devices and broken workers: who is blamed, and who is asked. What it costs to find a poison row, and that no other is blamed for a
//! device: `tests/it/world/checks.rs`.

use super::*;
use crate::ids::SlotId;

const T: Duration = Duration::ZERO;

fn rows(slot: u32, count: usize) -> Rows {
    Rows { slot: SlotId(slot), first: 0, count }
}

#[test]
fn a_suspect_is_not_kept_waiting_by_work_that_never_ends() {
    let mut ledger = Ledger::new(1).with_streams(2);
    (0..2).for_each(|w| ledger.worker_ready(WorkerId(w), DeviceId(0)));
    (0..6).for_each(|slot| ledger.add(rows(slot, 1), LeaveReason::Full));
    let mut held: VecDeque<_> = std::iter::from_fn(|| ledger.dispatch(T)).collect();
    let _ = ledger.worker_lost(WorkerId(0), &WorkerExit::Signal(11), "", T);
    held.retain(|a| a.worker != WorkerId(0));
    ledger.worker_ready(WorkerId(2), DeviceId(0));
    for slot in 6..40 {
        ledger.add(rows(slot, 1), LeaveReason::Full);
        while let Some(a) = ledger.dispatch(T) {
            held.push_back(a);
        }
        let first = held.pop_front().expect("there is always work");
        assert!(ledger.done(first.worker, first.batch).is_some());
    }
    assert_eq!(ledger.waiting.suspects().count(), 0, "both have had a worker for themselves");
}

#[test]
fn a_suspect_goes_to_a_worker_that_has_run_nothing_on_another_device() {
    let mut ledger = Ledger::new(1);
    (0..2).for_each(|d| ledger.expect_device(DeviceId(d)));
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.worker_ready(WorkerId(1), DeviceId(1));
    ledger.add(rows(0, 1), LeaveReason::Full);
    ledger.add(rows(1, 1), LeaveReason::Full);
    for _ in 0..2 {
        let a = ledger.dispatch(T).unwrap();
        ledger.done(a.worker, a.batch).unwrap();
    }
    let a = (0..2).map(|w| ledger.workers[&WorkerId(w)].has_run).collect::<Vec<_>>();
    assert_eq!(a, [true, false], "the first one was free each time");
    ledger.add(rows(2, 1), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    assert_eq!(a.worker, WorkerId(0));
    let _ = ledger.worker_lost(WorkerId(0), &WorkerExit::Signal(11), "", T);
    let b = ledger.dispatch(T).unwrap();
    assert_eq!((b.worker, b.rows), (WorkerId(1), a.rows), "one that has run nothing, on another device");
}

#[test]
fn where_no_worker_is_fresh_and_none_is_coming_one_is_replaced() {
    let mut ledger = Ledger::new(1);
    (0..2).for_each(|d| ledger.expect_device(DeviceId(d)));
    for w in 0..2 {
        ledger.worker_ready(WorkerId(w), DeviceId(w as u16));
        ledger.add(rows(w, 1), LeaveReason::Full);
        let a = ledger.dispatch(T).unwrap();
        assert_eq!(a.worker, WorkerId(w));
        if w == 0 {
            ledger.add(rows(7, 1), LeaveReason::Full); // Keeps the first one busy.
            assert_eq!(ledger.dispatch(T).unwrap().worker, WorkerId(0));
        }
        ledger.done(a.worker, a.batch).unwrap();
    }
    let _ = ledger.worker_lost(WorkerId(0), &WorkerExit::Signal(11), "", T);
    // The worker that died is to be replaced, which is waited for, but not for ever.
    assert_eq!((ledger.dispatch(T), ledger.next_to_replace()), (None, None));
    let later = ledger.next_due(T).unwrap();
    assert_eq!((ledger.dispatch(later), ledger.next_to_replace()), (None, Some(WorkerId(1))));
    assert!(ledger.is_draining(WorkerId(1)));
    let _ = ledger.worker_lost(WorkerId(1), &WorkerExit::Clean, "", T);
    ledger.worker_ready(WorkerId(2), DeviceId(0));
    assert_eq!(ledger.dispatch(later), None, "it is to run on the other device");
    ledger.worker_ready(WorkerId(3), DeviceId(1));
    assert_eq!(ledger.dispatch(later).unwrap().worker, WorkerId(3));
}

#[test]
fn what_every_device_refuses_fails_whether_or_not_anything_ever_succeeds() {
    let mut ledger = Ledger::new(1);
    (0..4).for_each(|slot| ledger.add(rows(slot, 1), LeaveReason::Full));
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.worker_ready(WorkerId(1), DeviceId(1));
    let mut failed = 0;
    while let Some(a) = ledger.dispatch(T) {
        let outcome = ledger.fault(a.worker, a.batch, RunErrorKind::Model, "no".into(), T).unwrap();
        failed += usize::from(matches!(outcome, FailedBatchOutcome::Failed(_)));
    }
    assert_eq!((failed, ledger.n_batches()), (4, 0));
}

#[test]
fn what_is_refused_before_anything_succeeded_fails_with_the_first_success_there() {
    let mut ledger = Ledger::new(1);
    ledger.expect_device(DeviceId(1));
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    (0..2).for_each(|slot| ledger.add(rows(slot, 1), LeaveReason::Full));
    let (first, second) = (ledger.dispatch(T).unwrap(), ledger.dispatch(T).unwrap());
    let outcome = ledger.fault(WorkerId(0), first.batch, RunErrorKind::Model, "no".into(), T);
    assert!(matches!(outcome, Some(FailedBatchOutcome::Requeued(_))), "another device is to come");
    let _ = ledger.done(WorkerId(0), second.batch);
    assert_eq!(ledger.next_confirmed().map(|row| row.kind), Some(FailureKind::Model));
    assert_eq!(ledger.n_batches(), 0);
}

/// Two workers of one device that have run something, and an item that killed a third one and then found no memory: it must run alone,
/// and needs a fresh worker.
fn an_item_that_needs_a_fresh_worker_and_must_run_alone() -> Ledger {
    let mut ledger = Ledger::new(1);
    (0..2).for_each(|w| ledger.worker_ready(WorkerId(w), DeviceId(0)));
    (0..2).for_each(|slot| ledger.add(rows(slot, 1), LeaveReason::Full));
    for w in 0..2 {
        let a = ledger.dispatch(T).unwrap();
        assert_eq!(a.worker, WorkerId(w));
    }
    let held: Vec<_> = ledger.workers.iter().map(|(w, state)| (*w, state.holds[0])).collect();
    held.into_iter().for_each(|(w, batch)| assert!(ledger.done(w, batch).is_some()));
    ledger.add(rows(2, 1), LeaveReason::Full);
    assert_eq!(ledger.dispatch(T).unwrap().worker, WorkerId(0));
    let _ = ledger.worker_lost(WorkerId(0), &WorkerExit::Signal(11), "", T);
    ledger.worker_ready(WorkerId(2), DeviceId(0));
    let a = ledger.dispatch(T).unwrap();
    assert_eq!((a.worker, a.rows), (WorkerId(2), rows(2, 1)));
    let again = ledger.fault(a.worker, a.batch, RunErrorKind::OutOfMemory, String::new(), T).unwrap();
    assert!(matches!(again, FailedBatchOutcome::Requeued(_)));
    ledger
}

#[test]
fn no_worker_is_replaced_for_an_item_that_could_not_run_yet_and_one_is_as_soon_as_it_could() {
    let mut ledger = an_item_that_needs_a_fresh_worker_and_must_run_alone();
    assert_eq!((ledger.dispatch(T), ledger.next_to_replace()), (None, None), "it is not due");
    let mut now = ledger.next_due(T).unwrap();
    ledger.add(rows(3, 1), LeaveReason::Full);
    for slot in 4..50 {
        let a = ledger.dispatch(now).unwrap();
        assert_eq!((ledger.dispatch(now), ledger.next_to_replace()), (None, None), "something runs");
        ledger.add(rows(slot, 1), LeaveReason::Full);
        now += Duration::from_secs(1);
        ledger.done(a.worker, a.batch).unwrap();
    }
    let last = ledger.dispatch(now).unwrap();
    ledger.done(last.worker, last.batch).unwrap();
    assert_eq!(ledger.dispatch(now), None);
    let replaced = ledger.next_to_replace().expect("nothing else is left to do");
    let _ = ledger.worker_lost(replaced, &WorkerExit::Clean, "", T);
    assert_eq!((ledger.dispatch(now), ledger.next_to_replace()), (None, None), "one is enough");
    ledger.worker_ready(WorkerId(3), DeviceId(0));
    let a = ledger.dispatch(now).unwrap();
    assert_eq!((a.worker, a.rows), (WorkerId(3), rows(2, 1)));
}

#[test]
fn no_worker_is_waited_for_once_the_successor_of_a_replaced_worker_is_there() {
    for successor_comes_first in [true, false] {
        let mut ledger = an_item_that_needs_a_fresh_worker_and_must_run_alone();
        let now = ledger.next_due(T).unwrap();
        assert_eq!(ledger.dispatch(now), None);
        let replaced = ledger.next_to_replace().unwrap();
        // It was being recycled as well, so its successor has been loading for a while.
        if successor_comes_first {
            ledger.worker_ready(WorkerId(3), DeviceId(0));
            assert!(ledger.drain_worker(replaced, Handover::SuccessorFirst));
            let _ = ledger.worker_lost(replaced, &WorkerExit::Clean, "", T);
        } else {
            let _ = ledger.worker_lost(replaced, &WorkerExit::Clean, "", T);
            assert!(ledger.history.expects_workers());
            ledger.worker_ready(WorkerId(3), DeviceId(0));
        }
        assert!(!ledger.history.expects_workers(), "first: {successor_comes_first}");
    }
}
