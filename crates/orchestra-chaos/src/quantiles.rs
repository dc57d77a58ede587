//! The middle, the end and the very end of many times. Arithmetic only.

use std::time::Duration;

use serde::Serialize;

/// Of a number of durations, in seconds: nearest ranks, so each is one that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of them are no longer than this.
    pub p50: f64,
    /// 99 of 100 are no longer than this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// How many there are.
    pub n: u64,
}

impl Quantiles {
    /// `None` of none.
    #[must_use]
    pub fn of(durations: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut sorted: Vec<Duration> = durations.into_iter().collect();
        sorted.sort_unstable();
        let max = sorted.last()?.as_secs_f64();
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1].as_secs_f64();
        Some(Self { p50: rank(50), p99: rank(99), max, n: sorted.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_nearest_ranks() {
        let of = |n: u64| Quantiles::of((1..=n).rev().map(Duration::from_secs));
        assert_eq!(of(0), None);
        assert_eq!(of(1), Some(Quantiles { p50: 1.0, p99: 1.0, max: 1.0, n: 1 }));
        assert_eq!(of(4), Some(Quantiles { p50: 2.0, p99: 4.0, max: 4.0, n: 4 }));
        assert_eq!(of(200), Some(Quantiles { p50: 100.0, p99: 198.0, max: 200.0, n: 200 }));
    }
}
