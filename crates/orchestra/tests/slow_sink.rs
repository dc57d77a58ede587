//! Results that cannot be written as fast as they come: what is in flight stays within the window of the plan, however long the disk takes,
//! and every credit comes home. Says nothing about speed.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::{Workplace, all_copied, audited, bounded, copying, hurried, until};
use orchestra::Snapshot;
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::hold::Held;
use tokio::sync::watch::Receiver;

/// Far more than may be in flight.
const ITEMS: u64 = 8_000;
/// How often the disk stops.
const STOPS: usize = 2;

/// The next one that is published.
async fn next(snapshots: &mut Receiver<Snapshot>) -> Snapshot {
    snapshots.borrow_and_update();
    bounded("there is a snapshot", snapshots.changed()).await.unwrap();
    snapshots.borrow().clone()
}

#[test]
fn while_nothing_is_written_the_window_fills_and_no_further_and_then_the_run_goes_on() {
    audited(async {
        let place = copying(ITEMS, 8, 1, "workers = 2\nspare = 0");
        let plan = place.plan();
        let window = plan.pipelines[0].window as u64;
        let slots: u64 = plan.batch_stages().map(|(_, infer)| infer.layout.slots as u64).sum();
        assert!(window * (STOPS as u64 + 1) < ITEMS, "{ITEMS} items are too few for a window of {window}");
        // So slow that the run cannot come to its end between two stops.
        let run = place.start_with(hurried(place.faulty_workers(&[(FAULT, "slow:5")]))).await;
        let (mut snapshots, remains) = (run.snapshots(), run.remains());
        let ended = tokio::spawn(run.wait());
        for stop in 0..STOPS {
            until("results are written", || place.n_lines("all.jsonl") > stop * 300).await;
            let disk = Held::thread("committer").unwrap();
            // What was published last may be from before.
            next(&mut snapshots).await;
            let mut full = next(&mut snapshots).await;
            while full.in_flight < window {
                full = next(&mut snapshots).await;
                assert!(full.in_flight <= window, "{} in flight", full.in_flight);
                assert!(remains.slots_in_use() <= slots);
            }
            // The models are through with all of it, and their memory is free again: it does not wait for the disk.
            until("the models are through", || remains.slots_in_use() == 0).await;
            let lines = place.n_lines("all.jsonl");
            next(&mut snapshots).await;
            let later = next(&mut snapshots).await;
            assert_eq!(place.n_lines("all.jsonl"), lines, "the disk did not stand still");
            assert_eq!((later.done, later.in_flight), (full.done, full.in_flight));
            drop(disk);
        }
        let outcome = bounded("the run ends", ended).await.unwrap();
        Workplace::must_end_with(&outcome, 0);
        all_copied(&place, ITEMS, "slow sink");
        assert!(outcome.report.loaders.seconds_waiting_for_sinks > 0.0);
        assert_eq!((remains.slots_in_use(), remains.slots_lost()), (0, 0));
    });
}
