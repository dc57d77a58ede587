//! The way of one item through a run, noted in its ticket, only while the run is traced. Notes only: nothing in a run depends on them.
//!
//! Every item has one, and most are never read: so what happens to all of them (one loader, one row, one batch) takes a few
//! plain stores and no allocation, and the batch is told with the group that ended together ([`crate::trace::EndedItems`]). Only what is
//! unusual, an attempt that failed or another stage, is kept beside it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use orchestra_core::{StageId, locked};
use smallvec::SmallVec;

use crate::trace::{BatchEnd, BatchTrace};

/// The moments of the way of one item.
///
/// An item is with one thread at a time, but for the branches of its graph, and goes from one to the next by a message: that orders the
/// plain stores of one before the loads of the next.
#[derive(Default)]
pub struct Timeline {
    /// Moments in nanoseconds, plus one; 0: not noted.
    began: AtomicU64,
    read: AtomicU64,
    left: AtomicU64,
    queued_at: AtomicU64,
    /// The number of the stage that `queued_at` is about, plus one; 0: free.
    queued_for: AtomicU32,
    more: OnceLock<Box<Mutex<TimelineOverflow>>>,
}

#[derive(Debug, Default)]
struct TimelineOverflow {
    queued: Vec<(StageId, Duration)>,
    batches: Vec<Arc<BatchTrace>>,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loading {
    /// When a loader took it.
    pub began: Duration,
    /// When its file was read; `None` if it could not be.
    pub read: Option<Duration>,
    /// When it left the loading: it was decoded, refused or given up.
    pub left: Duration,
}

impl Timeline {
    pub fn loaded(&self, loading: Loading) {
        note(&self.began, loading.began);
        if let Some(read) = loading.read {
            note(&self.read, read);
        }
        note(&self.left, loading.left);
    }

    /// Notes that a row is there for `stage`: call it before the row is published.
    pub fn queued(&self, stage: StageId, at: Duration) {
        let free =
            self.queued_for.compare_exchange(0, u32::from(stage.0) + 1, Ordering::Relaxed, Ordering::Relaxed);
        match free {
            Ok(_) => note(&self.queued_at, at),
            Err(_) => self.more(|more| more.queued.push((stage, at))),
        }
    }

    /// Notes a batch that the item was in, unless that is told with the group that it ends with.
    pub fn ran(&self, batch: &Arc<BatchTrace>) {
        self.more(|more| more.batches.push(Arc::clone(batch)));
    }

    /// When it was first seen, if anything is noted.
    pub fn began(&self) -> Option<Duration> {
        noted(&self.began).or_else(|| noted(&self.queued_at))
    }

    /// Whether a batch is noted that gave no result for it.
    pub fn was_retried(&self) -> bool {
        let is_retry = |more: &Mutex<TimelineOverflow>| {
            let more = locked(more);
            more.batches.iter().any(|batch| batch.end != BatchEnd::Done)
        };
        self.more.get().is_some_and(|more| is_retry(more))
    }

    /// No more is noted than what happens to all items.
    pub fn is_usual(&self) -> bool {
        self.more.get().is_none()
    }

    pub fn is_empty(&self) -> bool {
        self.began().is_none() && self.is_usual()
    }

    /// What is noted so far.
    pub fn steps(&self) -> Steps {
        let loading = noted(&self.began).zip(noted(&self.left));
        let loading = loading.map(|(began, left)| Loading { began, read: noted(&self.read), left });
        let mut steps = Steps { loading, ..Steps::default() };
        if let Some(at) = noted(&self.queued_at) {
            let stage = self.queued_for.load(Ordering::Relaxed).saturating_sub(1);
            steps.queued.push((StageId(u16::try_from(stage).unwrap_or(u16::MAX)), at));
        }
        if let Some(more) = self.more.get() {
            let more = locked(more);
            steps.queued.extend_from_slice(&more.queued);
            steps.batches.extend(more.batches.iter().map(Arc::clone));
        }
        steps
    }

    fn more(&self, f: impl FnOnce(&mut TimelineOverflow)) {
        let more = self.more.get_or_init(Box::default);
        f(&mut locked(more));
    }
}

fn note(moment: &AtomicU64, at: Duration) {
    let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    moment.store(nanos.saturating_add(1), Ordering::Relaxed);
}

fn noted(moment: &AtomicU64) -> Option<Duration> {
    moment.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_comes_back_and_the_usual_way_allocates_nothing() {
        let ms = Duration::from_millis;
        let timeline = Timeline::default();
        assert!(timeline.began().is_none() && timeline.steps().loading.is_none());
        let loading = Loading { began: Duration::ZERO, read: Some(ms(1)), left: ms(2) };
        timeline.loaded(loading);
        timeline.queued(StageId(0), ms(3));
        assert!(timeline.more.get().is_none());
        assert_eq!(timeline.steps().loading, Some(loading), "a moment of zero is one");
        assert_eq!(timeline.began(), Some(Duration::ZERO));
        timeline.queued(StageId(7), ms(4));
        let queued = [(StageId(0), ms(3)), (StageId(7), ms(4))];
        assert_eq!(timeline.steps().queued[..], queued, "rows of a second stage are kept beside the first");
        assert!(!timeline.was_retried());
    }

    #[test]
    fn rows_of_two_stages_that_are_noted_at_once_are_both_there() {
        for _ in 0..200 {
            let timeline = Timeline::default();
            std::thread::scope(|scope| {
                for stage in [1, 2] {
                    let timeline = &timeline;
                    scope.spawn(move || timeline.queued(StageId(stage), Duration::from_secs(stage.into())));
                }
            });
            let mut queued = timeline.steps().queued;
            queued.sort();
            assert_eq!(queued[..], [1, 2].map(|n| (StageId(n), Duration::from_secs(n.into()))));
        }
    }
}
