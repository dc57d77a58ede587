//! Spans on their way to the collector: a bounded queue of requests, and the count of what became of each span. It never waits: what
//! finds no room is counted and dropped, the plain before the rare.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::KeyValue;
use tokio::sync::Notify;

use super::SpanReport;
use super::encode::{EncodedAttributes, SpanBytes};
use super::settings::SpanLimits;

/// Collectors take messages of 4 MiB over gRPC; a request is closed well before that.
const REQUEST_BYTES: usize = 2 << 20;
/// Buffers of spans that are kept to be used again: as many as are open at once, and no larger than this.
const SPARE_SPANS: usize = 256;
const LARGEST_SPARE: usize = 64 << 10;

/// An item that was in one batch has so many spans.
const SPANS_OF_ITEM: usize = 8;

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
    /// Whether there is room for what is only one of many. Also asked by threads of the run: it takes no lock.
    pub(super) fn has_room(&self) -> bool {
        self.0.has_room(self.0.waiting.load(Ordering::Relaxed) + SPANS_OF_ITEM)
    }

    /// For one thread.
    pub(super) fn writer(&self) -> Writer {
        let limits = self.0.limits;
        Writer {
            queue: Arc::clone(&self.0),
            spare: Vec::new(),
            plain: Spans::default(),
            rare: Spans::default(),
            limits,
        }
    }
}

/// Spans of one thread, before they join those of others.
pub(super) struct Writer {
    queue: Arc<Queue>,
    spare: Vec<SpanBytes>,
    plain: Spans,
    rare: Spans,
    limits: SpanLimits,
}

impl Writer {
    /// Whether so many spans would leave enough room for what is rare and matters more than one item of many: a quarter of the queue.
    pub(super) fn has_room(&mut self, spans: usize) -> bool {
        let waiting = self.queue.waiting.load(Ordering::Relaxed) + self.plain.count + self.rare.count;
        let has_room = self.queue.has_room(waiting + spans);
        if !has_room {
            self.flush(); // So that those who ask the sink see it, too.
        }
        has_room
    }

    /// Attributes that many of its spans will have.
    pub(super) fn written(&self, attributes: &[KeyValue]) -> EncodedAttributes {
        EncodedAttributes::new(attributes, &self.limits)
    }

    /// A span to be begun.
    pub(super) fn span(&mut self) -> SpanBytes {
        self.spare.pop().unwrap_or_else(|| SpanBytes::new(self.limits))
    }

    /// Takes a span that has ended.
    pub(super) fn end(&mut self, span: SpanBytes, importance: Importance) {
        let spans = match importance {
            Importance::Plain => &mut self.plain,
            Importance::Rare => &mut self.rare,
        };
        if !spans.takes(span.len(), self.queue.request) {
            self.queue.push(spans, importance);
        }
        span.append_to(&mut spans.bytes);
        spans.count += 1;
        if self.spare.len() < SPARE_SPANS && span.len() <= LARGEST_SPARE {
            self.spare.push(span);
        }
        if spans.count >= self.queue.request {
            // With those of the other importance: while there is much to do, nobody comes to flush them.
            self.flush();
        }
    }

