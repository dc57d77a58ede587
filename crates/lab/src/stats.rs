//! Medians and quantiles. Arithmetic only.

use std::time::Duration;

use serde::Serialize;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Zeros of no values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let middle = sorted.len() / 2;
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[middle]);
        Self { median, min, max }
    }
}

/// Of a number of durations, in seconds: nearest ranks, so each is one that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of them are no longer than this.
    pub p50: f64,
    /// 99 of 100 are no longer than this.
    pub p99: f64,
    pub max: f64,
    pub n: u64,
}

impl Quantiles {
    /// `None` of no durations.
    #[must_use]
    pub fn of(durations: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut sorted: Vec<Duration> = durations.into_iter().collect();
        sorted.sort_unstable();
        let max = sorted.last()?.as_secs_f64();
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1].as_secs_f64();
        Some(Self { p50: rank(50), p99: rank(99), max, n: sorted.len() as u64 })
    }
}

/// `a / b`, and 0 where nothing was measured.
pub(crate) fn divide(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// The upper median, zero of nothing.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_of_any_order() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of([7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn ranks_are_nearest_ranks() {
        let of = |n: u64| Quantiles::of((1..=n).rev().map(Duration::from_secs));
        assert_eq!(of(0), None);
        assert_eq!(of(1), Some(Quantiles { p50: 1.0, p99: 1.0, max: 1.0, n: 1 }));
        assert_eq!(of(4), Some(Quantiles { p50: 2.0, p99: 4.0, max: 4.0, n: 4 }));
        assert_eq!(of(200), Some(Quantiles { p50: 100.0, p99: 198.0, max: 200.0, n: 200 }));
    }

    #[test]
    fn the_upper_median_is_that_of_the_middle() {
        let of = |times: &[u64]| median(times.iter().copied().map(Duration::from_millis).collect());
        assert_eq!(of(&[9, 1, 5]), Duration::from_millis(5));
        assert_eq!(of(&[]), Duration::ZERO);
    }
}
