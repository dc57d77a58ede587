//! When a stage gets more workers on the cores: its workers are busy, and cores are left beside what is nearer to the sinks. Decides; it
//! starts no worker, and reads no clock.

use std::time::Duration;

/// Workers that ran batches for this share of the time have more work than they can do.
const SATURATED: f64 = 0.75;
/// The least time that tells how busy workers are, and the most that is waited for enough batches.
const LEAST_TIME: Duration = Duration::from_millis(500);
const MOST_TIME: Duration = Duration::from_secs(10);
/// Batches of each worker that tell how busy it is: those that run at either end count in full or not at all.
const ENOUGH_BATCHES: u64 = 4;

/// What a stage does on the cores of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoreUse {
    /// Batch stages that its rows still come to, at most: the fewer, the nearer is it to a sink.
    pub stages_behind: usize,
    pub workers: usize,
    /// As many as it may have; no more than `workers` where it is not to grow now.
    pub most: usize,
    /// Cores that each worker keeps busy.
    pub cores_each: usize,
    /// Share of the time in which its workers ran batches, 0 to 1.
    pub busy: f64,
}

impl CoreUse {
    fn cores_busy(&self) -> f64 {
        self.busy * (self.workers * self.cores_each) as f64
    }
}

/// Which of these stages gets more workers, and how many: of those that have more work than they can do the nearest to the sinks, as far as
/// cores are left by all that are as near. What is further away takes the cores that are left over, so it is not counted.
pub fn more_workers(cores: usize, stages: &[CoreUse]) -> Option<(usize, usize)> {
    let more = |of: &CoreUse| {
        let near = stages.iter().filter(|other| other.stages_behind <= of.stages_behind);
        let left = cores as f64 - near.map(CoreUse::cores_busy).sum::<f64>();
        let fit = (left / of.cores_each.max(1) as f64).round().max(0.0) as usize;
        fit.min(of.workers).min(of.most.saturating_sub(of.workers))
    };
    let is_saturated = |of: &CoreUse| of.busy >= SATURATED;
    let candidates = stages.iter().enumerate().filter(|(_, of)| is_saturated(of) && more(of) > 0);
    candidates.min_by_key(|(at, of)| (of.stages_behind, *at)).map(|(at, of)| (at, more(of)))
}

/// How busy the workers of a stage are, over stretches of time with enough batches to tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct BusyWindow {
    since: Duration,
    busy: Duration,
    batches: u64,
    share: f64,
}

impl BusyWindow {
    /// Begins a stretch: so much time was spent on batches until now, and so many were run.
    pub fn begin(&mut self, now: Duration, busy: Duration, batches: u64) {
        *self = Self { since: now, busy, batches, share: self.share };
    }

    /// Ends the stretch if it is long enough, and says whether it is; the next one begins.
    pub fn ends(&mut self, now: Duration, workers: usize, (busy, batches): (Duration, u64)) -> bool {
        let time = now.saturating_sub(self.since);
        let is_enough = batches.saturating_sub(self.batches) >= ENOUGH_BATCHES * workers as u64;
        if time < LEAST_TIME || (time < MOST_TIME && !is_enough) {
            return false;
        }
        let all = time.as_secs_f64() * workers.max(1) as f64;
        self.share = (busy.saturating_sub(self.busy).as_secs_f64() / all).min(1.0);
        self.begin(now, busy, batches);
        true
    }

    /// Of the last stretch.
    pub fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(stages_behind: usize, workers: usize, busy: f64) -> CoreUse {
        CoreUse { stages_behind, workers, most: 8, cores_each: 1, busy }
    }

    #[test]
    fn cores_go_to_the_stage_that_has_work_and_of_several_to_the_nearest_to_the_sinks() {
        assert_eq!(more_workers(2, &[stage(1, 1, 0.1), stage(0, 1, 0.97)]), Some((1, 1)));
        assert_eq!(more_workers(2, &[stage(1, 1, 0.97), stage(0, 1, 0.1)]), Some((0, 1)));
        // The other one gives way, whatever it does now.
        assert_eq!(more_workers(2, &[stage(1, 1, 0.97), stage(0, 1, 0.97)]), Some((1, 1)));
        assert_eq!(more_workers(2, &[stage(1, 1, 0.97), stage(0, 2, 0.97)]), None);
        assert_eq!(more_workers(2, &[stage(0, 1, 0.97), stage(0, 1, 0.97)]), None, "branches share");
        assert_eq!(more_workers(2, &[stage(0, 1, 0.7)]), None, "it keeps up");
        assert_eq!(more_workers(2, &[]), None);
    }

    #[test]
    fn workers_double_until_the_cores_or_what_is_allowed_are_used() {
        assert_eq!(more_workers(64, &[stage(0, 2, 1.0)]), Some((0, 2)));
        assert_eq!(more_workers(64, &[stage(0, 6, 1.0)]), Some((0, 2)));
        assert_eq!(more_workers(64, &[stage(0, 8, 1.0)]), None);
        assert_eq!(more_workers(7, &[stage(0, 4, 1.0)]), Some((0, 3)));
        let threads = CoreUse { cores_each: 4, ..stage(0, 3, 1.0) };
        assert_eq!(more_workers(16, &[threads]), Some((0, 1)));
        assert_eq!(more_workers(13, &[threads]), None);
    }

    #[test]
    fn a_few_batches_do_not_tell_and_rare_ones_do_in_the_end() {
        let (ms, mut window) = (Duration::from_millis, BusyWindow::default());
        assert!(!window.ends(ms(400), 1, (ms(390), 39)));
        assert!(window.ends(ms(500), 1, (ms(490), 49)) && window.share() == 0.98);
        assert!(!window.ends(ms(1_500), 1, (ms(1_400), 51)), "two batches");
        assert!(window.ends(ms(2_500), 1, (ms(2_490), 53)) && window.share() == 1.0);
        assert!(window.ends(ms(12_500), 1, (ms(2_490), 53)) && window.share() == 0.0);
        window.begin(ms(20_000), ms(5_000), 60);
        assert!(window.ends(ms(21_000), 2, (ms(6_000), 70)) && window.share() == 0.5);
    }
}
