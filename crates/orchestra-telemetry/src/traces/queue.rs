//! Spans on their way to the collector: a bounded queue, and the count of what became of each span. It never waits: what finds no room is
//! counted and dropped, the plain before the rare.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry_sdk::trace::SpanData;
use tokio::sync::Notify;

use super::SpanReport;

/// What gives way to what when there is no room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Importance {
    /// One of many: an item that is traced for the share, and batches of such items.
    Plain,
    /// What somebody will look for: the run, and what failed, was tried again or was slow.
    Rare,
}

/// Where spans end. Clones feed the same exporter.
#[derive(Debug, Clone)]
pub(crate) struct SpanSink(pub(super) Arc<Queue>);

impl SpanSink {
    pub(crate) fn report(&self) -> SpanReport {
        self.0.report()
    }

    /// Whether so many spans would leave enough room for what is rare: a quarter of the queue. Also asked by threads of the run: it takes
    /// no lock.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        self.0.waiting.load(Ordering::Relaxed) + spans <= self.0.room / 4 * 3
    }
}

/// Spans that wait, and the counts.
#[derive(Debug)]
pub(super) struct Queue {
    /// Taken by threads that run behind those of the run, and by whoever reports on them, who can wait.
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
    /// Nobody will come for more.
    closed: bool,
    report: SpanReport,
}

impl Queue {
    pub(super) fn new(room: usize, request: usize) -> Self {
        Self { state: Mutex::default(), waiting: AtomicUsize::new(0), wake: Notify::new(), room, request }
    }

    /// Takes a span that has ended. Where there is no room, a rare one takes the place of the oldest that is plain.
    pub(super) fn push(&self, span: SpanData, importance: Importance) {
        let mut state = self.lock();
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

    /// The next full request.
    pub(super) fn full(&self) -> Option<Vec<SpanData>> {
        self.take(self.request)
    }

    /// The next request, full or not.
    pub(super) fn any(&self) -> Option<Vec<SpanData>> {
        self.take(1)
    }

    /// A request, what is rare first, if `least` spans wait.
    fn take(&self, least: usize) -> Option<Vec<SpanData>> {
        let mut state = self.lock();
        if state.waiting() < least {
            return None;
        }
        let n_rare = state.rare.len().min(self.request);
        let n_plain = state.plain.len().min(self.request - n_rare);
        let mut spans: Vec<SpanData> = state.rare.drain(..n_rare).collect();
        spans.extend(state.plain.drain(..n_plain));
        self.waiting.store(state.waiting(), Ordering::Relaxed);
        Some(spans)
    }

    /// The collector has taken all of a request but `rejected` spans, and says `words` of it. Gives back whether it is the first of which
    /// it rejects some.
    pub(super) fn taken(&self, spans: u64, rejected: u64, words: Option<String>) -> bool {
        let mut state = self.lock();
        let rejected = rejected.min(spans);
        let first = state.report.rejected == 0 && rejected > 0;
        state.report.delivered += spans - rejected;
        state.report.rejected += rejected;
        state.report.words = words.or(state.report.words.take());
        first
    }

    /// A request could not be sent. Gives back whether this is the first.
    pub(super) fn unsent(&self, spans: u64, words: Option<String>) -> bool {
        let mut state = self.lock();
        let first = state.report.unsent == 0;
        state.report.unsent += spans;
        state.report.words = words.or(state.report.words.take());
        first
    }

    /// What became of the spans so far. Those that wait are among those that ended alone.
    pub(super) fn report(&self) -> SpanReport {
        self.lock().report.clone()
    }

    /// The end: what has not been accounted for until now is late.
    pub(super) fn close(&self) -> SpanReport {
        let mut state = self.lock();
        state.closed = true;
        state.rare.clear();
        state.plain.clear();
        let mut report = state.report.clone();
        let known = report.delivered + report.rejected + report.unsent + report.overflowed;
        report.late = report.ended - known;
        report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is whole before anything could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.rare.len() + self.plain.len()
    }
}
