//! Results that cannot be written as fast as they come: what is in flight stays within the window of the plan, however long the disk takes,
//! and within `limits.memory` where records are large, and every credit comes home. Says nothing about speed.

use crate::common::{Workplace, all_copied, audited, bounded, copying, hurried, until};
use orchestra_launch::RunStatus;
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::hold::Held;
use tokio::sync::watch::Receiver;

/// Far more than may be in flight.
const ITEMS: u64 = 8_000;
/// How often the disk stops.
const STOPS: usize = 2;

/// The next one that is published.
async fn next(snapshots: &mut Receiver<RunStatus>) -> RunStatus {
    snapshots.borrow_and_update();
    bounded("there is a snapshot", snapshots.changed()).await.unwrap();
    snapshots.borrow().clone()
}

#[test]
fn while_nothing_is_written_the_window_fills_and_no_further_and_then_the_run_goes_on() {
    audited(async {
        let place = copying(ITEMS, 8, 1, "workers = 2");
        let plan = place.plan();
        let window = plan.pipelines[0].window as u64;
        let slots: u64 = plan.batch_stages().map(|(_, infer)| infer.layout.slots as u64).sum();
        assert!(window * (STOPS as u64 + 1) < ITEMS, "{ITEMS} items are too few for a window of {window}");
        // So slow that the run cannot come to its end between two stops.
        let run = place.start_with(hurried(place.faulty_workers(&[(FAULT, "slow:5")]))).await;
        let (mut snapshots, remains) = (run.snapshots(), run.observer());
        let ended = tokio::spawn(run.wait());
        for stop in 0..STOPS {
            until("results are written", || place.n_lines("all.jsonl") > stop * 300).await;
            let disk = Held::thread("committer").unwrap();
            // What was published last may be from before.
            next(&mut snapshots).await;
            let mut full = next(&mut snapshots).await;
            while full.items.in_flight < window {
                full = next(&mut snapshots).await;
                assert!(full.items.in_flight <= window, "{} in flight", full.items.in_flight);
                assert!(remains.slots_in_use() <= slots);
            }
            // The models are through with all of it, and their memory is free again: it does not wait for the disk.
            until("the models are through", || remains.slots_in_use() == 0).await;
            let lines = place.n_lines("all.jsonl");
            next(&mut snapshots).await;
            let later = next(&mut snapshots).await;
            assert_eq!(place.n_lines("all.jsonl"), lines, "the disk did not stand still");
            assert_eq!((later.items.done, later.items.in_flight), (full.items.done, full.items.in_flight));
            drop(disk);
        }
        let outcome = bounded("the run ends", ended).await.unwrap();
        Workplace::must_end_with(&outcome, 0);
        all_copied(&place, ITEMS, "slow sink");
        assert!(outcome.report.loaders.seconds_waiting_for_sinks > 0.0);
        assert_eq!((remains.slots_in_use(), remains.slots_lost()), (0, 0));
    });
}

/// Snapshots in a row that show the same, after which nothing moves any more.
const STILL: usize = 10;
const MEMORY: u64 = 256 << 20;

#[test]
fn while_nothing_is_written_large_records_fill_their_share_of_the_memory_and_no_more_and_then_the_run_goes_on()
 {
    // Of one sink, with an order, and of two: no model bounds what is on its way.
    for sinks in [&[""][..], &["ordered = true"], &["", ""]] {
        audited(async {
            let mut place = Workplace::with_pictures(ITEMS / 2);
            place.image("pixels", "scans", "size = [256, 256]\ncolor = \"gray\"\nscale = 1.0");
            for (n, more) in sinks.iter().enumerate() {
                place.sink(&format!("s{n}"), "pixels", more);
            }
            place.add(&format!("[limits]\nmemory = {MEMORY}\nloaders = 1"));
            let plan = place.plan();
            let (window, share) = (plan.pipelines[0].window as u64, plan.record_bytes());
            let run = place.start().await;
            let (mut snapshots, stop) = (run.snapshots(), run.stop_handle());
            let ended = tokio::spawn(run.wait());
            until("results are written", || place.n_lines("s0.jsonl") > 0).await;
            let disk = Held::thread("committer").unwrap();
            let files = (0..sinks.len())
                .map(|n| std::fs::metadata(place.out().join(format!("s{n}.jsonl"))).unwrap().len());
            let record = files.sum::<u64>() / place.n_lines("s0.jsonl") as u64;
            assert!(window * record > 2 * MEMORY, "records of {record} bytes tell nothing");
            let (mut still, mut full) = (0, next(&mut snapshots).await);
            while still < STILL || full.items.in_flight * record < share / 2 {
                let later = next(&mut snapshots).await;
                still = if later.items.in_flight == full.items.in_flight { still + 1 } else { 0 };
                full = later;
                assert!(
                    full.items.in_flight * record < MEMORY / 2,
                    "{sinks:?}: {} of {record} bytes wait",
                    full.items.in_flight
                );
            }
            println!(
                "{sinks:?}: {} records of {record} bytes wait, of a window of {window}",
                full.items.in_flight
            );
            let waited = place.n_lines("s0.jsonl") as u64 + full.items.in_flight;
            drop(disk);
            until("the run goes on", || place.n_lines("s0.jsonl") as u64 > waited).await;
            stop.interrupt();
            let outcome = bounded("the run ends", ended).await.unwrap();
            assert_eq!(outcome.report.items.failed, 0, "{:?}", outcome.report.items);
            assert_eq!(outcome.report.items.done, place.n_lines("s0.jsonl") as u64);
        });
    }
}
