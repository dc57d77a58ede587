//! The rate of a run in its steady state, from how far it was at several moments. Arithmetic only.

use orchestra_launch::{Plan, RunStatus};

/// A steady state that is shorter says little.
const LEAST_STEADY_SECONDS: f64 = 1.0;

/// Items that loaders may have prepared before the first worker was ready: one batch in each slot, and what is in their hands.
pub fn prepared_before(plan: &Plan) -> u64 {
    let in_slots: usize = plan.batch_stages().map(|(_, batch)| batch.max_batch * batch.layout.slots).sum();
    (in_slots + plan.loader_threads) as u64
}

/// The rate between the first moment when `prepared` items are through (all that was done before the first worker was ready is among
/// them) and as much is in flight as there usually is, and the last moment when there are still items to hand out: both ends have the same
/// fill. `None` where that is too short.
pub fn steady_rate(moments: &[RunStatus], prepared: u64, total: u64) -> Option<f64> {
    let to = moments.iter().rev().find(|m| m.items.read + m.items.in_flight < total)?;
    let at_work = || moments.iter().filter(|m| m.items.read >= prepared && m.seconds <= to.seconds);
    let mut fills: Vec<u64> = at_work().map(|m| m.items.in_flight).collect();
    fills.sort_unstable();
    let usual = *fills.get(fills.len() / 2)?;
    let from = at_work().find(|m| m.items.in_flight >= usual - usual / 8)?;
    let seconds = Some(to.seconds - from.seconds).filter(|seconds| *seconds >= LEAST_STEADY_SECONDS)?;
    let finished = to.items.read.checked_sub(from.items.read).filter(|n| *n > 0)?;
    Some(finished as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use orchestra_launch::ItemCounts;

    use super::*;

    fn moments(rate: u64, total: u64, window: u64) -> Vec<RunStatus> {
        let at = |tenths: u64| {
            // Half a second without anything, then `window` items at once, then an even rate.
            let read =
                (tenths.saturating_sub(5) * rate / 10 + if tenths > 5 { window } else { 0 }).min(total);
            let items = ItemCounts { read, in_flight: window.min(total - read), ..ItemCounts::default() };
            RunStatus { seconds: tenths as f64 / 10.0, items, ..RunStatus::default() }
        };
        (0..60).map(at).collect()
    }

    #[test]
    fn neither_the_start_nor_the_drain_counts_in_a_steady_state() {
        let rate = steady_rate(&moments(1000, 4000, 300), 300, 4000).unwrap();
        assert!((rate - 1000.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn what_is_taken_into_flight_while_batches_grow_does_not_count() {
        let mut moments = moments(1000, 9000, 300);
        // For a second after its first results it takes in more than it gives out: less is in flight at first.
        for (tenth, moment) in (0_u64..).zip(&mut moments[6..16]) {
            moment.items.read += (10 - tenth) * 25;
            moment.items.in_flight -= (10 - tenth) * 25;
        }
        let rate = steady_rate(&moments, 10, 9000).unwrap();
        assert!((rate - 1000.0).abs() < 10.0, "{rate}");
    }

    #[test]
    fn a_run_that_is_too_short_has_no_steady_state() {
        assert_eq!(steady_rate(&moments(1000, 900, 300), 300, 900), None);
        assert_eq!(steady_rate(&moments(1000, 4000, 5000), 5000, 4000), None);
        assert_eq!(steady_rate(&[], 1, 1), None);
    }
}
