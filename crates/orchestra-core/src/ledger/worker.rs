//! What one worker holds, and what is known of it. It chooses nothing.

use std::collections::VecDeque;

use crate::ids::{BatchId, DeviceId};

/// A worker that has become ready and has not ended.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub device: DeviceId,
    /// In the order in which they were sent, which is the order in which it begins them.
    pub holds: VecDeque<BatchId>,
    pub draining: bool,
    /// It is drained because its successor is there: none is started when it ends.
    pub has_successor: bool,
    pub failed_last: bool,
    /// It reported a broken device and runs nothing more.
    pub broken: bool,
    /// What it was running beside the batch for which it reported that.
    ran_beside: Vec<BatchId>,
    /// Its death is to be expected: see `LostBatches::bisecting`.
    pub bisecting: bool,
    /// It has answered for a batch.
    pub has_run: bool,
    /// The batch of its last isolated run, which may be gone long since.
    pub isolated: Option<BatchId>,
}

impl Worker {
    pub fn on(device: DeviceId) -> Self {
        Self { device, ..Self::default() }
    }

    pub fn takes_more(&self) -> bool {
        !self.draining && !self.broken
    }

    /// Beside and behind an isolated run there is nothing, so that nothing else can be what the worker dies of.
    pub fn has_room(&self, most_held: usize) -> bool {
        self.holds.len() < most_held && !self.isolated.is_some_and(|id| self.holds.contains(&id))
    }

    /// It has run nothing yet, and nothing waits there to be run.
    pub fn is_fresh(&self) -> bool {
        !self.has_run && self.holds.is_empty()
    }

    /// It has reported a broken device for a batch that it holds no more. Says whether it was running others, of which there are at most
    /// so many: what one does to a device may show in another.
    pub fn breaks(&mut self, bisecting: bool, at_most_beside: usize) -> bool {
        let again = std::mem::replace(&mut self.broken, true);
        if !again {
            self.ran_beside = self.holds.iter().take(at_most_beside).copied().collect();
        }
        self.bisecting |= bisecting;
        again || !self.ran_beside.is_empty()
    }

    /// What it has begun and not answered. It may be about to begin the last of these.
    pub fn begun(&self, streams: usize) -> impl Iterator<Item = BatchId> {
        let n = if self.broken { self.holds.len() } else { streams };
        let has_begun = |id: &&BatchId| !self.broken || self.ran_beside.contains(id);
        self.holds.iter().take(n).filter(has_begun).copied()
    }
}
