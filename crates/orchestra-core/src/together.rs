//! How many batches go to a worker together, learned from how long one takes. It moves no row and reads no clock.
//!
//! To hand over a frame and its answer costs the same whatever the model then runs: two wakes of a thread, and a way through the actors.
//! For a batch that is done within less than a millisecond that is much. Batches that go together share it: the model runs them one
//! after the other, as it would, and the answer comes for all. What it costs is that they end together, so they take as long as nobody
//! minds: the bound is on their time, not on their number.

use std::time::Duration;

/// Together they take no longer than this, or than a worker that ends last would hold up the others.
const LONGEST: Duration = Duration::from_millis(50);
/// And so small a part of the time that a batch may take: a frame with slow batches in it must not be taken for one that hangs.
const PART_OF_TIMEOUT: u32 = 20;
/// A new time counts for so small a part of what is known.
const WEIGHT: u32 = 8;

/// See the module.
#[derive(Debug, Clone)]
pub struct Together {
    most: usize,
    within: Duration,
    /// What a batch takes, by the latest ones; `None`: none has been seen.
    batch: Option<Duration>,
}

impl Together {
    /// At most so many, at least 1, where one batch may take `batch_timeout`.
    #[must_use]
    pub fn new(most: usize, batch_timeout: Duration) -> Self {
        Self { most: most.max(1), within: LONGEST.min(batch_timeout / PART_OF_TIMEOUT), batch: None }
    }

    /// So many batches that went together took so long in their worker.
    pub fn took(&mut self, batches: usize, time: Duration) {
        let one = time / u32::try_from(batches.max(1)).unwrap_or(u32::MAX);
        self.batch = Some(match self.batch {
            None => one,
            Some(known) => (known * (WEIGHT - 1) + one) / WEIGHT,
        });
    }

    /// How many go together now. One, as long as none has been seen.
    #[must_use]
    pub fn batches(&self) -> usize {
        let Some(batch) = self.batch else { return 1 };
        let fit = self.within.as_nanos() / batch.as_nanos().max(1);
        usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MINUTE: Duration = Duration::from_secs(60);

    fn after(most: usize, timeout: Duration, batch: Duration) -> usize {
        let mut together = Together::new(most, timeout);
        together.took(1, batch);
        together.batches()
    }

    #[test]
    fn nothing_goes_together_before_a_batch_was_seen() {
        assert_eq!(Together::new(32, MINUTE).batches(), 1);
    }

    #[test]
    fn as_many_go_together_as_fit_into_the_bound() {
        assert_eq!(after(1000, MINUTE, MS), 50);
        assert_eq!(after(32, MINUTE, MS), 32, "and no more than there is room for");
        assert_eq!(after(32, MINUTE, 30 * MS), 1);
        assert_eq!(after(32, MINUTE, MINUTE), 1);
        assert_eq!(after(32, MINUTE, Duration::ZERO), 32);
        assert_eq!(after(0, MINUTE, MS), 1);
    }

    #[test]
    fn together_they_are_far_from_the_time_that_one_may_take() {
        assert_eq!(after(32, 100 * MS, MS), 5);
        assert_eq!(after(32, MS, MS), 1);
    }

    #[test]
    fn what_is_known_follows_what_is_seen_and_one_slow_batch_is_no_rule() {
        let mut together = Together::new(100, MINUTE);
        together.took(10, 10 * MS);
        assert_eq!(together.batches(), 50);
        together.took(1, 2 * MS);
        assert!((40..50).contains(&together.batches()), "{together:?}");
        (0..100).for_each(|_| together.took(1, 10 * MS));
        assert_eq!(together.batches(), 5);
    }
}
