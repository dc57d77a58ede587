//! Follows a run from its snapshots: rates, time left, what waits where. Turns counters into what the progress shows; draws nothing.

use std::collections::VecDeque;
use std::time::Duration;

use orchestra::Snapshot;

use crate::progress::{DeviceView, ProgressView, StageView};

/// Rates are means over this long.
const WINDOW: Duration = Duration::from_secs(5);

/// The last few seconds of a run.
#[derive(Debug, Default)]
pub struct Watch {
    seen: VecDeque<Snapshot>,
}

impl Watch {
    /// Takes a snapshot; gives what to show.
    pub fn look(&mut self, now: Snapshot) -> ProgressView {
        while self.seen.len() > 1 && self.seen[1].elapsed + WINDOW < now.elapsed {
            self.seen.pop_front();
        }
        let then = self.seen.front().cloned().unwrap_or_else(|| now.clone());
        let view = view(&then, &now);
        self.seen.push_back(now);
        view
    }
}

fn view(then: &Snapshot, now: &Snapshot) -> ProgressView {
    let seconds = now.elapsed.saturating_sub(then.elapsed).as_secs_f64();
    let rate = |before: u64, after: u64| {
        if seconds > 0.0 { after.saturating_sub(before) as f64 / seconds } else { 0.0 }
    };
    let finished = |s: &Snapshot| s.done + s.failed;
    let per_second = rate(finished(then), finished(now));
    let left = now.total.saturating_sub(finished(now));
    let stages = now.stages.iter().zip(&then.stages).map(|(n, t)| StageView {
        name: n.name.clone(),
        queued: n.entered.saturating_sub(n.left + n.failed),
        per_second: rate(t.left, n.left),
    });
    let devices = now.devices.iter().zip(&then.devices).map(|(n, t)| {
        let capacity = seconds * n.workers as f64;
        let busy = n.busy.saturating_sub(t.busy).as_secs_f64();
        DeviceView {
            name: n.name.clone(),
            workers: n.ready,
            busy: if capacity > 0.0 { (busy / capacity).min(1.0) } else { 0.0 },
            memory: n.gpu.as_ref().map(|gpu| (gpu.memory_used(), gpu.memory_total)),
            utilization: n.gpu.as_ref().and_then(|gpu| gpu.utilization),
            watts: n.gpu.as_ref().and_then(|gpu| gpu.power_mw).map(|mw| mw.div_ceil(1000)),
        }
    });
    ProgressView {
        total: Some(now.total),
        done: now.done,
        failed: now.failed,
        per_second,
        eta: (per_second > 0.0).then(|| Duration::from_secs_f64(left as f64 / per_second)),
        stages: stages.collect(),
        devices: devices.collect(),
        restarts: now.restarts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, done: u64) -> Snapshot {
        Snapshot { elapsed: Duration::from_secs(seconds), total: 1000, done, ..Snapshot::default() }
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_the_time_left_follows_from_it() {
        let mut watch = Watch::default();
        watch.look(at(0, 0));
        for s in 1..=20 {
            watch.look(at(s, 10 * s));
        }
        let view = watch.look(at(21, 300));
        assert!((view.per_second - (300.0 - 150.0) / 6.0).abs() < 1e-9, "{}", view.per_second);
        assert_eq!(view.eta, Some(Duration::from_secs(28)));
    }

    #[test]
    fn a_run_that_has_not_begun_has_no_time_left_to_tell() {
        assert_eq!(Watch::default().look(at(0, 0)).eta, None);
    }
}
