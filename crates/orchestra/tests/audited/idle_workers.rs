//! Workers that are killed while they have nothing to do are replaced, and no batch notices. Says nothing about workers at work.

use std::fs;

use crate::common::{all_copied, audited, bounded, copying, hurried, until};
use orchestra_testkit::faulty::{FAULT, FAULT_ONCE};
use orchestra_testkit::striker::{Fault, strike};

const ITEMS: u64 = 60;
/// Items of a batch. The worker that hangs holds one batch, and two more that wait behind it.
const BATCH: u64 = 4;
const KILLS: u64 = 4;

#[test]
fn idle_workers_that_are_killed_are_replaced_and_no_batch_is_sent_again() {
    audited(async {
        // One worker hangs in its first batch, so the other one runs out of work before the run is over.
        let place = copying(ITEMS, BATCH as usize, 1, "workers = 2");
        let once = place.path("once");
        let workers =
            place.faulty_workers(&[(FAULT, "hang-on-batch:1"), (FAULT_ONCE, once.to_str().unwrap())]);
        let run = place.start_with(hurried(workers)).await;
        let snapshots = run.snapshots();
        let ended = tokio::spawn(run.wait());
        // Its last batch takes it no time: what stays as it is, is what the one that hangs holds.
        let (mut held, mut looks) = (0, 0);
        until("the other worker has nothing left to do", || {
            let snapshot = snapshots.borrow();
            let before = std::mem::replace(&mut held, snapshot.extent.known().unwrap() - snapshot.done);
            // A batch that left because a worker was idle may be smaller than others.
            let is_idle = (1..=3 * BATCH).contains(&held) && snapshot.devices[0].ready == 2;
            looks = if is_idle && held == before { looks + 1 } else { 0 };
            looks > 40
        })
        .await;
        let retries = snapshots.borrow().retries;
        let hanging: u32 = fs::read_to_string(&once).unwrap().parse().unwrap();
        for kill in 0..KILLS {
            until("there are two workers", || {
                let snapshot = snapshots.borrow();
                snapshot.devices[0].starts == 2 + kill && snapshot.devices[0].ready == 2
            })
            .await;
            let idle = place.workers().into_iter().find(|w| w.pid != hanging).unwrap();
            assert!(strike(std::process::id(), idle.pid, Fault::Kill));
        }
        until("the last one is replaced", || {
            let snapshot = snapshots.borrow();
            snapshot.devices[0].starts == 2 + KILLS && snapshot.devices[0].ready == 2
        })
        .await;
        assert_eq!(
            snapshots.borrow().retries,
            retries,
            "a batch was sent again, but none was with an idle worker"
        );
        assert!(strike(std::process::id(), hanging, Fault::Kill));
        let outcome = bounded("the run ends", ended).await.unwrap();
        assert_eq!(outcome.exit_code, 0, "{:?}", outcome.problems);
        all_copied(&place, ITEMS, "idle");
        // The one that hung need not be replaced: the other can do what it held.
        let replaced = outcome.report.devices[0].restarts;
        assert!((KILLS..=KILLS + 1).contains(&replaced), "{replaced} were replaced");
    });
}
