//! One span in the making, for our own exporter or for a host's. It decides nothing of what is on a span.
//!
//! Nothing is measured or sampled here, because all of it has happened and been decided already: so a span is made as data, with the ids
//! of `ids`, and goes to its sink when it ends.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceId};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks, SpanProcessor};

use super::context;
use super::counts::SpanCounts;
use crate::names::{SERVICE, attribute, event};

/// Bytes of an error that a span keeps: a worker may have said a lot, and each item of its batch repeats it.
const LONGEST_ERROR: usize = 1024;

/// How many attributes, events and links a span may have, as the specification has it. What is more is left out when it ends, and counted in it.
const MOST: usize = 128;

/// Where spans go when they end.
#[derive(Debug, Clone)]
pub(crate) struct Sink {
    processor: Arc<dyn SpanProcessor>,
    /// Of our own export. A host's processor looks after itself.
    counts: Option<Arc<SpanCounts>>,
}

impl Sink {
    pub(super) fn of_host(processor: Arc<dyn SpanProcessor>) -> Self {
        Self { processor, counts: None }
    }

    pub(super) fn counted(processor: Arc<dyn SpanProcessor>, counts: Arc<SpanCounts>) -> Self {
        Self { processor, counts: Some(counts) }
    }

    pub(super) fn is_own(&self) -> bool {
        self.counts.is_some()
    }

    /// Whether so many spans more leave enough room for rare ones.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        self.counts.as_ref().is_none_or(|counts| counts.has_room(spans))
    }

    pub(super) fn end(&self, span: SpanData) {
        if self.counts.as_ref().is_none_or(|counts| counts.end()) {
            self.processor.on_end(span);
        }
    }
}

pub(super) struct Out {
    pub(super) sink: Sink,
    scope: InstrumentationScope,
}

/// A span that has not ended. Its times are those of the run, counted from `zero`.
pub(super) struct OpenSpan {
    data: SpanData,
    sink: Sink,
    zero: SystemTime,
}

impl Out {
    pub(super) fn new(sink: Sink) -> Self {
        Self { sink, scope: InstrumentationScope::builder(SERVICE).build() }
    }

    /// A span that began at `start`. Without a parent it begins the trace of `ids`; below one that is not sampled it goes nowhere.
    pub(super) fn open(
        &self,
        name: &'static str,
        ids: (TraceId, SpanId),
        parent: Option<&SpanContext>,
        (zero, start): (SystemTime, Duration),
    ) -> OpenSpan {
        let start = wall_time(zero, start);
        let data = SpanData {
            span_context: parent.map_or(context::root(ids), |parent| context::below(parent, ids.1)),
            parent_span_id: parent.map_or(SpanId::INVALID, SpanContext::span_id),
            parent_span_is_remote: parent.is_some_and(SpanContext::is_remote),
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: start,
            end_time: start,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        };
        OpenSpan { data, sink: self.sink.clone(), zero }
    }
}

fn wall_time(zero: SystemTime, at: Duration) -> SystemTime {
    zero.checked_add(at).unwrap_or(zero)
}

impl OpenSpan {
    pub(super) fn context(&self) -> SpanContext {
        self.data.span_context.clone()
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.data.attributes.push(KeyValue::new(name, value));
    }

    pub(super) fn add(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.data.attributes.extend(attributes);
    }

    pub(super) fn event(&mut self, name: &'static str, at: Duration, attributes: Vec<KeyValue>) {
        self.data.events.events.push(Event::new(name, wall_time(self.zero, at), attributes, 0));
    }

    /// `how` is the value of `orchestra.link`.
    pub(super) fn link(&mut self, to: SpanContext, how: &'static str) {
        self.data.links.links.push(Link::new(to, vec![KeyValue::new(attribute::LINK, how)], 0));
    }

    /// It ended in an error, of a kind from a small set.
    pub(super) fn fail(&mut self, kind: impl Into<Value>, error: &str, at: Duration) {
        let kind = kind.into();
        let error = &error[..error.floor_char_boundary(LONGEST_ERROR)];
        self.set(attribute::ERROR_TYPE, kind.clone());
        let exception = vec![
            KeyValue::new(attribute::EXCEPTION_TYPE, kind),
            KeyValue::new(attribute::EXCEPTION_MESSAGE, error.to_owned()),
        ];
        self.event(event::EXCEPTION, at, exception);
        self.data.status = Status::error(error.to_owned());
    }

    /// It ended at this time, or when it began if that is later.
    pub(super) fn end(mut self, at: Duration) {
        if !self.data.span_context.is_sampled() {
            return;
        }
        let data = &mut self.data;
        data.end_time = wall_time(self.zero, at).max(data.start_time);
        data.dropped_attributes_count = cut(&mut data.attributes);
        data.events.dropped_count = cut(&mut data.events.events);
        data.links.dropped_count = cut(&mut data.links.links);
        self.sink.end(self.data);
    }
}

/// Leaves [`MOST`], and says how many more there were.
fn cut<T>(all: &mut Vec<T>) -> u32 {
    let more = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    u32::try_from(more).unwrap_or(u32::MAX)
}

/// OpenTelemetry has no unsigned numbers.
pub(super) fn number(n: impl TryInto<i64>) -> Value {
    Value::I64(n.try_into().unwrap_or(i64::MAX))
}
