//! What of a run is still there, for whoever wants to know that nothing is: hosts that count, and tests. It keeps nothing of the run
//! alive and changes nothing.

use std::sync::{Arc, Weak};

use crate::account::stats::Stats;
use crate::context::RunContext;

/// Looks at a run from outside, also after its end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Remains {
    context: Weak<RunContext>,
    stats: Arc<Stats>,
}

impl Remains {
    pub(crate) fn of(context: &Arc<RunContext>) -> Self {
        Self { context: Arc::downgrade(context), stats: Arc::clone(&context.stats) }
    }

    /// Actors, decoding threads, tasks and handles that belong to the run. 0 a moment after its end; a thread that was given up, because
    /// it hangs on a file, counts for as long as it hangs.
    pub fn holders(&self) -> usize {
        self.context.strong_count()
    }

    /// Batch slots that are taken now, of all stages: the credits of the data path that have not come home.
    pub fn slots_in_use(&self) -> u64 {
        self.stats.slots_in_use()
    }

    /// Batch slots that were still taken when every batch of their stage had its end, so that they could never be filled again. Always 0:
    /// anything else is a bug.
    pub fn slots_lost(&self) -> u64 {
        self.stats.slots_lost.get()
    }
}
