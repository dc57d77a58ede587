//! The right to have an item alone, with more memory than the share of a loader: one loader of the run has it at a time. It loads nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One for all sources of a run.
#[derive(Debug, Clone, Default)]
pub struct ExclusiveLoads(Arc<AtomicBool>);

/// Held from before the process of the item starts until nothing of it lies in the memory that the process shared.
#[derive(Debug)]
pub struct ExclusiveLoad(Arc<AtomicBool>);

impl ExclusiveLoads {
    /// `None` while another loader has it.
    pub fn take(&self) -> Option<ExclusiveLoad> {
        let was_free = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        was_free.then(|| ExclusiveLoad(Arc::clone(&self.0)))
    }
}

impl Drop for ExclusiveLoad {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
