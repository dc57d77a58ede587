//! Single decisions of the ledger, by name. What holds whatever happens: `tests/it/interleavings.rs`.

use super::*;
use crate::ids::SlotId;

fn rows(slot: u32, count: usize) -> Rows {
    Rows { slot: SlotId(slot), first: 0, count }
}

const T: Duration = Duration::ZERO;

#[test]
fn what_ran_when_a_device_broke_is_suspected_beside_the_batch_that_was_reported() {
    let mut ledger = Ledger::new(1).with_streams(2);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    (0..3).for_each(|slot| ledger.add(rows(slot, 1), LeaveReason::Full));
    let sent: Vec<_> = std::iter::from_fn(|| ledger.dispatch(T)).collect();
    let _ = ledger.fault(WorkerId(0), sent[1].batch, RunErrorKind::Device, "sick".into(), T);
    let lost = ledger.worker_lost(WorkerId(0), &WorkerExit::Code(71), "", T);
    assert_eq!(lost.held, [sent[0].batch, sent[2].batch]);
    assert_eq!(ledger.history.deaths_in_a_row(DeviceId(0)), 1, "it is one death");
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    let clean = ledger.dispatch(T).unwrap();
    assert_eq!((clean.rows, clean.attempt), (sent[2].rows, 1));
    assert_eq!(ledger.dispatch(T), None, "the suspects wait until it holds nothing");
    assert!(ledger.done(WorkerId(1), clean.batch).is_some());
    for expected in [sent[1].rows, sent[0].rows] {
        let suspect = ledger.dispatch(T).unwrap();
        assert_eq!((suspect.rows, suspect.attempt), (expected, 2));
        assert_eq!(ledger.dispatch(T), None, "nothing runs beside a suspect");
        assert!(ledger.done(WorkerId(1), suspect.batch).is_some());
    }
}

#[test]
fn a_worker_that_dies_for_lack_of_memory_counts_as_one_that_says_so() {
    const WORDS: &str = "terminate called after throwing an instance of 'std::bad_alloc'";
    let died = WorkerExit::Signal(6);
    let mut ledger = Ledger::new(4);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 4), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let lost = ledger.worker_lost(WorkerId(0), &died, WORDS, T);
    assert_eq!(lost.outcomes, [FailedBatchOutcome::Split(a.batch)]);
    assert!(lost.bisecting, "its place does not pay for it");
    assert_eq!(ledger.ceiling(DeviceId(0)), 2);

    let mut ledger = Ledger::new(1);
    ledger.add(rows(0, 1), LeaveReason::Full);
    let (mut now, mut workers) = (T, 0..);
    let end = loop {
        let worker = WorkerId(workers.next().unwrap());
        ledger.worker_ready(worker, DeviceId(0));
        ledger.dispatch(now).expect("it is due");
        match ledger.worker_lost(worker, &died, WORDS, now).outcomes.pop().unwrap() {
            FailedBatchOutcome::Failed(f) => break f,
            FailedBatchOutcome::Requeued(_) => now = ledger.next_due(now).unwrap(),
            other => panic!("a single row is failed or waits, and is not {other:?}"),
        }
    };
    assert_eq!(end.kind, FailureKind::OutOfMemory);
    assert!(end.error.contains(WORDS), "{}", end.error);
}

#[test]
fn quick_batches_grow_until_one_has_no_result() {
    let ms = Duration::from_millis(1);
    let mut ledger = Ledger::new(64).with_first_batch(4);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 64), LeaveReason::Full);
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let a = ledger.dispatch(T).unwrap();
        sizes.push(a.rows.count);
        let done = ledger.done(a.worker, a.batch).unwrap();
        ledger.took(done.device, done.rows.count, ms, 0);
    }
    assert_eq!(sizes, [4, 8, 16]);
    let a = ledger.dispatch(T).unwrap();
    assert_eq!(a.rows.count, 32);
    let _ = ledger.worker_lost(a.worker, &WorkerExit::Signal(11), "", T);
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    let next = ledger.dispatch(T).unwrap();
    assert!(next.rows.count <= 4, "what follows is small again, a suspect or not");
    assert_eq!(ledger.ceiling(DeviceId(0)), 64, "that is a matter of memory");
}

