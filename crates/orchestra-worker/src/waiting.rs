//! Whether the load of this process waits for another process, which the deadline of a load does not count. It waits for nothing itself.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A process loads one model; tests load several at once.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// As long as one lives, each heartbeat has a `Waiting` frame behind it.
#[derive(Debug)]
pub struct LoadWait(());

impl LoadWait {
    /// From now on.
    pub fn begin() -> LoadWait {
        WAITING.fetch_add(1, Ordering::Relaxed);
        LoadWait(())
    }
}

impl Drop for LoadWait {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn is_waiting() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}
