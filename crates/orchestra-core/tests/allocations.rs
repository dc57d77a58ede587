//! What choosing the next worker allocates: nothing, as long as no row is under suspicion. Alone in its file, because it counts the
//! allocations of its thread.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../../orchestra-fuzz-checks/src/memory.rs"]
#[allow(dead_code, reason = "each test asks for one number")]
mod memory;

use std::time::Duration;

use orchestra_core::batching::LeaveReason;
use orchestra_core::ledger::{Assignment, Ledger, Rows};
use orchestra_core::{DeviceId, SlotId, WorkerId};

const N_WORKERS: u32 = 6;
const T: Duration = Duration::ZERO;

/// What this allocates, and what it gives.
fn counted<R>(run: impl FnOnce() -> R) -> (usize, R) {
    let (result, taken) = memory::measured(run);
    (taken.calls, result)
}

fn add(ledger: &mut Ledger, n: usize) {
    for slot in 0..n {
        let slot = SlotId(u32::try_from(slot).unwrap());
        ledger.add(Rows { slot, first: 0, count: 8 }, LeaveReason::Full);
    }
}

/// Sends all that can be sent, and is then told that there is nothing more; gives what was sent.
fn send(ledger: &mut Ledger, sent: &mut [Option<Assignment>]) -> usize {
    let mut n = 0;
    while let Some(a) = ledger.dispatch(T) {
        sent[n] = Some(a);
        n += 1;
    }
    n
}

#[test]
fn batches_are_sent_and_idle_workers_counted_without_an_allocation_where_no_row_is_suspect() {
    for streams in 1..=3 {
        check_allocations(streams, 1);
        check_allocations(streams, 2);
    }
}

fn check_allocations(streams: usize, ready: usize) {
    let mut ledger = Ledger::new(8).with_streams(streams).with_ready(ready);
    for w in 0..N_WORKERS {
        ledger.worker_ready(WorkerId(w), DeviceId(u16::try_from(w % 2).unwrap()));
    }
    let all = N_WORKERS as usize * (streams + ready);
    let mut sent = vec![None; all];
    for round in 0..3 {
        assert_eq!(counted(|| ledger.dispatch(T)), (0, None), "nothing waits");
        assert_eq!(counted(|| ledger.idle_workers(T)), (0, N_WORKERS as usize * streams));
        add(&mut ledger, all + 1);
        let (n_allocations, n) = counted(|| send(&mut ledger, &mut sent));
        assert_eq!(n, all);
        assert!(round == 0 || n_allocations == 0, "{n_allocations} allocations for {n} batches");
        assert_eq!(counted(|| ledger.dispatch(T)), (0, None), "no worker is free");
        assert_eq!(counted(|| ledger.idle_workers(T)), (0, 0));
        sent.iter().flatten().for_each(|a| assert!(ledger.done(a.worker, a.batch).is_some()));
        let last = ledger.dispatch(T).unwrap();
        assert!(ledger.done(last.worker, last.batch).is_some());
    }
    assert!(counted(|| vec![0u8; 9]).0 > 0, "allocations are counted");
}
