//! When a batch leaves that is not full: a full one leaves by itself (`slot_claims.rs`). It never touches rows, workers or clocks.
//!
//! Batching is work-conserving: as long as every worker is busy the open batch grows until it is full, and when one is free it leaves once
//! it is large enough, its oldest row has waited long enough, or no more rows will come.
//! Times are durations since the start of the run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

crate::named_enum! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum LeaveReason {
        /// It reached the largest size, or one that is enough for a worker that is free.
        Full = "full",
        /// Its oldest row had waited for `batch.wait`.
        Timer = "timer",
        /// No slot was free for a row that is trimmed to another size.
        Size = "size",
        /// The source has nothing more.
        Drain = "drain",
        /// Part of what failed or ran out of memory.
        Split = "split",
        /// The same batch again, after its worker died.
        Retry = "retry",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPolicy {
    pub max_batch: usize,
    /// With so many rows it does not wait for more while a worker is free.
    pub enough: usize,
    /// How long the oldest row waits for a batch to fill while a worker is free.
    pub wait: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenBatch {
    pub rows: usize,
    pub oldest_since: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Leave(LeaveReason),
    /// Look again at this time, or when something changes.
    LookAgainAt(Duration),
    Keep,
}

impl BatchPolicy {
    /// Decides about the open batch.
    ///
    /// `idle_workers` is how many workers have nothing to do, beyond those that closed batches will keep busy; `drained` says that no
    /// further row will ever come.
    pub fn decide(
        &self,
        open: Option<OpenBatch>,
        idle_workers: usize,
        drained: bool,
        now: Duration,
    ) -> Decision {
        let Some(open) = open.filter(|o| o.rows > 0) else { return Decision::Keep };
        if open.rows >= self.max_batch {
            return Decision::Leave(LeaveReason::Full);
        }
        if drained {
            return Decision::Leave(LeaveReason::Drain);
        }
        if idle_workers == 0 {
            return Decision::Keep;
        }
        if open.rows >= self.enough {
            return Decision::Leave(LeaveReason::Full);
        }
        let due = open.oldest_since.saturating_add(self.wait);
        if now >= due { Decision::Leave(LeaveReason::Timer) } else { Decision::LookAgainAt(due) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BatchPolicy = BatchPolicy { max_batch: 8, enough: 6, wait: Duration::from_millis(5) };

    fn open(rows: usize) -> Option<OpenBatch> {
        Some(OpenBatch { rows, oldest_since: Duration::from_millis(100) })
    }

    #[test]
    fn a_full_batch_leaves_at_once_and_a_partial_one_when_a_worker_has_waited_for_it_or_nothing_more_comes() {
        let ms = Duration::from_millis;
        let leave = |reason| Decision::Leave(reason);
        for (open, idle, is_drained, now, decision) in [
            (open(8), 0, false, ms(0), leave(LeaveReason::Full)),
            (open(7), 0, false, ms(9000), Decision::Keep),
            (open(6), 1, false, ms(0), leave(LeaveReason::Full)),
            (open(5), 1, false, ms(104), Decision::LookAgainAt(ms(105))),
            (open(1), 1, false, ms(104), Decision::LookAgainAt(ms(105))),
            (open(1), 1, false, ms(105), leave(LeaveReason::Timer)),
            (open(3), 0, true, ms(0), leave(LeaveReason::Drain)),
            (None, 2, true, Duration::MAX, Decision::Keep),
            (open(0), 2, true, Duration::MAX, Decision::Keep),
        ] {
            assert_eq!(POLICY.decide(open, idle, is_drained, now), decision, "{open:?}, {idle}, {now:?}");
        }
    }
}
