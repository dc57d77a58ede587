//! How far a list has grown: written by the thread that lists, read by those that read the list meanwhile. It touches no file.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Extent, ListError, PassedOverCounts};
use orchestra_core::locked;

/// Records between two entries of the index.
pub(crate) const STRIDE: u64 = 1024;

/// How far a list has grown. What is published here lies in the file, whole and durable, and never changes again.
#[derive(Default)]
pub struct Growth {
    state: Mutex<GrowthState>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Default)]
struct GrowthState {
    count: u64,
    /// Where the last published record ends.
    end: u64,
    /// Where every `STRIDE`th record begins: 8 bytes in memory for 1024 items.
    index: Vec<u64>,
    /// The digest of the complete list, or why it stays incomplete; `None` while listing goes on.
    outcome: Option<Result<[u8; 32], ListError>>,
    /// What was no item, up to the last published one.
    passed_over: PassedOverCounts,
    /// Something was published, if only that there is no item yet.
    begun: bool,
    watcher: Option<Box<dyn Fn() + Send>>,
}

/// A place in the file from which record `first` can be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListPosition {
    pub first: u64,
    pub offset: u64,
}

impl Growth {
    /// Of a list that is not begun.
    pub(crate) fn of_at_least(count: u64) -> Self {
        Self { state: Mutex::new(GrowthState { count, ..GrowthState::default() }), ..Self::default() }
    }

    /// How many items the list holds.
    pub fn extent(&self) -> Extent {
        let state = locked(&self.state);
        match state.outcome {
            Some(Ok(_)) => Extent::Known(state.count),
            Some(Err(_)) | None => Extent::Growing(state.count),
        }
    }

    /// What the source was given that is no item, as far as it is listed.
    pub fn passed_over(&self) -> PassedOverCounts {
        locked(&self.state).passed_over
    }

    /// Shows the error that ended the listing early, if one did.
    pub fn failure<T>(&self, show: impl FnOnce(&ListError) -> T) -> Option<T> {
        locked(&self.state).outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).map(show)
    }

    /// Calls `watcher`, and no earlier one any more, whenever the list has grown or its listing has ended. It is called by the thread that
    /// lists, and must neither wait nor ask this object anything.
    pub fn watch(&self, watcher: impl Fn() + Send + 'static) {
        locked(&self.state).watcher = Some(Box::new(watcher));
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// How many items the list holds up to now.
    pub fn count(&self) -> u64 {
        locked(&self.state).count
    }

    pub(crate) fn digest(&self) -> Option<[u8; 32]> {
        locked(&self.state).outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).copied()
    }

    /// The last mark at or before record `at`; behind the last record: its end.
    pub(crate) fn mark(&self, at: u64) -> ListPosition {
        let state = locked(&self.state);
        let stride = at / STRIDE;
        let offset = usize::try_from(stride).ok().and_then(|stride| state.index.get(stride));
        match offset.filter(|_| at < state.count) {
            Some(&offset) => ListPosition { first: stride * STRIDE, offset },
            None => ListPosition { first: state.count, offset: state.end },
        }
    }

    /// Publishes all records up to `count`, which end at `end`; with the digest, once they are all. `index` goes on from what it was before.
    pub(crate) fn publish(
        &self,
        count: u64,
        passed_over: PassedOverCounts,
        end: u64,
        index: &[u64],
        digest: Option<[u8; 32]>,
    ) {
        let mut state = locked(&self.state);
        (state.count, state.end, state.begun, state.passed_over) = (count, end, true, passed_over);
        let known = state.index.len();
        state.index.extend_from_slice(index.get(known..).unwrap_or_default());
        self.tell(state, digest.map(Ok));
    }

    /// The listing has ended early.
    pub(crate) fn fail(&self, error: ListError) {
        self.tell(locked(&self.state), Some(Err(error)));
    }

    fn tell(&self, mut state: MutexGuard<'_, GrowthState>, outcome: Option<Result<[u8; 32], ListError>>) {
        state.outcome = outcome;
        if let Some(watcher) = &state.watcher {
            watcher();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until something is listed, or is known never to be; then that error is given, and kept no longer.
    pub(crate) fn begun(&self) -> Result<(), ListError> {
        let waits = |state: &mut GrowthState| !state.begun && state.outcome.is_none();
        let waited = self.changed.wait_while(locked(&self.state), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.count > 0 {
            return Ok(());
        }
        state.outcome.take_if(|outcome| outcome.is_err()).map_or(Ok(()), |outcome| outcome.map(drop))
    }
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Growth").field("extent", &self.extent()).finish_non_exhaustive()
    }
}
