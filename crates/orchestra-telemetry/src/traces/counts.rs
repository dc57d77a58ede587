//! What becomes of spans, counted: those that a collector took, and those that it did not. It sends nothing, and never waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use orchestra_core::locked;

/// Counts the spans of an export, and says how many may wait.
#[derive(Debug)]
pub(crate) struct SpanCounts {
    ended: AtomicU64,
    delivered: AtomicU64,
    rejected: AtomicU64,
    unsent: AtomicU64,
    overflowed: AtomicU64,
    /// What went wrong at last.
    words: Mutex<Option<String>>,
    /// Spans that may wait.
    room: u64,
}

impl SpanCounts {
    pub(super) fn new(room: usize) -> Self {
        let [ended, delivered, rejected, unsent, overflowed] = Default::default();
        Self { ended, delivered, rejected, unsent, overflowed, words: Mutex::default(), room: room as u64 }
    }

    /// A span has ended. `false`: it finds no room, and is dropped.
    pub(super) fn end(&self) -> bool {
        let is_full = self.waiting() >= self.room;
        self.ended.fetch_add(1, Ordering::Relaxed);
        if is_full {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
        !is_full
    }

    /// Whether so many spans would leave enough room for what is rare (the run, and what failed or was tried again): a quarter. Also asked
    /// by threads of the run: it takes no lock.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        self.waiting() + spans as u64 <= self.room / 4 * 3
    }

    /// A collector got so many spans, rejected some of them, and says why. Gives back whether these are the first that it rejects.
    pub(super) fn sent(&self, spans: u64, rejected: u64, words: Option<String>) -> bool {
        let rejected = rejected.min(spans);
        self.say(words);
        self.delivered.fetch_add(spans - rejected, Ordering::Relaxed);
        self.rejected.fetch_add(rejected, Ordering::Relaxed) == 0 && rejected > 0
    }

    /// So many spans could not be sent. Gives back whether they are the first.
    pub(super) fn not_sent(&self, spans: u64, words: Option<String>) -> bool {
        self.say(words);
        self.unsent.fetch_add(spans, Ordering::Relaxed) == 0
    }

    /// What became of the spans so far. Those that wait are among those that ended alone.
    pub(crate) fn report(&self) -> SpanReport {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpanReport {
            ended: of(&self.ended),
            delivered: of(&self.delivered),
            rejected: of(&self.rejected),
            unsent: of(&self.unsent),
            overflowed: of(&self.overflowed),
            words: locked(&self.words).clone(),
            ..SpanReport::default()
        }
    }

    /// The end: what still waits is late.
    pub(super) fn close(&self) -> SpanReport {
        let report = self.report();
        SpanReport { late: report.waiting(), ..report }
    }

    fn waiting(&self) -> u64 {
        let settled = [&self.delivered, &self.rejected, &self.unsent, &self.overflowed];
        let settled: u64 = settled.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        self.ended.load(Ordering::Relaxed).saturating_sub(settled)
    }

    fn say(&self, words: Option<String>) {
        if words.is_some() {
            *locked(&self.words) = words;
        }
    }
}

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
    /// Spans of which nothing is known yet.
    fn waiting(&self) -> u64 {
        self.ended.saturating_sub(self.delivered + self.rejected + self.unsent + self.overflowed)
    }

    /// Spans that no collector took, whatever the reason.
    pub fn lost(&self) -> u64 {
        self.rejected + self.unsent + self.overflowed + self.late
    }

    /// The reasons for which spans were lost, each with a number above 0.
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
pub(crate) struct LeftOutTraces {
    items: AtomicU64,
    batches: AtomicU64,
}

impl LeftOutTraces {
    pub(crate) fn add_items(&self, n: u64) {
        self.items.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn add_batches(&self, n: u64) {
        self.batches.fetch_add(n, Ordering::Relaxed);
    }

    /// A report with these numbers besides.
    pub(crate) fn and(&self, spans: SpanReport) -> SpanReport {
        let items_left_out = self.items.load(Ordering::Relaxed);
        SpanReport { items_left_out, batches_left_out: self.batches.load(Ordering::Relaxed), ..spans }
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