    /// Hands over what there is.
    pub(super) fn flush(&mut self) {
        self.queue.push(&mut self.rare, Importance::Rare);
        self.queue.push(&mut self.plain, Importance::Plain);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Spans that are sent together, as bytes.
#[derive(Default)]
pub(super) struct Spans {
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
}

impl Spans {
    /// Whether a span of so many bytes, or spans, belongs into the same request.
    fn takes(&self, bytes: usize, most: usize) -> bool {
        self.count == 0 || (self.count < most && self.bytes.len() + bytes <= REQUEST_BYTES)
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spans of {} bytes", self.count, self.bytes.len())
    }
}

/// Spans that wait, and the counts.
#[derive(Debug)]
pub(super) struct Queue {
    /// Taken by threads that run behind those of the run, and by whoever reports on them, who can wait.
    state: Mutex<State>,
    /// Spans that wait.
    waiting: AtomicUsize,
    /// Told when a request is full.
    pub(super) wake: Notify,
    /// Spans that may wait.
    room: usize,
    /// Spans of a request.
    request: usize,
    limits: SpanLimits,
}

#[derive(Debug, Default)]
struct State {
    rare: Requests,
    plain: Requests,
    /// Nobody will come for more.
    closed: bool,
    report: SpanReport,
}

/// Requests of one importance, the last of which may not be full.
#[derive(Debug, Default)]
struct Requests(VecDeque<Spans>);

impl Queue {
    pub(super) fn new(room: usize, request: usize, limits: SpanLimits) -> Self {
        Self {
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            wake: Notify::new(),
            room,
            request,
            limits,
        }
    }

    /// Whether so many that wait leave enough room for what is rare.
    fn has_room(&self, waiting: usize) -> bool {
        waiting <= self.room / 4 * 3
    }

    /// Takes all of these.
    fn push(&self, spans: &mut Spans, importance: Importance) {
        if spans.count == 0 {
            return;
        }
        let mut state = self.lock();
        state.report.ended += spans.count as u64;
        if state.closed {
            state.report.late += spans.count as u64;
            *spans = Spans::default();
            return;
        }
        if importance == Importance::Rare {
            self.make_room(&mut state, spans.count);
        }
        if self.waiting.load(Ordering::Relaxed) + spans.count > self.room {
            state.report.overflowed += spans.count as u64;
            *spans = Spans::default();
            return;
        }
        self.waiting.fetch_add(spans.count, Ordering::Relaxed);
        let requests = match importance {
            Importance::Plain => &mut state.plain,
            Importance::Rare => &mut state.rare,
        };
        if requests.join(spans, self.request) {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Drops what is plain, the oldest first, until there is room for so many.
    fn make_room(&self, state: &mut State, spans: usize) {
        while self.waiting.load(Ordering::Relaxed) + spans > self.room
            && let Some(oldest) = state.plain.0.pop_front()
        {
            self.waiting.fetch_sub(oldest.count, Ordering::Relaxed);
            state.report.overflowed += oldest.count as u64;
        }
    }

    /// The next full request.
    pub(super) fn full(&self) -> Option<Spans> {
        let mut state = self.lock();
        let full = state.rare.full(self.request).or_else(|| state.plain.full(self.request));
        self.taken_out(full)
    }

    /// The next request, full or not.
    pub(super) fn any(&self) -> Option<Spans> {
        let mut state = self.lock();
        let any = state.rare.0.pop_front().or_else(|| state.plain.0.pop_front());
        self.taken_out(any)
    }

    fn taken_out(&self, spans: Option<Spans>) -> Option<Spans> {
        let spans = spans?;
        self.waiting.fetch_sub(spans.count, Ordering::Relaxed);
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
        state.rare.0.clear();
        state.plain.0.clear();
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

impl Requests {
    /// Adds spans, to the last request as far as they fit into it. Gives back whether that filled one.
    fn join(&mut self, spans: &mut Spans, most: usize) -> bool {
        if let Some(last) = self.0.back_mut()
            && last.count + spans.count <= most
            && last.bytes.len() + spans.bytes.len() <= REQUEST_BYTES
        {
            last.bytes.extend_from_slice(&spans.bytes);
            last.count += spans.count;
            spans.bytes.clear();
            spans.count = 0;
            return last.count >= most;
        }
        // The memory goes with it, and the next ones will need as much.
        let next = Spans { bytes: Vec::with_capacity(spans.bytes.len()), count: 0 };
        self.0.push_back(std::mem::replace(spans, next));
        self.0.len() > 1 || self.0.back().is_some_and(|last| last.count >= most)
    }

    /// The first request, if no more goes into it.
    fn full(&mut self, most: usize) -> Option<Spans> {
        let is_full = self.0.len() > 1 || self.0.front().is_some_and(|first| first.count >= most);
        is_full.then(|| self.0.pop_front()).flatten()
    }
}
