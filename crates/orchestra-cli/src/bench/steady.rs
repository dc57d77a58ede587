//! The rate of a run in its steady state, from how far it was at several moments. Arithmetic only.

use std::time::Duration;

use orchestra::Plan;

use crate::lab::RunPoint;

/// A steady state that is shorter says little.
const LEAST_STEADY: Duration = Duration::from_secs(1);

/// Items that loaders may have prepared before the first worker was ready: one batch in each slot, and what is in their hands.
pub fn prepared_before(plan: &Plan) -> u64 {
    let in_slots: usize = plan.batch_stages().map(|(_, batch)| batch.max_batch * batch.layout.slots).sum();
    (in_slots + plan.loader_threads) as u64
}

/// The rate between the first moment when `prepared` items are through (all that was done before the first worker was ready is among
/// them) and as much is in flight as there usually is, and the last moment when there are still items to hand out: both ends have the same
/// fill. `None` where that is too short.
pub fn steady_rate(points: &[RunPoint], prepared: u64, total: u64) -> Option<f64> {
    let to = *points.iter().rev().find(|p| p.handed < total)?;
    let fill = |p: &RunPoint| p.handed - p.finished;
    let at_work = || points.iter().filter(|p| p.finished >= prepared && p.at <= to.at);
    let mut fills: Vec<u64> = at_work().map(fill).collect();
    fills.sort_unstable();
    let usual = *fills.get(fills.len() / 2)?;
    let from = *at_work().find(|p| fill(p) >= usual - usual / 8)?;
    let time = to.at.checked_sub(from.at).filter(|time| *time >= LEAST_STEADY)?;
    let finished = to.finished.checked_sub(from.finished).filter(|n| *n > 0)?;
    Some(finished as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(rate: u64, total: u64, window: u64) -> Vec<RunPoint> {
        let at = |tenths: u64| {
            // Half a second without anything, then `window` items at once, then an even rate.
            let finished =
                (tenths.saturating_sub(5) * rate / 10 + if tenths > 5 { window } else { 0 }).min(total);
            let handed = (finished + window).min(total);
            RunPoint { at: Duration::from_millis(tenths * 100), finished, handed }
        };
        (0..60).map(at).collect()
    }

    #[test]
    fn neither_the_start_nor_the_drain_counts_in_a_steady_state() {
        let rate = steady_rate(&points(1000, 4000, 300), 300, 4000).unwrap();
        assert!((rate - 1000.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn what_is_taken_into_flight_while_batches_grow_does_not_count() {
        let mut points = points(1000, 9000, 300);
        // For a second after its first results it takes in more than it gives out: less is in flight at first.
        for (tenth, point) in (0_u64..).zip(&mut points[6..16]) {
            point.finished += (10 - tenth) * 25;
        }
        let rate = steady_rate(&points, 10, 9000).unwrap();
        assert!((rate - 1000.0).abs() < 10.0, "{rate}");
    }

    #[test]
    fn a_run_that_is_too_short_has_no_steady_state() {
        assert_eq!(steady_rate(&points(1000, 900, 300), 300, 900), None);
        assert_eq!(steady_rate(&points(1000, 4000, 5000), 5000, 4000), None);
        assert_eq!(steady_rate(&[], 1, 1), None);
    }
}
