//! Where workers that are ready for a size wait for the others, so that all are measured at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::bare_worker::Trouble;
use crate::run::Cancel;

/// Where workers that are ready for a size wait for the others.
pub struct Gate {
    n: usize,
    arrived: AtomicUsize,
    has_failed: AtomicBool,
}

impl Gate {
    /// For `n` workers.
    pub fn new(n: usize) -> Self {
        Self { n, arrived: AtomicUsize::new(0), has_failed: AtomicBool::new(false) }
    }

    pub fn n_workers(&self) -> usize {
        self.n
    }

    /// A worker is lost: nothing that waits here, or looks here, goes on.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Waits until all workers are ready for the size at this place.
    pub fn wait(&self, at: usize, cancel: &Cancel) -> Result<(), Trouble> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.n * (at + 1) {
            if cancel.is_cancelled() {
                return Err(Trouble::Cancelled);
            }
            if self.has_failed() {
                return Err(Trouble::Stopped);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_opens_for_all_or_says_why_not() {
        let (both, cancel) = (Gate::new(2), Cancel::default());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| both.wait(0, &cancel).is_ok());
            assert!(both.wait(0, &cancel).is_ok());
            assert!(other.join().unwrap());
        });
        let failed = Gate::new(2);
        failed.fail();
        assert!(matches!(failed.wait(0, &cancel), Err(Trouble::Stopped)));
        cancel.cancel();
        assert!(matches!(Gate::new(2).wait(0, &cancel), Err(Trouble::Cancelled)));
    }
}
