//! A histogram with fixed bounds that any thread may add to at any time, without a lock. It computes no quantile and knows no metric.

use std::time::Duration;

use crate::account::counter::Counter;

/// Bounds for numbers of items: powers of two.
pub const BATCH_SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Bounds for times, in nanoseconds: from 0.1 ms to 60 s.
pub const TIMES: &[u64] = &[
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// By bucket; one more than there are bounds.
    counts: Box<[Counter]>,
    sum: Counter,
}

/// What a histogram held at one moment. A value that is added meanwhile may be in the sum and not yet in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramReading {
    /// The largest value of each bucket but the last, which has none.
    pub bounds: &'static [u64],
    /// Values by bucket, each counted once; one more than there are bounds.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl Histogram {
    /// An empty one. `bounds` rise.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| Counter::default()).collect(),
            sum: Counter::default(),
        }
    }

    pub fn add(&self, value: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)].add(1);
        self.sum.add(value);
    }

    pub fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The sum of the durations added.
    pub fn total(&self) -> Duration {
        self.sum.time()
    }

    /// How many values were added.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(Counter::get).sum()
    }

    pub fn read(&self) -> HistogramReading {
        let counts = self.counts.iter().map(Counter::get).collect();
        HistogramReading { bounds: self.bounds, counts, sum: self.sum.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_the_bucket_below_it() {
        let histogram = Histogram::new(&[10, 20]);
        for value in [0, 10, 11, 20, 21, 1_000] {
            histogram.add(value);
        }
        let reading = histogram.read();
        assert_eq!(reading.counts, [2, 2, 2]);
        assert_eq!(reading.sum, 1_062);
    }
}
