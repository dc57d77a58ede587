//! How many batches go to a worker together, learned from how long one takes. It moves no row and reads no clock.
//!
//! To hand over a frame and its answer costs the same whatever the model then runs: two wakes of a thread, and a way through the actors.
//! For a batch that is done within less than a millisecond that is much. Batches that go together share it: the model runs them one
//! after the other, as it would, and the answer comes for all. What it costs is that they end together, so the bound
//! is on their time, not on their number.

use std::time::Duration;

/// Together they take no longer than this, or than a worker that ends last would hold up the others.
const LONGEST: Duration = Duration::from_millis(50);
/// And so small a part of the time that a batch may take: a frame with slow batches in it must not be taken for one that hangs.
const PART_OF_TIMEOUT: u32 = 20;
/// A new time counts for so small a part of what is known.
const WEIGHT: u32 = 8;

#[derive(Debug, Clone)]
pub struct Together {
    most: usize,
    max_batch: usize,
    within: Duration,
    /// What a full batch takes, by the latest frames; `None`: none has been seen.
    batch: Option<Duration>,
    /// As many as faults allow: half as many after each frame that failed as a whole, and one more after each that did not.
    allowed: usize,
}

impl Together {
    /// At most `most` batches of up to `max_batch` rows, both at least 1, where one batch may take `batch_timeout`.
    pub fn new(most: usize, max_batch: usize, batch_timeout: Duration) -> Self {
        let within = LONGEST.min(batch_timeout / PART_OF_TIMEOUT);
        Self { most: most.max(1), max_batch: max_batch.max(1), within, batch: None, allowed: most.max(1) }
    }

    /// So many rows that went together took so long in their worker. By their part of a full batch, which is never too little: what a
    /// batch costs whatever its size is taken for a cost of its rows.
    pub fn took(&mut self, rows: usize, time: Duration) {
        let full = time.as_nanos().saturating_mul(self.max_batch as u128) / rows.max(1) as u128;
        let full = Duration::from_nanos(u64::try_from(full).unwrap_or(u64::MAX));
        self.batch = Some(match self.batch {
            None => full,
            Some(known) => (known / WEIGHT) * (WEIGHT - 1) + full / WEIGHT,
        });
        self.allowed = (self.allowed + 1).min(self.most);
    }

    /// So many rows that went together failed together, or their worker died. Whatever had been done of them is done again, batch by batch:
    /// where that happens often, fewer should go together.
    pub fn failed(&mut self, rows: usize) {
        if rows > self.max_batch {
            self.allowed = (self.batches() / 2).max(1);
        }
    }

    /// How many go together now. One, as long as none has been seen.
    pub fn batches(&self) -> usize {
        let Some(batch) = self.batch else { return 1 };
        let fit = self.within.as_nanos() / batch.as_nanos().max(1);
        usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MINUTE: Duration = Duration::from_secs(60);
    /// Rows of a full batch.
    const FULL: usize = 8;

    fn after(most: usize, timeout: Duration, batch: Duration) -> usize {
        let mut together = Together::new(most, FULL, timeout);
        together.took(FULL, batch);
        together.batches()
    }

    #[test]
    fn nothing_goes_together_before_a_batch_was_seen() {
        assert_eq!(Together::new(32, FULL, MINUTE).batches(), 1);
    }

    #[test]
    fn as_many_go_together_as_fit_into_the_bound() {
        assert_eq!(after(1000, MINUTE, MS), 50);
        assert_eq!(after(32, MINUTE, MS), 32, "and no more than there is room for");
        assert_eq!(after(32, MINUTE, 30 * MS), 1);
        assert_eq!(after(32, MINUTE, MINUTE), 1);
        assert_eq!(after(32, MINUTE, Duration::ZERO), 32);
        assert_eq!(after(32, MINUTE, Duration::MAX), 1);
        assert_eq!(after(0, MINUTE, MS), 1);
    }

    #[test]
    fn together_they_are_far_from_the_time_that_one_may_take() {
        assert_eq!(after(32, 100 * MS, MS), 5);
        assert_eq!(after(32, MS, MS), 1);
    }

    #[test]
    fn a_few_rows_are_not_taken_for_a_full_batch() {
        let mut together = Together::new(100, FULL, MINUTE);
        together.took(1, 2 * MS);
        assert_eq!(together.batches(), 3, "a full one takes up to 16 ms");
        (0..100).for_each(|_| together.took(3 * FULL + 4, 7 * MS));
        assert_eq!(together.batches(), 25, "three and a half in 7 ms");
    }

    #[test]
    fn what_is_known_follows_what_is_seen_and_one_slow_batch_is_no_rule() {
        let mut together = Together::new(100, FULL, MINUTE);
        together.took(10 * FULL, 10 * MS);
        assert_eq!(together.batches(), 50);
        together.took(FULL, 2 * MS);
        assert!((40..50).contains(&together.batches()), "{together:?}");
        (0..100).for_each(|_| together.took(FULL, 10 * MS));
        assert_eq!(together.batches(), 5);
    }

    #[test]
    fn where_frames_fail_as_a_whole_fewer_go_together_until_they_do_no_more() {
        let mut together = Together::new(32, FULL, MINUTE);
        together.took(FULL, MS);
        together.failed(FULL);
        assert_eq!(together.batches(), 32, "a batch that fails by itself says nothing of others");
        together.failed(32 * FULL);
        assert_eq!(together.batches(), 16);
        (0..10).for_each(|_| together.failed(2 * FULL));
        assert_eq!(together.batches(), 1);
        (0..3).for_each(|_| together.took(FULL, MS));
        assert_eq!(together.batches(), 4);
        (0..100).for_each(|_| together.took(FULL, MS));
        assert_eq!(together.batches(), 32);
    }
}