#[test]
fn while_a_batch_runs_alone_nothing_else_is_sent() {
    let mut ledger = Ledger::new(1);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    ledger.add(rows(0, 1), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let _ = ledger.fault(a.worker, a.batch, RunErrorKind::OutOfMemory, String::new(), T);
    let later = ledger.next_due(T).unwrap();
    let alone = ledger.dispatch(later).unwrap();
    ledger.add(rows(1, 1), LeaveReason::Full);
    assert_eq!(ledger.dispatch(later), None);
    let _ = ledger.done(alone.worker, alone.batch);
    assert!(ledger.dispatch(later).is_some());
}

#[test]
fn an_idle_worker_is_preferred_and_one_that_just_failed_is_not() {
    let mut ledger = Ledger::new(2);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.worker_ready(WorkerId(1), DeviceId(1));
    for s in 0..3 {
        ledger.add(rows(s, 2), LeaveReason::Full);
    }
    let a = ledger.dispatch(T).unwrap();
    let b = ledger.dispatch(T).unwrap();
    assert_eq!((a.worker, b.worker), (WorkerId(0), WorkerId(1)));
    let _ = ledger.fault(WorkerId(0), a.batch, RunErrorKind::Device, String::new(), T);
    let _ = ledger.done(WorkerId(1), b.batch);
    assert_eq!(ledger.dispatch(T).unwrap().worker, WorkerId(1));
}

#[test]
fn a_row_that_the_code_names_fails_at_once_and_the_others_run_again() {
    let mut ledger = Ledger::new(8);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 8), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let outcome = ledger.fault(WorkerId(0), a.batch, RunErrorKind::Row(5), "row 5".into(), T);
    assert_eq!(outcome, Some(FailedBatchOutcome::Split(a.batch)));
    let failed = ledger.next_confirmed().unwrap();
    assert_eq!((failed.rows, failed.kind), (Rows { first: 5, ..rows(0, 1) }, FailureKind::Model));
    let mut others = Vec::new();
    while let Some(a) = ledger.dispatch(T) {
        others.push((a.rows.first, a.rows.count));
        ledger.done(a.worker, a.batch).unwrap();
    }
    assert_eq!(others, [(0, 5), (6, 2)]);
    assert_eq!(ledger.next_confirmed(), None);
}

#[test]
fn a_row_that_the_batch_does_not_have_speaks_against_no_item() {
    let mut ledger = Ledger::new(4);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 4), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let outcome = ledger.fault(WorkerId(0), a.batch, RunErrorKind::Row(4), "row 4".into(), T);
    assert_eq!((outcome, ledger.next_confirmed()), (Some(FailedBatchOutcome::Split(a.batch)), None));
}

#[test]
fn items_that_change_each_other_stop_all_and_none_is_to_blame() {
    let mut ledger = Ledger::new(4);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 4), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let outcome = ledger.fault(a.worker, a.batch, RunErrorKind::Mixed, "mixed".into(), T).unwrap();
    let FailedBatchOutcome::Stop { waits, why, kind: RunErrorKind::Mixed } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((waits != a.batch, &*why, ledger.n_batches()), (true, "mixed", 1));
    assert_eq!((ledger.dispatch(T), ledger.next_confirmed()), (None, None));
}

#[test]
fn what_has_no_rows_speaks_against_no_item_and_each_runs_by_itself() {
    let mut ledger = Ledger::new(4);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 4), LeaveReason::Full);
    ledger.add(rows(1, 3), LeaveReason::Full);
    let mut alone = Vec::new();
    while let Some(a) = ledger.dispatch(T) {
        if a.rows.count > 1 {
            let outcome = ledger.fault(WorkerId(0), a.batch, RunErrorKind::Shape, "no rows".into(), T);
            assert_eq!(outcome, Some(FailedBatchOutcome::Split(a.batch)));
            continue;
        }
        alone.push((a.rows.slot.0, a.rows.first));
        ledger.done(a.worker, a.batch).unwrap();
    }
    assert_eq!(alone, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]);
    assert_eq!((ledger.next_confirmed(), ledger.n_batches()), (None, 0));
}

#[test]
fn what_is_no_row_of_a_single_item_stops_everything_and_fails_nothing() {
    let mut ledger = Ledger::new(1);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 1), LeaveReason::Full);
    ledger.add(rows(1, 1), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let outcome = ledger.fault(WorkerId(0), a.batch, RunErrorKind::Shape, "no rows".into(), T).unwrap();
    assert!(matches!(outcome, FailedBatchOutcome::Stop { why, .. } if why == "no rows"));
    assert_eq!((ledger.dispatch(T), ledger.next_confirmed()), (None, None));
    assert_eq!(ledger.n_batches(), 2, "both wait for another start");
}
