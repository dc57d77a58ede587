//! The way of one item through a run, noted beside its ticket, only while somebody traces. Notes only: nothing in a run depends on them.
//!
//! An item is with one thread at a time, but for the branches of its graph, so the lock is almost never waited for.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orchestra_core::StageId;
use smallvec::SmallVec;

use crate::trace::BatchTrace;

/// See the module.
#[derive(Default)]
pub struct Journey(Mutex<Steps>);

/// What an item went through.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    /// Reading and decoding. `None`: no loader came to that.
    pub loading: Option<Loading>,
    /// When a row of it was there for a stage.
    pub queued: SmallVec<[(StageId, Duration); 1]>,
    /// The batches that it was in, in the order in which they ended.
    pub batches: SmallVec<[Arc<BatchTrace>; 1]>,
}

/// How an item was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loading {
    /// When a loader took it.
    pub began: Duration,
    /// When its file was read; `None` if it could not be.
    pub read: Option<Duration>,
    /// When it was decoded, refused or given up.
    pub decoded: Duration,
}

impl Journey {
    /// Notes how the item was loaded.
    pub fn loaded(&self, loading: Loading) {
        self.change(|s| s.loading = Some(loading));
    }

    /// Notes that a row is there for `stage`: call it before the row is published.
    pub fn queued(&self, stage: StageId, at: Duration) {
        self.change(|s| s.queued.push((stage, at)));
    }

    /// Notes a batch that the item was in.
    pub fn ran(&self, batch: &Arc<BatchTrace>) {
        self.change(|s| s.batches.push(Arc::clone(batch)));
    }

    /// What is noted so far.
    #[must_use]
    pub fn steps(&self) -> Steps {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, f: impl FnOnce(&mut Steps)) {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for Journey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("journey")
    }
}
