//! How large a batch one device takes of one model: halved when memory runs out, raised again slowly. Where it begins with less than the most, it is also
//! bounded by the time that a batch takes, and by its answer.
//! It never decides what happens to the batch that ran out of memory; the ledger does.

use std::time::Duration;

/// Additive increase, multiplicative decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    max: usize,
    /// By memory.
    current: usize,
    successes: u32,
    /// Never less by time and answers than this.
    first: usize,
    /// By time and answers.
    timely: usize,
}

/// So many full-sized batches must pass before one more row is tried.
const SUCCESSES_PER_STEP: u32 = 16;

/// A batch that grows is to take no longer. The way to a worker and back takes some hundredths of it.
const TIMELY: Duration = Duration::from_millis(10);
/// Nor to have an answer of more bytes: what is no tensor of fixed shape travels in frames, and has a bound.
const SMALL_ANSWER: usize = 1 << 20;

impl Ceiling {
    pub fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { max, current: max, successes: 0, first: max, timely: max }
    }

    /// The same, but `first` rows until larger batches are known to be quick.
    pub fn growing(first: usize, max: usize) -> Self {
        let first = first.clamp(1, max.max(1));
        Self { first, timely: first, ..Self::new(max) }
    }

    /// By memory.
    pub fn rows(&self) -> usize {
        self.current
    }

    /// The most rows of the next batch.
    pub fn next_batch(&self) -> usize {
        self.current.min(self.timely)
    }

    /// A batch of so many rows was run in this time, with so many bytes in frames. One that is slow or large counts at once; one that is neither allows twice as
    /// many rows, if it had as many as it might.
    pub fn took(&mut self, rows: usize, time: Duration, bytes: usize) {
        let in_time = rows as u128 * TIMELY.as_nanos() / time.as_nanos().max(1);
        let in_bytes = rows as u128 * SMALL_ANSWER as u128 / bytes.max(1) as u128;
        let fit = usize::try_from(in_time.min(in_bytes)).unwrap_or(usize::MAX).clamp(self.first, self.max);
        if fit < self.timely {
            self.timely = fit;
        } else if rows >= self.timely {
            self.timely = fit.min(self.timely * 2);
        }
    }

    /// A batch has no result, and is taken apart or run again: the next ones shall not be large for that.
    pub fn failed(&mut self) {
        self.timely = self.first;
    }

    /// A batch of `rows` rows ran out of memory: never send one as large until it was grown back.
    pub fn out_of_memory(&mut self, rows: usize) {
        let lowered = (rows / 2).max(1);
        self.successes = 0;
        self.current = self.current.min(lowered);
    }

    pub fn succeeded(&mut self, rows: usize) {
        if self.current == self.max || rows < self.current {
            return;
        }
        self.successes += 1;
        if self.successes >= SUCCESSES_PER_STEP {
            self.successes = 0;
            self.current = (self.current + (self.max / 8).max(1)).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_pressure_halves_and_success_raises_it_again_to_the_maximum_and_no_further() {
        let mut c = Ceiling::new(64);
        c.out_of_memory(64);
        assert_eq!(c.rows(), 32);
        c.out_of_memory(64);
        assert_eq!(c.rows(), 32, "news of an older, larger batch changes nothing");
        for _ in 0..10_000 {
            c.succeeded(c.rows());
            assert!(c.rows() <= 64);
        }
        assert_eq!(c.rows(), 64);
    }

    #[test]
    fn batches_grow_while_they_are_quick_and_shrink_at_once_where_one_is_slow_or_has_no_result() {
        let us = |rows: usize, each: u64| Duration::from_micros(rows as u64 * each);
        let mut c = Ceiling::growing(32, 512);
        c.took(31, us(31, 1), 0);
        assert_eq!(c.next_batch(), 32, "a batch that was not full proves nothing");
        for expected in [64, 128, 256, 500, 500] {
            c.took(c.next_batch(), us(c.next_batch(), 20), 0);
            assert_eq!(c.next_batch(), expected);
        }
        c.took(500, Duration::ZERO, 500 << 10);
        assert_eq!(c.next_batch(), 512);
        c.took(512, Duration::ZERO, 512 << 12);
        assert_eq!(c.next_batch(), 256, "answers of 4 KiB");
        c.took(100, us(100, 100), 0);
        assert_eq!(c.next_batch(), 100);
        c.took(100, us(100, 10_000), 0);
        assert_eq!(c.next_batch(), 32, "however slow");
        c.took(32, us(32, 1), 0);
        c.failed();
        assert_eq!(c.next_batch(), 32);
        c.took(32, us(32, 1), 0);
        c.out_of_memory(40);
        assert_eq!(c.next_batch(), 20, "memory bounds it, too");
        let mut fixed = Ceiling::new(8);
        fixed.took(8, Duration::from_secs(9), 1 << 30);
        fixed.failed();
        assert_eq!(fixed.next_batch(), 8);
    }

    #[test]
    fn small_batches_prove_nothing_about_a_larger_ceiling() {
        let mut c = Ceiling::new(8);
        c.out_of_memory(8);
        for _ in 0..1000 {
            c.succeeded(1);
        }
        assert_eq!(c.rows(), 4);
    }
}
