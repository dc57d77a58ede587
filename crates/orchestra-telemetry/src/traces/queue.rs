//! Spans on their way to the collector: a bounded queue, and the count of what became of each span. It never waits: what finds no room is
//! counted and dropped, the plain before the rare.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use opentelemetry_sdk::trace::SpanData;
use orchestra_core::locked;
use tokio::sync::Notify;

/// What gives way to what when there is no room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Importance {
    /// One of many: an item that is traced for the share, and batches of such items.
    Plain,
    /// What a reader of traces looks for: the run, and what failed, was tried again or was slow.
    Rare,
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// Taken by threads that run behind those of the run, and by reports, which can wait. No thread of the run takes it.
    state: Mutex<State>,
    waiting: AtomicUsize,
    /// Told when a request is full.
    pub(super) wake: Notify,
    room: usize,
    request: usize,
}

#[derive(Debug, Default)]
struct State {
    rare: VecDeque<SpanData>,
    plain: VecDeque<SpanData>,
    /// Nothing is sent any more: spans that end now are late.
    closed: bool,
    report: SpanReport,
}

impl Queue {
    pub(super) fn new(room: usize, request: usize) -> Self {
        Self { state: Mutex::default(), waiting: AtomicUsize::new(0), wake: Notify::new(), room, request }
    }

    /// Takes a span that has ended. Where there is no room, a rare one takes the place of the oldest that is plain.
    pub(super) fn push(&self, span: SpanData, importance: Importance) {
        let mut state = locked(&self.state);
        state.report.ended += 1;
        if state.closed {
            state.report.late += 1;
            return;
        }
        if state.waiting() >= self.room {
            state.report.overflowed += 1;
            if importance == Importance::Plain || state.plain.pop_front().is_none() {
                return;
            }
        }
        match importance {
            Importance::Plain => state.plain.push_back(span),
            Importance::Rare => state.rare.push_back(span),
        }
        let waiting = state.waiting();
        self.waiting.store(waiting, Ordering::Relaxed);
        drop(state);
        if waiting.is_multiple_of(self.request) {
            self.wake.notify_one();
        }
    }

    /// Whether so many spans would leave enough room for what is rare: a quarter of the queue. Also asked by threads of the run: it takes
    /// no lock.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        self.waiting.load(Ordering::Relaxed) + spans <= self.room / 4 * 3
    }

    /// Whether a full request waits.
    pub(super) fn has_request(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.request
    }

    /// The next request, full or not, what is rare first; `None` if nothing waits.
    pub(super) fn take(&self) -> Option<Vec<SpanData>> {
        let mut state = locked(&self.state);
        let n_rare = state.rare.len().min(self.request);
        let n_plain = state.plain.len().min(self.request - n_rare);
        let mut spans: Vec<SpanData> = state.rare.drain(..n_rare).collect();
        spans.extend(state.plain.drain(..n_plain));
        self.waiting.store(state.waiting(), Ordering::Relaxed);
        (!spans.is_empty()).then_some(spans)
    }

    /// Drops all that wait, and says how many they were.
    pub(super) fn drain(&self) -> u64 {
        let mut state = locked(&self.state);
        let waiting = state.waiting() as u64;
        state.rare.clear();
        state.plain.clear();
        self.waiting.store(0, Ordering::Relaxed);
        waiting
    }

    /// What became of a request of so many spans: the collector has rejected so many of them, or with `None` it could not be sent; `words` says
    /// why. Gives back whether this is the first loss of its kind.
    pub(super) fn sent(&self, spans: u64, rejected: Option<u64>, words: Option<String>) -> bool {
        let mut state = locked(&self.state);
        let report = &mut state.report;
        report.words = words.or(report.words.take());
        let Some(rejected) = rejected else {
            report.unsent += spans;
            return report.unsent == spans;
        };
        let rejected = rejected.min(spans);
        report.delivered += spans - rejected;
        report.rejected += rejected;
        rejected > 0 && report.rejected == rejected
    }

    /// What became of the spans so far. Those that wait are among those that ended alone.
    pub(crate) fn report(&self) -> SpanReport {
        locked(&self.state).report.clone()
    }

    /// The end: what has not been accounted for until now is late.
    pub(super) fn close(&self) -> SpanReport {
        let mut state = locked(&self.state);
        state.closed = true;
        state.rare.clear();
        state.plain.clear();
        let mut report = state.report.clone();
        let known = report.delivered + report.rejected + report.unsent + report.overflowed;
        report.late = report.ended - known;
        report
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.rare.len() + self.plain.len()
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
