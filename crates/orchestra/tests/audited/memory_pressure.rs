//! A device that runs out of memory gets smaller batches of that model, and larger ones again when there is room: nothing is lost and
//! no worker is restarted. Says nothing about real allocations; what counts as running out is the worker's business.

use std::fs;

use crate::common::{Workplace, all_copied, audited, copying, hurried, restarts};
use orchestra::RunOutcome;
use orchestra_testkit::faulty::{FAULT, FAULT_LOG};

const BATCH: usize = 8;

/// A run, as its only worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    rows: usize,
    fits: bool,
}

/// Runs `n` items on one worker with this fault; gives what the worker was asked to run, in order.
async fn runs_of(fault: &str, n: u64) -> (RunOutcome, Vec<Seen>) {
    let mut place = copying(n, BATCH, 1, "workers = 1");
    // Only full batches leave, however slow the loaders are, but for the last one.
    place.set("wait = \"5ms\"", "wait = \"1h\"");
    let log = place.path("log");
    let workers = place.faulty_workers(&[(FAULT, fault), (FAULT_LOG, log.to_str().unwrap())]);
    let outcome = place.run_with(hurried(workers)).await;
    Workplace::must_end_with(&outcome, 0);
    all_copied(&place, n, fault);
    assert_eq!(restarts(&outcome), 0);
    let seen = fs::read_to_string(log).unwrap().lines().map(|line| seen(line).unwrap()).collect();
    (outcome, seen)
}

fn seen(line: &str) -> Option<Seen> {
    let mut words = line.split(' ').skip(1);
    let rows = words.next()?.parse().ok()?;
    let fits = match words.next()? {
        "ok" => true,
        "OutOfMemory" => false,
        _ => return None,
    };
    Some(Seen { rows, fits })
}

#[test]
fn after_memory_was_short_for_a_while_batches_grow_back_to_their_full_size() {
    audited(async {
        let (outcome, seen) = runs_of("oom-for:4", 900).await;
        let last_refused = seen.iter().rposition(|s| !s.fits).unwrap();
        assert_eq!(seen.iter().filter(|s| !s.fits).count(), 4, "{seen:?}");
        // Halved twice: three batches are on their way at a time, so the first to be refused were of the same size. Two more may have been
        // on their way when the last was.
        let on_their_way = seen[last_refused + 1..].iter().take(2).take_while(|s| s.rows > BATCH / 4).count();
        let lowest = last_refused + 1 + on_their_way;
        let afterwards = &seen[lowest..];
        assert!(afterwards[0].rows <= BATCH / 4, "{seen:?}");
        let full_again = afterwards.iter().position(|s| s.rows == BATCH).expect("a full batch again");
        let largest = |seen: &[Seen]| seen.iter().map(|s| s.rows).max().unwrap_or(0);
        // Slowly, one row at a time, and each size only after many of the one before.
        for size in BATCH / 4 + 1..=BATCH {
            let first = afterwards.iter().position(|s| s.rows == size).expect("no size is left out");
            assert!(largest(&afterwards[..first]) < size, "{size} rows came after more: {seen:?}");
            let before = afterwards[..first].iter().filter(|s| s.rows == size - 1).count();
            assert!(before >= 8, "{size} rows after only {before} batches of {}: {seen:?}", size - 1);
        }
        assert!(full_again > 8 * (BATCH - BATCH / 4), "{seen:?}");
        assert!(outcome.report.batches_by_reason["split"] > 0);
    });
}

#[test]
fn where_memory_stays_short_larger_batches_are_tried_seldom_and_no_item_fails() {
    audited(async {
        const FITS: usize = 3;
        let (_, seen) = runs_of(&format!("oom-above:{FITS}"), 900).await;
        assert!(seen.iter().all(|s| s.fits == (s.rows <= FITS)), "{seen:?}");
        let refused = seen.iter().filter(|s| !s.fits).count();
        assert!(refused >= 1 && refused * 8 <= seen.len(), "{refused} of {} were too large", seen.len());
        // Not once and for all at the lowest size either: what fits is used.
        assert!(seen.iter().filter(|s| s.rows == FITS).count() >= 16, "{seen:?}");
    });
}
