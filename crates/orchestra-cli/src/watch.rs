//! Follows a run from its snapshots: rates and time left. Draws nothing.

use std::collections::VecDeque;
use std::time::Duration;

use orchestra_launch::RunStatus;

use crate::progress::ProgressView;

/// Rates are means over this long.
const WINDOW_SECONDS: f64 = 5.0;

#[derive(Debug, Default)]
pub struct RateWatch {
    seen: VecDeque<RunStatus>,
}

impl RateWatch {
    /// Takes a snapshot; gives what to show.
    pub fn look(&mut self, now: RunStatus) -> ProgressView {
        while self.seen.len() > 1 && self.seen[1].seconds + WINDOW_SECONDS < now.seconds {
            self.seen.pop_front();
        }
        let then = self.seen.front().cloned().unwrap_or_else(|| now.clone());
        let view = view(&then, now.clone());
        self.seen.push_back(now);
        view
    }
}

fn view(then: &RunStatus, now: RunStatus) -> ProgressView {
    let seconds = now.seconds - then.seconds;
    let rate = |before: u64, after: u64| {
        if seconds > 0.0 { after.saturating_sub(before) as f64 / seconds } else { 0.0 }
    };
    let per_second = rate(then.items.read, now.items.read);
    let left = now.items.total.map(|total| total.saturating_sub(now.items.read));
    let stages = now.stages.iter().zip(&then.stages);
    let devices = now.devices.iter().zip(&then.devices);
    let busy = devices.map(|(now, then)| {
        let capacity = seconds * now.workers as f64;
        let busy = now.time_busy.saturating_sub(then.time_busy).as_secs_f64();
        if capacity > 0.0 { (busy / capacity).min(1.0) } else { 0.0 }
    });
    ProgressView {
        per_second,
        eta: left.filter(|_| per_second > 0.0).map(|left| Duration::from_secs_f64(left as f64 / per_second)),
        stage_rates: stages.map(|(now, then)| rate(then.out, now.out)).collect(),
        busy: busy.collect(),
        now,
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::ItemCounts;

    use super::*;

    fn at(seconds: u32, read: u64) -> RunStatus {
        let items = ItemCounts { read, total: Some(1000), ..ItemCounts::default() };
        RunStatus { seconds: seconds.into(), items, ..RunStatus::default() }
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_the_time_left_follows_from_it() {
        let mut watch = RateWatch::default();
        watch.look(at(0, 0));
        for s in 1..=20 {
            watch.look(at(s, u64::from(10 * s)));
        }
        let view = watch.look(at(21, 300));
        assert!((view.per_second - (300.0 - 150.0) / 6.0).abs() < 1e-9, "{}", view.per_second);
        assert_eq!(view.eta, Some(Duration::from_secs(28)));
    }

    #[test]
    fn no_time_left_is_told_while_items_are_being_listed() {
        let at = |seconds, read| {
            let items = ItemCounts { total: None, listed: 1000, ..at(seconds, read).items };
            RunStatus { items, ..at(seconds, read) }
        };
        let mut watch = RateWatch::default();
        watch.look(at(0, 0));
        let view = watch.look(at(1, 10));
        assert_eq!((view.per_second, view.eta), (10.0, None));
    }

    #[test]
    fn a_run_that_has_not_begun_has_no_time_left_to_tell() {
        assert_eq!(RateWatch::default().look(at(0, 0)).eta, None);
    }
}
