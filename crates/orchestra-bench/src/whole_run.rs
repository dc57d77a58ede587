//! The run part: a whole run over the sample, exactly as `orchestra run` does it. It looks from outside, and changes nothing inside.

use std::sync::Arc;
use std::time::Duration;

use orchestra_plan::{Plan, StageKind};
use orchestra_runtime::{RunOptions, Snapshot};
use orchestra_trial::{Cancel, Threads, TrialError};

use crate::cpu_time::{Whose, used};
use crate::error::BenchError;
use crate::figures::{Measured, RunFigures};
use crate::limit::divide;
use crate::own_time::OwnTime;

/// A steady state shorter than this is none.
const LEAST_STEADY: Duration = Duration::from_millis(1000);

/// Runs `plan` from start to end, and tells once that it has started: that its first items are finished. What lies in its output folder
/// is discarded first.
pub fn measure(
    plan: &Arc<Plan>,
    options: RunOptions,
    (cores, time): (usize, &OwnTime),
    cancel: &Cancel,
    started: &mut dyn FnMut(),
) -> Result<RunFigures, BenchError> {
    let prepared = orchestra_runtime::prepare(Arc::clone(plan), true).map_err(TrialError::from)?;
    let threads = Threads::start(plan)?;
    let (total, before) = (prepared.total, cpu_of_run());
    let (began, idle_before) = (time.now(), time.idle(cores));
    let mut points: Vec<Point> = Vec::new();
    let look = &mut |now: &Snapshot| {
        let point = Point::of(now, time.now().saturating_sub(began), time.idle(cores));
        if point.finished > 0 && points.last().is_none_or(|last| last.finished == 0) {
            started();
        }
        points.push(point);
    };
    let outcome = threads.run(prepared, options, cancel, look)?.outcome;
    let elapsed = time.now().saturating_sub(began);
    let idle = idle_before.zip(time.idle(cores)).map(|(before, after)| after.saturating_sub(before));
    drop(threads);
    if !matches!(outcome.exit_code, 0 | 65) {
        return Err(BenchError::Run { exit_code: outcome.exit_code, problems: outcome.problems });
    }
    let report = outcome.report;
    let steady = steady(&points, prepared_before(plan), total);
    let cpu = cpu_of_run().saturating_sub(before);
    let all = elapsed.as_secs_f64() * cores as f64;
    let mut figures = RunFigures {
        items: report.items.read,
        failed: report.items.failed,
        rate: 0.0,
        measured: Measured::Whole,
        elapsed,
        starting: Duration::try_from_secs_f64(report.seconds_starting).unwrap_or_default(),
        cpu,
        idle_share: idle.map(|idle| divide(idle.as_secs_f64(), all).min(1.0)),
        others_share: idle.map(|idle| (1.0 - divide((idle + cpu).as_secs_f64(), all)).max(0.0)),
        bottleneck: report.bottleneck,
    };
    match steady {
        Some(steady) => {
            figures.rate = steady.rate();
            figures.measured = Measured::Steady;
            figures.idle_share = steady.idle_share(cores);
        }
        None => figures.rate = figures.whole_rate(),
    }
    Ok(figures)
}

/// Items that loaders may have prepared before the first worker was ready: one batch in each slot, and what is in their hands.
fn prepared_before(plan: &Plan) -> u64 {
    let in_slots = plan.stages.iter().map(|stage| match &stage.kind {
        StageKind::Infer(infer) => infer.max_batch * infer.layout.slots,
        _ => 0,
    });
    (in_slots.sum::<usize>() + plan.loader_threads) as u64
}

/// Workers are waited for before a run ends, so they are among the children then.
fn cpu_of_run() -> Duration {
    used(Whose::Process) + used(Whose::Children)
}

/// How far the run was at some moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    at: Duration,
    finished: u64,
    handed: u64,
    /// Of all cores, from an arbitrary start.
    idle: Option<Duration>,
}

impl Point {
    fn of(snapshot: &Snapshot, at: Duration, idle: Option<Duration>) -> Self {
        let finished = snapshot.done + snapshot.failed;
        Self { at, finished, handed: finished + snapshot.in_flight, idle }
    }
}

/// A stretch of a run with the same fill at both ends.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Steady {
    from: Point,
    to: Point,
}

impl Steady {
    fn seconds(&self) -> f64 {
        self.to.at.saturating_sub(self.from.at).as_secs_f64()
    }

    fn rate(&self) -> f64 {
        divide(self.to.finished.saturating_sub(self.from.finished) as f64, self.seconds())
    }

    fn idle_share(&self, cores: usize) -> Option<f64> {
        let idle = self.to.idle?.saturating_sub(self.from.idle?);
        Some(divide(idle.as_secs_f64(), self.seconds() * cores as f64).min(1.0))
    }
}

/// The time between the first moment when `prepared` items are through (all that was done before the first worker was ready is among
/// them) and as much is in flight as there usually is, and the last moment when there are still items to hand out. `None` where that
/// is too short.
fn steady(points: &[Point], prepared: u64, total: u64) -> Option<Steady> {
    let to = *points.iter().rev().find(|p| p.handed < total)?;
    let fill = |p: &Point| p.handed - p.finished;
    let at_work = || points.iter().filter(|p| p.finished >= prepared && p.at <= to.at);
    let mut fills: Vec<u64> = at_work().map(fill).collect();
    fills.sort_unstable();
    let usual = *fills.get(fills.len() / 2)?;
    let from = *at_work().find(|p| fill(p) >= usual - usual / 8)?;
    to.at.checked_sub(from.at).filter(|d| *d >= LEAST_STEADY)?;
    (to.finished > from.finished).then_some(Steady { from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(rate: u64, total: u64, window: u64) -> Vec<Point> {
        let at = |tenths: u64| {
            // Half a second without anything, then `window` items at once, then an even rate.
            let finished =
                (tenths.saturating_sub(5) * rate / 10 + if tenths > 5 { window } else { 0 }).min(total);
            let handed = (finished + window).min(total);
            let idle = Some(Duration::from_millis(tenths * 30));
            Point { at: Duration::from_millis(tenths * 100), finished, handed, idle }
        };
        (0..60).map(at).collect()
    }

    #[test]
    fn neither_the_start_nor_the_drain_counts_in_a_steady_state() {
        let steady = steady(&points(1000, 4000, 300), 300, 4000).unwrap();
        assert!((steady.rate() - 1000.0).abs() < 1e-6, "{}", steady.rate());
        assert!((steady.idle_share(2).unwrap() - 0.15).abs() < 1e-6);
    }

    #[test]
    fn what_is_taken_into_flight_while_batches_grow_does_not_count() {
        let mut points = points(1000, 9000, 300);
        // For a second after its first results it takes in more than it gives out: less is in flight at first.
        for (tenth, point) in (0_u64..).zip(&mut points[6..16]) {
            point.finished += (10 - tenth) * 25;
        }
        let steady = steady(&points, 10, 9000).unwrap();
        assert!((steady.rate() - 1000.0).abs() < 10.0, "{}", steady.rate());
    }

    #[test]
    fn a_run_that_is_too_short_has_no_steady_state() {
        assert_eq!(steady(&points(1000, 900, 300), 300, 900), None);
        assert_eq!(steady(&points(1000, 4000, 5000), 5000, 4000), None);
        assert_eq!(steady(&[], 1, 1), None);
    }
}
