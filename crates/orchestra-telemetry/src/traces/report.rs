//! What became of the spans of a run, in numbers and reasons.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of the spans of a run. Every span that ended is in exactly one of the other numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanReport {
    /// Spans that ended and were to be sent.
    pub ended: u64,
    /// Those that the collector took.
    pub delivered: u64,
    /// Those that it got and did not take.
    pub rejected: u64,
    /// Those that could not be sent.
    pub unsent: u64,
    /// Those for which the queue had no room.
    pub overflowed: u64,
    /// Those that were still waiting when the time for the end had passed.
    pub late: u64,
    /// Items without spans because too much happened at once: not among the spans that ended.
    pub items_left_out: u64,
    /// Batches without spans, likewise.
    pub batches_left_out: u64,
    /// What went wrong at last, in words.
    pub words: Option<String>,
}

impl SpanReport {
    /// Nothing is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lost() == 0 && self.items_left_out == 0 && self.batches_left_out == 0
    }

    /// Spans that no collector took, whatever the reason.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.rejected + self.unsent + self.overflowed + self.late
    }

    /// The reasons for which spans were lost, each with a number above 0.
    #[must_use]
    pub fn losses(&self) -> Vec<(u64, &'static str)> {
        [
            (self.unsent, "could not be sent"),
            (self.rejected, "were rejected by the collector"),
            (self.overflowed, "found the queue full"),
            (self.late, "were still waiting when the time for the end of the run had passed"),
        ]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .collect()
    }
}

/// Counts what gets no spans.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    items: AtomicU64,
    batches: AtomicU64,
}

impl LeftOut {
    pub(crate) fn add_items(&self, n: u64) {
        self.items.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn add_batches(&self, n: u64) {
        self.batches.fetch_add(n, Ordering::Relaxed);
    }

    /// A report with these numbers besides.
    pub(crate) fn and(&self, spans: SpanReport) -> SpanReport {
        let (items, batches) = (self.items.load(Ordering::Relaxed), self.batches.load(Ordering::Relaxed));
        SpanReport { items_left_out: items, batches_left_out: batches, ..spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_named_with_its_reason() {
        assert_eq!(SpanReport { ended: 5, delivered: 5, ..SpanReport::default() }.losses(), []);
        let report = SpanReport { ended: 9, delivered: 2, unsent: 4, overflowed: 3, ..SpanReport::default() };
        assert_eq!(report.lost(), 7);
        assert_eq!(report.losses(), [(4, "could not be sent"), (3, "found the queue full")]);
    }
}
