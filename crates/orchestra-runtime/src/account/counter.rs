//! A number that any thread may add to. It knows no metric.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only its writers change and that may be read at any time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn add_time(&self, d: Duration) {
        self.add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Makes it `n`: for what is measured and not counted.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Notes a duration, in nanoseconds, unless one was noted before.
    pub fn note_first(&self, d: Duration) {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).max(1);
        // An error means that another one was first.
        let _ = self.0.compare_exchange(0, nanos, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Makes it a duration, in nanoseconds.
    pub fn set_time(&self, d: Duration) {
        self.set(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The sum of the durations added.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.get())
    }
}
