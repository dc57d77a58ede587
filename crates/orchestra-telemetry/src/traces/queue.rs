//! Spans on their way to the collector: a bounded queue of requests, and the count of what became of each span. It never waits: what
//! finds no room is counted and dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::Value;
use opentelemetry::trace::Status;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::Notify;

use super::SpanReport;

/// Collectors take messages of 4 MiB over gRPC; a request is closed well before that, by an estimate.
const REQUEST_BYTES: usize = 2 << 20;

/// Where spans end. Clones feed the same exporter.
#[derive(Debug, Clone)]
pub(crate) struct SpanSink(pub(super) Arc<Queue>);

impl SpanSink {
    /// Whether so many spans would leave enough room for what is rare and matters more than one item of many: a quarter of the queue.
    pub(crate) fn has_room(&self, spans: usize) -> bool {
        self.0.waiting() + spans <= self.0.room / 4 * 3
    }

    /// Takes a span that has ended. Never waits.
    pub(crate) fn end(&self, span: SpanData) {
        self.0.push(span);
    }
}

/// Spans that wait, and the counts.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Told when a request is full.
    pub(super) wake: Notify,
    /// Spans that may wait.
    room: usize,
    /// Spans of a request.
    request: usize,
}

#[derive(Debug, Default)]
struct State {
    full: VecDeque<Vec<SpanData>>,
    filling: Vec<SpanData>,
    /// Of `filling`, estimated.
    bytes: usize,
    waiting: usize,
    /// Nobody will come for more.
    closed: bool,
    report: SpanReport,
}

impl Queue {
    pub(super) fn new(room: usize, request: usize) -> Self {
        Self { state: Mutex::default(), wake: Notify::new(), room, request }
    }

    fn push(&self, span: SpanData) {
        let mut state = self.lock();
        state.report.ended += 1;
        if state.closed {
            state.report.late += 1;
        } else if state.waiting >= self.room {
            state.report.overflowed += 1;
        } else {
            state.waiting += 1;
            state.bytes += estimated_bytes(&span);
            state.filling.push(span);
            if state.filling.len() >= self.request || state.bytes >= REQUEST_BYTES {
                state.close_request();
                drop(state);
                self.wake.notify_one();
            }
        }
    }

    fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// The next full request.
    pub(super) fn full(&self) -> Option<Vec<SpanData>> {
        self.lock().take()
    }

    /// The next request, full or not.
    pub(super) fn any(&self) -> Option<Vec<SpanData>> {
        let mut state = self.lock();
        if state.full.is_empty() && !state.filling.is_empty() {
            state.close_request();
        }
        state.take()
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
        state.full.clear();
        state.filling.clear();
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
    fn close_request(&mut self) {
        self.bytes = 0;
        let next = Vec::with_capacity(self.filling.len());
        self.full.push_back(std::mem::replace(&mut self.filling, next));
    }

    fn take(&mut self) -> Option<Vec<SpanData>> {
        let request = self.full.pop_front()?;
        self.waiting -= request.len();
        Some(request)
    }
}

fn estimated_bytes(span: &SpanData) -> usize {
    const SPAN: usize = 96;
    const ATTRIBUTE: usize = 32;
    const LINK: usize = 64;
    const EVENT: usize = 48;
    let attributes = |attributes: &[opentelemetry::KeyValue]| -> usize {
        attributes
            .iter()
            .map(|a| ATTRIBUTE + if let Value::String(s) = &a.value { s.as_str().len() } else { 8 })
            .sum()
    };
    let status = match &span.status {
        Status::Error { description } => description.len(),
        Status::Ok | Status::Unset => 0,
    };
    SPAN + status
        + attributes(&span.attributes)
        + span.links.iter().map(|link| LINK + attributes(&link.attributes)).sum::<usize>()
        + span.events.iter().map(|event| EVENT + attributes(&event.attributes)).sum::<usize>()
}
